"""Pictures for segmentation: `images` and `masks` in a folder, with files of the same names; a mask
has one channel, whose values are classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.network.samples.file_set import files_of
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.pictures import is_picture
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted

_IMAGES, _MASKS = "images", "masks"


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The pictures of a folder's `images`, each with its mask.

    Raises:
        SampleError: a picture has no mask.
    """
    if not ((path / _IMAGES).is_dir() and (path / _MASKS).is_dir()):
        return None
    pictures = files_of(path / _IMAGES, is_picture)
    masks = {file.stem: file for file in files_of(path / _MASKS, is_picture)}
    missing = [file.name for file in pictures if file.stem not in masks]
    if missing:
        raise SampleError(
            f"{path}: {len(missing)} of {counted(len(pictures), 'picture')} have no mask of the "
            f"same name: {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}.",
            "Remove them, or add their masks.",
            code="QD-SAMPLES-ANNOTATIONS",
        )
    return PictureSet(
        pictures,
        f"{counted(len(pictures), 'picture')} with masks",
        masks=tuple(masks[file.stem] for file in pictures),
    )
