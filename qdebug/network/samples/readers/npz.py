"""`.npz` files, read row by row: one with all samples, or one for each feed."""

from __future__ import annotations

import struct
import weakref
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file
from qdebug.network.samples.arrays import read_all
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feed_files import FeedFiles, files_in
from qdebug.network.samples.readers.npy import StoredArray, read_header
from qdebug.network.samples.samples import SampleArray, Source
from qdebug.types import Feeds, TensorSpec

_LOCAL_HEADER_BYTES = 30


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """All samples, by the name of the input. Raises as `open_npz`."""
    return open_npz(path)


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """A feed in each file."""
    files = files_in(path, ".npz")
    return FeedFiles(files, _feed) if files else None


def _feed(path: Path) -> Feeds:
    return {name: read_all(array) for name, array in open_npz(path).items()}


def open_npz(path: Path) -> dict[str, SampleArray]:
    """The arrays of an `.npz` by name, none of them read yet.

    Raises:
        SampleError: not a zip file, truncated, without arrays, or with a pickle.
    """
    with reading(path, "Save it again with `numpy.savez`."):
        file = open_file(path)
        try:
            archive = zipfile.ZipFile(file)
        except Exception:
            file.close()
            raise
    weakref.finalize(archive, file.close)  # which the arrays keep alive
    members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    if not members:
        raise SampleError(
            f"{path}: holds no arrays.",
            "Save the inputs with `numpy.savez(path, name=array)`.",
            code="QD-SAMPLES-FORMAT",
        )
    return {info.filename.removesuffix(".npy"): _member(path, archive, info) for info in members}


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> SampleArray:
    where = f"{path}: array '{info.filename.removesuffix('.npy')}'"
    with reading(where), archive.open(info) as stream:
        header = read_header(stream, where, info.file_size)
        if info.compress_type != zipfile.ZIP_STORED:
            return StoredArray(lambda: archive.open(info), header.size_bytes, header, where)
        with open_file(path) as file:
            file.seek(info.header_offset)
            local = file.read(_LOCAL_HEADER_BYTES)
        # The local header's own lengths: they may differ from the central directory's.
        name_bytes, extra_bytes = struct.unpack("<HH", local[26:30])
        start = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        return StoredArray(partial(open_file, path), start + header.size_bytes, header, where)
