"""`.npy` files, read row by row: one with all samples, or one for each feed or input."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file
from qdebug.network.samples.arrays import Cursors, read_all
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feed_files import FeedFiles, files_in
from qdebug.network.samples.matching import find_names
from qdebug.network.samples.samples import SampleArray, Source
from qdebug.types import Array, TensorSpec


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """All samples of the model's only input: an array that is named after the file.

    Raises:
        SampleError: not `.npy` data, truncated, or a pickle.
    """
    return _named(path)


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source | None:
    """All samples of each input, in files that are called as the inputs; where the only input is no
    file's name, a feed in each file."""
    files = files_in(path, ".npy")
    if not files:
        return None
    found = find_names([file.stem for file in files], inputs)
    if found or len(inputs) > 1:
        # With several inputs the names must fit; `match_names` says which one is missing.
        return {n: a for file in files for n, a in _named(file).items()}
    if len(files) == 1:
        return _named(files[0])
    return FeedFiles(files, lambda file: {inputs[0].name: read_all(open_array(file))})


@dataclass(frozen=True)
class Header:
    """What a `.npy` header says; `size_bytes` is the header's own size."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran_order: bool
    size_bytes: int


def read_header(stream: IO[bytes], where: str, held: int) -> Header:
    """Reads the header of an array of which `held` bytes are there, and leaves the stream at the
    data.

    Raises:
        SampleError: not `.npy` data, or cut off, or an array of Python objects (a pickle).
    """
    with reading(where, "Save it again with `numpy.save`."):
        forms = np.lib.format
        version = forms.read_magic(stream)
        read = forms.read_array_header_1_0 if version == (1, 0) else forms.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        promised = math.prod(shape) * dtype.itemsize
        there = held - stream.tell()
        if any(size < 0 for size in shape) or there < promised:
            raise EOFError(f"its header promises {promised} bytes of data, {there} are there")
    if dtype.hasobject:
        raise SampleError(
            f"{where}: holds Python objects (a pickle), which qdebug does not load.",
            "Save a plain numeric array; rows of unequal length need one file each.",
            code="QD-SAMPLES-OBJECTS",
        )
    return Header(shape, dtype, fortran, stream.tell())


class StoredArray:
    """An array in a file, of which rows are read when they are asked for, from several threads if
    need be. Of a compressed one, reading in order is streaming; going back starts over.

    Read, not mapped: what was touched of a mapping counts as memory of the process, which would
    grow with the number of samples.
    """

    def __init__(
        self, open_stream: Callable[[], Any], offset: int, header: Header, where: str
    ) -> None:
        """`offset` is that of the data in the stream."""
        self.shape, self.dtype = header.shape, header.dtype
        self._fortran, self._offset, self._where = header.fortran_order, offset, where
        self._streams = Cursors(open_stream)
        self._whole: Array | None = None
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop. A Fortran-ordered array has no rows in its file: it is read whole.

        Raises:
            SampleError: the data are damaged or cut off.
        """
        first, last, _ = slice(start, stop).indices(self.shape[0]) if self.shape else (0, 1, 1)
        with self._lock, reading(self._where):
            if not self._fortran:
                return self._values(
                    first, (max(0, last - first) * bool(self.shape), *self.shape[1:])
                )
            if self._whole is None:
                self._whole = self._values(0, self.shape[::-1]).T
            return self._whole[first:last].copy(order="C")

    def _values(self, first: int, shape: tuple[int, ...]) -> Array:
        out: Array = np.empty(shape if self.shape else (), self.dtype)
        at = self._offset + first * math.prod(self.shape[1:]) * self.dtype.itemsize
        try:
            stream = self._streams.before(at)
            stream.seek(at)
            if out.nbytes and stream.readinto(out.reshape(-1).view(np.uint8).data) < out.nbytes:
                raise EOFError("the data end early")
        except Exception:
            self._streams.clear()
            raise
        return out


def open_array(path: Path) -> StoredArray:
    """Opens a `.npy` file.

    Raises:
        SampleError: not `.npy` data, truncated, or a pickle.
    """
    with open_file(path) as stream:
        header = read_header(stream, str(path), path.stat().st_size)
    return StoredArray(partial(open_file, path), header.size_bytes, header, str(path))


def _named(path: Path) -> dict[str, SampleArray]:
    return {path.stem: open_array(path)}
