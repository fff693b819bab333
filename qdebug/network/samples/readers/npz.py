"""`.npz` files, read row by row: one with all samples, or one for each feed."""

from __future__ import annotations

import lzma
import struct
import threading
import weakref
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file
from qdebug.network.samples.arrays import Cursors, read_all
from qdebug.network.samples.feed_files import FeedFiles, files_in
from qdebug.network.samples.readers.npy import Header, StoredArray, check_size, read_header
from qdebug.network.samples.samples import SampleArray, Source
from qdebug.types import Array, Feeds, TensorSpec


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """All samples, by the name of the input. Raises as `open_npz`."""
    return open_npz(path)


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """A feed in each file."""
    files = files_in(path, ".npz")
    return FeedFiles(files, _feed) if files else None


def _feed(path: Path) -> Feeds:
    return {name: read_all(array) for name, array in open_npz(path).items()}


CHUNK_BYTES = 1 << 20
_LOCAL_HEADER_BYTES = 30
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    ValueError,
    OSError,
)
"""What zipfile raises for damaged, encrypted or exotically compressed members."""


def open_npz(path: Path) -> dict[str, SampleArray]:
    """The arrays of an `.npz` by name, none of them read yet.

    Raises:
        SampleError: not a zip file, truncated, without arrays, or with a pickle.
    """
    file = open_file(path)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # a name is no text
        file.close()
        raise SampleError(
            f"{path}: not an .npz file, or truncated ({error}).",
            "Save it again with `numpy.savez`.",
            code="QD-SAMPLES-DAMAGED",
        ) from error
    # The arrays keep the archive alive; the file closes with the last of them.
    weakref.finalize(archive, file.close)
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
    try:
        with archive.open(info) as stream:
            header = read_header(stream, where)
    except _DAMAGE as error:
        _refuse_damaged(where, error)
    check_size(header, info.file_size - header.size_bytes, where)
    if info.compress_type == zipfile.ZIP_STORED:
        return StoredArray(path, header, _data_offset(path, info) + header.size_bytes)
    return CompressedArray(archive, info, header, where)


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    with open_file(path) as file:
        file.seek(info.header_offset)
        local = file.read(_LOCAL_HEADER_BYTES)
    # The local header's own lengths: they may differ from the central directory's.
    name_bytes, extra_bytes = struct.unpack("<HH", local[26:30])
    return info.header_offset + _LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)


class _Stream:
    """One pass over a compressed member; `position` counts rows."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header_bytes: int) -> None:
        self.position = 0
        self._stream = archive.open(info)
        self._stream.read(header_bytes)

    def fill(self, out: Array) -> bool:
        """Reads the next `out.nbytes` bytes; False when there are fewer."""
        view = out.reshape(-1).view(np.uint8).data
        while view:
            read = self._stream.read(min(len(view), CHUNK_BYTES))
            if not read:
                return False
            view[: len(read)] = read
            view = view[len(read) :]
        return True

    def skip(self, size: int) -> None:
        while size and (read := len(self._stream.read(min(size, CHUNK_BYTES)))):
            size -= read


class CompressedArray:
    """A compressed member, to be read from several threads if need be. Reading in order is
    streaming; going back starts over."""

    def __init__(
        self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: Header, where: str
    ) -> None:
        self.shape = header.shape
        self.dtype = header.dtype
        self._header = header
        self._where = where
        self._archive = archive
        self._info = info
        # Not a method of this object: the cycle would keep files open until collected.
        self._cursors = Cursors(partial(_Stream, archive, info, header.size_bytes))
        self._whole: Array | None = None
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop.

        Raises:
            SampleError: the member is damaged or cut off.
        """
        with self._lock:
            try:
                if self._header.fortran_order:
                    return self._read_fortran()[start:stop].copy(order="C")
                return self._read_rows(start, stop)
            except _DAMAGE as error:
                self._cursors.clear()
                _refuse_damaged(self._where, error)

    def _read_rows(self, start: int, stop: int) -> Array:
        if not self.shape:
            start, stop = 0, 1
        out: Array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        cursor = self._cursors.before(start)
        row_bytes = self._header.nbytes // (self.shape[0] or 1 if self.shape else 1)
        cursor.skip((start - cursor.position) * row_bytes)
        if not cursor.fill(out):
            raise EOFError("the data ends early")
        cursor.position = stop
        return out if self.shape else out[0, ...]

    def _read_fortran(self) -> Array:
        # Column-major data holds a row's values far apart: it can only be read whole.
        if self._whole is None:
            with self._archive.open(self._info) as stream:
                self._whole = np.lib.format.read_array(stream, allow_pickle=False)
        return self._whole


def _refuse_damaged(where: str, error: Exception) -> NoReturn:
    raise SampleError(
        f"{where}: cannot be read, damaged or cut off ({error}).",
        "Copy or save the file again.",
        code="QD-SAMPLES-DAMAGED",
    ) from error
