"""The file of `qdebug.capture`: what a framework's module gave for some samples, written batch by
batch, with a digest of each sample and what is known of the module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from qdebug.errors import StoreError
from qdebug.outputfiles import check_new
from qdebug.types import Array, Feeds

DIGESTS = "qdebug.samples"
"""The array of the samples' digests, uint8 [samples, 32]."""
FACTS = "qdebug.module"
"""The array of the module's facts: JSON as bytes, uint8 [1, bytes]."""


def digests_of(feeds: Feeds, count: int) -> npt.NDArray[np.uint8]:
    """SHA-256 of the inputs of each sample, uint8 [samples, 32]: over those of the single inputs,
    sorted, since a framework may call its inputs otherwise and take them in another order."""
    rows = []
    for row in range(count):
        each = (np.ascontiguousarray(_row(a, row, count)) for a in feeds.values())
        parts = sorted(hashlib.sha256(f"{a.dtype}".encode() + a.tobytes()).digest() for a in each)
        rows.append(np.frombuffer(hashlib.sha256(b"".join(parts)).digest(), np.uint8))
    return np.stack(rows)


def _row(array: Array, row: int, count: int) -> Array:
    if not array.ndim or len(array) % count:
        return array
    size = len(array) // count
    return array[row * size : (row + 1) * size]


class CaptureWriter:
    """Writes arrays, samples first, a batch at a time; memory holds one batch."""

    def __init__(self, path: str, *, force: bool = False) -> None:
        """Raises StoreError: it cannot be written, or exists and is not to be replaced."""
        check_new(path, "path", force=force)
        try:
            self._file = h5py.File(path, "w")
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be written ({error})", code="QD-STORE-OUTPUT-PATH"
            ) from error
        self.path = Path(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is not None:
            self.path.unlink(missing_ok=True)

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Add the rows of a batch; the first one tells which arrays there are.

        Raises:
            StoreError: another batch had other arrays, or of another shape.
        """
        for name, array in arrays.items():
            if name not in self._file:
                shape = (None, *array.shape[1:])
                self._file.create_dataset(name, data=array, maxshape=shape, chunks=True)
                continue
            stored = self._file[name]
            if stored.shape[1:] != array.shape[1:]:
                raise StoreError(
                    f"{self.path}: '{name}' is of shape {list(array.shape[1:])} for some samples "
                    f"and {list(stored.shape[1:])} for others",
                    "Capture samples of one shape.",
                    code="QD-STORE-CAPTURE",
                )
            start = len(stored)
            stored.resize(start + len(array), axis=0)
            stored[start:] = array

    def drop(self, names: Iterable[str]) -> None:
        """Take out the arrays of these names, as far as they are there."""
        for name in names:
            if name in self._file:
                del self._file[name]

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Keep what is known of the module."""
        self._file[FACTS] = np.frombuffer(json.dumps(facts).encode(), np.uint8)[None]
