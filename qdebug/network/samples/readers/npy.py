"""`.npy` files, read row by row: one with all samples, or one for each feed or input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file
from qdebug.network.samples.arrays import read_all
from qdebug.network.samples.feed_files import FeedFiles, files_in
from qdebug.network.samples.matching import find_names
from qdebug.network.samples.samples import SampleArray, Source
from qdebug.types import Array, TensorSpec


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """All samples of the model's only input.

    Raises:
        SampleError: not `.npy` data, truncated, or a pickle.
    """
    return open_npy(path)


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source | None:
    """All samples of each input, in files that are called as the inputs; where the only input is no
    file's name, a feed in each file."""
    files = files_in(path, ".npy")
    if not files:
        return None
    found = find_names([file.stem for file in files], inputs)
    if found or len(inputs) > 1:
        # With several inputs the names must fit; `match_names` says which one is missing.
        return {n: a for file in files for n, a in open_npy(file).items()}
    if len(files) == 1:
        return open_npy(files[0])
    return FeedFiles(files, lambda file: {inputs[0].name: read_all(open_array(file))})


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


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
