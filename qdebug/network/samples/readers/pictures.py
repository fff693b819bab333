"""Pictures: one file, a folder of them, or a folder with one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.network.samples.file_set import set_in
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.pictures import is_picture
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """One picture."""
    return PictureSet((path,), "1 picture")


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The pictures of a folder, or of the folders in it, each of which is a class."""
    return set_in(PictureSet, path, is_picture, "picture")
