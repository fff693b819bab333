"""Arrays in `.npy` and `.npz` files, read row by row."""

from __future__ import annotations

import lzma
import struct
import weakref
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Generic, NoReturn, Protocol, TypeVar

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file
from qdebug.model.samples.samples import SampleArray
from qdebug.types import Array


@dataclass(frozen=True)
class Header:
    """What a `.npy` header says; `size_bytes` is the header's own size."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran_order: bool
    size_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of array data."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def read_header(stream: IO[bytes], where: str) -> Header:
    """Reads the header and leaves the stream at the data.

    Raises:
        SampleError: not `.npy` data, or an array of Python objects (a pickle).
    """
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        _check_shape(shape)
    except Exception as error:  # numpy reads the header as Python: there is no end of kinds
        raise SampleError(
            f"{where}: not a readable .npy array, or cut off ({_line(error)}).",
            "Save it again with `numpy.save`.",
            code="QD-SAMPLES-DAMAGED",
        ) from error
    if dtype.hasobject:
        raise SampleError(
            f"{where}: holds Python objects (a pickle), which qdebug does not load.",
            "Save a plain numeric array; rows of unequal length need one file each.",
            code="QD-SAMPLES-OBJECTS",
        )
    return Header(shape, dtype, fortran, stream.tell())


def _check_shape(shape: tuple[int, ...]) -> None:
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")


def check_size(header: Header, held: int, where: str) -> None:
    """Check that the promised bytes are `held` behind the header.

    Raises:
        SampleError: there are fewer.
    """
    if held < header.nbytes:
        raise SampleError(
            f"{where}: truncated: its header promises {header.nbytes} bytes of data, "
            f"{max(held, 0)} are there.",
            "Copy or save the file again.",
            code="QD-SAMPLES-DAMAGED",
        )


class StoredArray:
    """An array that lies uncompressed in a file, from byte `offset`; rows are read when asked for.

    Read, not mapped: what was touched of a mapping counts as memory of the process, which would
    grow with the number of samples.
    """

    def __init__(self, path: Path, header: Header, offset: int) -> None:
        self.shape = header.shape
        self.dtype = header.dtype
        self._path, self._header, self._offset = path, header, offset

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop. A Fortran-ordered array has no rows in its file: it is read whole."""
        shape = self.shape
        if not shape or self._header.fortran_order or not self._header.nbytes:
            whole = self._values(0, int(np.prod(shape, dtype=object)))
            data = whole.reshape(shape, order="F" if self._header.fortran_order else "C")
            return np.array(data[start:stop] if shape else data, order="C")
        start, stop, _ = slice(start, stop).indices(shape[0])
        width = int(np.prod(shape[1:], dtype=object))
        rows = max(stop - start, 0)
        return self._values(start * width, rows * width).reshape((rows, *shape[1:]))

    def _values(self, first: int, count: int) -> Array:
        at = self._offset + first * self.dtype.itemsize
        if count == 0:
            return np.empty(0, self.dtype)
        found = np.fromfile(self._path, self.dtype, count, offset=at)
        if found.size < count:
            raise SampleError(
                f"{self._path}: truncated: {found.size} of {count} values are there.",
                "Copy or save the file again.",
                code="QD-SAMPLES-DAMAGED",
            )
        return found


def open_array(path: Path) -> StoredArray:
    """Opens a `.npy` file.

    Raises:
        SampleError: not `.npy` data, truncated, or a pickle.
    """
    with open_file(path) as stream:
        header = read_header(stream, str(path))
    check_size(header, path.stat().st_size - header.size_bytes, str(path))
    return StoredArray(path, header, header.size_bytes)


def open_npy(path: Path) -> dict[str, SampleArray]:
    """A lone `.npy`: one array, named after the file."""
    return {path.stem: open_array(path)}


def read_all(array: SampleArray) -> Array:
    """All of an array of any rank, 0 included."""
    return array.read(0, array.shape[0] if array.shape else 0)


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


class Cursor(Protocol):
    """A reader that can only go forward."""

    position: int


C = TypeVar("C", bound=Cursor)


class Cursors(Generic[C]):
    """A few open cursors over the same data.

    Going back opens a new one. More than one is kept because threads ask slightly out of order,
    which would otherwise restart the data at every batch.
    """

    def __init__(self, open_cursor: Callable[[], C], keep: int = 2) -> None:
        self._open = open_cursor
        self._keep = keep
        self._cursors: list[C] = []

    def before(self, position: int) -> C:
        """The cursor nearest to `position` from below; a new one when all are past it."""
        ready = [cursor for cursor in self._cursors if cursor.position <= position]
        if ready:
            cursor = max(ready, key=lambda each: each.position)
            self._cursors.remove(cursor)
        else:
            cursor = self._open()
            del self._cursors[: len(self._cursors) - self._keep + 1]
        self._cursors.append(cursor)
        return cursor

    def clear(self) -> None:
        """Forgets every cursor, so that the next read starts afresh."""
        self._cursors.clear()


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
    """A compressed member. Reading in order is streaming; going back starts over."""

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

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop.

        Raises:
            SampleError: the member is damaged or cut off.
        """
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


class ArrayInMemory:
    """An array that is there already."""

    def __init__(self, array: Array) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[np.generic] = array.dtype
        self._array = array

    def read(self, start: int, stop: int) -> Array:
        """A copy of rows start to stop."""
        return np.array(self._array[start:stop] if self.shape else self._array, order="C")
