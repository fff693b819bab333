"""WebDataset's shards: tar files in which the files of a sample follow each other under one name:
a picture, and its class in a `.cls` file. A shard is not unpacked: pictures are read in place."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.feed_files import files_in
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.pictures import is_picture
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted

_ENDING, _CLASS = ".tar", "cls"


@dataclass(frozen=True)
class EncodedMember:
    """A file in a tar file: so many bytes from an offset."""

    tar: Path
    member: str
    offset: int
    size: int

    @property
    def name(self) -> str:
        """The tar file, and the file in it."""
        return f"{self.tar}:{self.member}"

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            OSError: it cannot be read, or is cut off.
        """
        with self.tar.open("rb") as file:
            file.seek(self.offset)
            data = file.read(self.size)
        if len(data) < self.size:
            raise OSError(f"{self.name} is cut off")
        return data


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The pictures of a shard, in its order.

    Raises:
        SampleError: it is damaged, compressed, or some of its pictures have no class.
    """
    return _picture_set([path])


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The pictures of all shards of a folder, in order. Raises as `read_file`."""
    shards = files_in(path, _ENDING)
    return _picture_set(shards) if shards else None


def _picture_set(shards: Sequence[Path]) -> PictureSet:
    pictures: dict[tuple[Path, str], EncodedMember] = {}
    classes: dict[tuple[Path, str], int] = {}
    for shard in shards:
        for member in _members(shard):
            place = PurePosixPath(member.member)
            stem, _, extension = place.name.partition(".")
            key = shard, str(place.parent / stem)
            if is_picture(Path(place.name)):
                pictures[key] = member
            elif extension == _CLASS:
                classes[key] = _class(member)
    missing = [pictures[key].name for key in pictures if key not in classes]
    if classes and missing:
        raise SampleError(
            f"{shards[0]}: {len(missing)} of {counted(len(pictures), 'picture')} have no .cls "
            f"file, first {missing[0]}.",
            "Write one for each, or for none.",
            code="QD-SAMPLES-ANNOTATIONS",
        )
    labels = np.array([classes[key] for key in pictures], np.int64) if classes else None
    told = " with labels" if classes else ""
    return PictureSet(
        tuple(pictures.values()),
        f"{counted(len(pictures), 'picture')}{told} in {counted(len(shards), 'shard')}",
        {} if labels is None else {"labels": labels},
    )


def _members(shard: Path) -> Iterator[EncodedMember]:
    try:
        with tarfile.open(shard, "r:") as tar:
            found = [
                EncodedMember(shard, entry.name, entry.offset_data, entry.size)
                for entry in tar
                if entry.isfile()
            ]
    except tarfile.TarError as error:
        raise SampleError(
            f"{shard}: not a tar file, cut off, or compressed ({error}).",
            "Write it again; WebDataset's shards are not compressed.",
            code="QD-SAMPLES-DAMAGED",
        ) from error
    yield from found


def _class(member: EncodedMember) -> int:
    text = member.read()
    try:
        return int(text)
    except ValueError as error:
        raise SampleError(
            f"{member.name}: holds {text[:20]!r}, which is no class number.",
            "Write a whole number.",
            code="QD-SAMPLES-ANNOTATIONS",
        ) from error
