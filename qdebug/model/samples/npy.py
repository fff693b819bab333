"""`.npy` data: the header, and arrays read from a file row by row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from qdebug.errors import SampleError
from qdebug.model.samples.base import SampleArray
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
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise SampleError(
            f"{where}: not a readable .npy array, or cut off ({_line(error)}).",
            "Save it again with `numpy.save`.",
        ) from error
    if dtype.hasobject:
        raise SampleError(
            f"{where}: holds Python objects (a pickle), which qdebug does not load.",
            "Save a plain numeric array; rows of unequal length need one file each.",
        )
    return Header(shape, dtype, fortran, stream.tell())


def check_size(header: Header, held: int, where: str) -> None:
    """Raises SampleError when fewer than the promised bytes are `held` behind the header."""
    if held < header.nbytes:
        raise SampleError(
            f"{where}: truncated: its header promises {header.nbytes} bytes of data, "
            f"{max(held, 0)} are there.",
            "Copy or save the file again.",
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
        return np.fromfile(self._path, self.dtype, count, offset=at)


def open_array(path: Path) -> StoredArray:
    """Opens a `.npy` file.

    Raises:
        SampleError: not `.npy` data, truncated, or a pickle.
    """
    with path.open("rb") as stream:
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
