"""The rows of one tensor in one role: a dataset, and beside it the rows that do not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qdebug.errors import StoreError
from qdebug.store.schema import (
    ATTR_MISSING,
    ATTR_RAGGED,
    FloatStorage,
    Role,
    ragged_group,
    row_attribute,
    row_form,
)
from qdebug.types import Array

MAX_CHUNK_BYTES = 1 << 30
"""HDF5 allows chunks below 4 GiB. One chunk per row was the fastest at any size measured."""

_STORABLE_KINDS = "fiub"


class TensorRows:
    """Writes rows in any order, also over each other; remembers which sample each row holds."""

    def __init__(self, group: Any, role: Role, first: Array, rows: int) -> None:
        """Create the dataset.

        Args:
            group: the tensor's h5py group.
            role: becomes the dataset's name.
            first: a storable() row; sets the shape and dtype of the dataset.
            rows: how many rows to declare; more are added as needed.
        """
        self._group = group
        self._role: Role = role
        self._shape = first.shape
        self._dtype = first.dtype
        self._fill: float | int = math.nan if first.dtype.kind == "f" else 0
        self._sample_of: dict[int, int] = {}
        self._ragged: set[int] = set()
        chunk = (1, *chunk_shape(first.shape, first.itemsize, MAX_CHUNK_BYTES))
        self._direct = chunk[1:] == first.shape
        self._origin = (0,) * first.ndim
        self._rows = max(1, rows)
        group.attrs[row_attribute(role)] = row_form(first.dtype, first.shape)
        self._dataset = group.create_dataset(
            role,
            (self._rows, *first.shape),
            first.dtype,
            # A fixed axis of 0 cannot hold a chunk of 1.
            maxshape=(None, *(size or None for size in first.shape)),
            chunks=chunk,
            fillvalue=self._fill,
        )

    def put(self, row: int, sample: int, array: Array) -> None:
        """Write one storable() row of a sample.

        Raises:
            OSError: the disk refused.
        """
        if array.shape != self._shape or array.dtype != self._dtype:
            self._put_ragged(row, array)
        else:
            self._drop_ragged(row)
            self._grow(row)
            if self._direct:
                # Past HDF5's type conversion and chunk cache: twice as fast as dataset[row] = x.
                raw = array if array.ndim else array.reshape(1)
                self._dataset.id.write_direct_chunk((row, *self._origin), raw)
            elif array.size:
                self._dataset[row] = array
        self._sample_of[row] = sample

    def finish(self, samples: Sequence[int]) -> None:
        """Record which rows are ragged or missing, and trim the dataset to the rows in use.

        Args:
            samples: the sample each row belongs to in the end. A row that was last written for
                another sample is cleared, and counts as missing.
        """
        for row in range(len(samples)):
            if row in self._sample_of and self._sample_of[row] != samples[row]:
                self._drop_ragged(row)
                self._clear(row)
                del self._sample_of[row]
        if len(samples) != self._rows:
            self._dataset.resize(len(samples), axis=0)
        missing = set(range(len(samples))) - self._sample_of.keys()
        for attribute, which in ((ATTR_RAGGED, self._ragged), (ATTR_MISSING, missing)):
            if which:
                self._dataset.attrs[attribute] = np.array(sorted(which), np.int64)

    def _put_ragged(self, row: int, array: Array) -> None:
        self._drop_ragged(row)
        self._grow(row)
        if row in self._sample_of:
            self._clear(row)
        apart = self._group.require_group(ragged_group(self._role))
        apart.create_dataset(str(row), data=array)
        self._ragged.add(row)

    def _drop_ragged(self, row: int) -> None:
        if row in self._ragged:
            del self._group[ragged_group(self._role)][str(row)]
            self._ragged.discard(row)

    def _clear(self, row: int) -> None:
        self._dataset[row] = np.full(self._shape, self._fill, self._dtype)

    def _grow(self, row: int) -> None:
        if row >= self._rows:
            # By doubling, to change the file's index rarely; finish() trims the rest.
            self._rows = max(row + 1, 2 * self._rows)
            self._dataset.resize(self._rows, axis=0)


def storable(name: str, array: Array, storage: FloatStorage) -> Array:
    """The array as it is stored: contiguous, of the machine's byte order, floats narrowed.

    "float16" narrows floats to half the bits unless a finite value would become infinite;
    "float32" leaves every dtype as it was captured.

    Raises:
        StoreError: text, complex numbers or another dtype that run files cannot hold.
    """
    if array.dtype.kind not in _STORABLE_KINDS:
        raise StoreError(
            f"Tensor '{name}': arrays of {array.dtype} cannot be stored.",
            "Leave this tensor out of the comparison.",
            code="QD-STORE-DTYPE",
        )
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
    if storage == "float16" and array.dtype.kind == "f" and array.itemsize > 2:
        return _narrowed(array)
    return array


def _narrowed(array: Array) -> Array:
    """As float16; as it is if a finite value would become infinite."""
    with np.errstate(over="ignore", under="ignore"):
        narrow = array.astype(np.float16)
    # isinf() on float16 takes longer than the narrowing itself; the bits say as much.
    infinite = (narrow.view(np.uint16) & 0x7FFF) == 0x7C00
    return narrow if np.isinf(array[infinite]).all() else array


def chunk_shape(shape: tuple[int, ...], itemsize: int, limit: int) -> tuple[int, ...]:
    """One row if it fits `limit` bytes, else the longest run of its innermost axes that does."""
    chunk = [max(1, size) for size in shape]
    for axis in range(len(chunk)):
        inner = math.prod(chunk[axis + 1 :]) * itemsize
        if chunk[axis] * inner <= limit:
            break
        chunk[axis] = max(1, limit // inner)
    return tuple(chunk)
