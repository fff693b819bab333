"""`.npy` data: the header, and arrays mapped from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

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


class MappedArray:
    """An array that lies uncompressed in a file, from byte `offset`; slices are copied out."""

    def __init__(self, path: Path, header: Header, offset: int) -> None:
        self.shape = header.shape
        self.dtype = header.dtype
        self._data: Array
        if header.nbytes:
            order: Literal["F", "C"] = "F" if header.fortran_order else "C"
            self._data = np.memmap(path, header.dtype, "r", offset, header.shape, order=order)
        else:  # an empty range cannot be mapped
            self._data = np.empty(header.shape, header.dtype)

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop, copied."""
        data = self._data[start:stop] if self._data.ndim else self._data
        return np.array(data, order="C")


def open_array(path: Path) -> MappedArray:
    """Maps a `.npy` file.

    Raises:
        SampleError: not `.npy` data, truncated, or a pickle.
    """
    with path.open("rb") as stream:
        header = read_header(stream, str(path))
    check_size(header, path.stat().st_size - header.size_bytes, str(path))
    return MappedArray(path, header, header.size_bytes)


def open_npy(path: Path) -> dict[str, SampleArray]:
    """A lone `.npy`: one array, named after the file."""
    return {path.stem: open_array(path)}


def read_all(array: SampleArray) -> Array:
    """All of an array of any rank, 0 included."""
    return array.read(0, array.shape[0] if array.shape else 0)


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
