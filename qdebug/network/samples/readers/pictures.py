"""Pictures: one file, a folder of them, or a folder with one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.network.samples.class_folders import classed_files, files_of
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.pictures import EncodedFile, is_picture
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """One picture."""
    return PictureSet((EncodedFile(path),), "1 picture")


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The pictures of a folder, or of the folders in it, each of which is a class."""
    found = classed_files(path, is_picture)
    if found is None:
        return None
    pictures = tuple(map(EncodedFile, found.files))
    if found.labels is None:
        return PictureSet(pictures, counted(len(pictures), "picture"))
    return PictureSet(
        pictures,
        f"{counted(len(pictures), 'picture')} in {found.count} classes by folder",
        {"labels": found.labels},
        classes=found.names,
        folders=found.numbered,
    )


def pictures_in(folder: Path, *, deep: bool = False) -> tuple[EncodedFile, ...]:
    """The pictures of a folder in order; `deep` takes those in its folders, too."""
    return tuple(map(EncodedFile, files_of(folder, is_picture, deep=deep)))
