"""Pictures: one file, a folder of them, or a folder with one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.network.samples.class_folders import classed_files
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.pictures import is_picture
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """One picture."""
    return PictureSet((path,), "1 picture")


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The pictures of a folder, or of the folders in it, each of which is a class."""
    found = classed_files(path, is_picture)
    if found is None:
        return None
    pictures = found.files
    if found.labels is None:
        return PictureSet(pictures, counted(len(pictures), "picture"))
    return PictureSet(
        pictures,
        f"{counted(len(pictures), 'picture')} in {found.count} classes by folder",
        {"labels": found.labels},
        classes=found.names,
        folders=found.numbered,
    )
