"""What was kept of each batch: in memory as far as there is room, the rest in a temporary file."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection, Iterator, MutableMapping
from dataclasses import dataclass
from typing import IO

import numpy as np

from qdebug.network.samples import Batch
from qdebug.types import Array, Tensors


@dataclass(frozen=True)
class Spilled:
    """Where in the file some arrays lie, one after the other."""

    offset: int
    arrays: int


class Spill:
    """Arrays of numbers, written once and read any number of times, from several threads."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def write(self, arrays: Collection[Array]) -> Spilled:
        """Put arrays into the file.

        Raises:
            OSError: the disk is full, or there is no folder to write to.
        """
        with self._lock:
            if self._file is None:
                # Unbuffered: what did not fit on the disk is not tried again by a later read.
                # It is closed with self.
                self._file = tempfile.TemporaryFile(buffering=0, prefix="qdebug-")  # noqa: SIM115
            offset = self._file.seek(0, os.SEEK_END)
            for array in arrays:
                np.lib.format.write_array(self._file, array, allow_pickle=False)
            return Spilled(offset, len(arrays))

    def read(self, spilled: Spilled) -> list[Array]:
        """Arrays that were written, in memory of their own."""
        with self._lock:
            assert self._file is not None
            self._file.seek(spilled.offset)
            read = np.lib.format.read_array
            return [read(self._file, allow_pickle=False) for _ in range(spilled.arrays)]


class KeptBatches(MutableMapping[Batch, Tensors]):
    """Tensors by batch, in the order in which they came. What goes to the file is read from there
    whenever it is asked for, from any thread."""

    def __init__(self, room_bytes: float) -> None:
        self._room = room_bytes
        self._kept: dict[Batch, Tensors | tuple[tuple[str, ...], Spilled]] = {}
        self._spill = Spill()

    def __setitem__(self, batch: Batch, tensors: Tensors) -> None:
        self._room -= sum(array.nbytes for array in tensors.values())
        self._kept[batch] = tensors
        are_numbers = all(np.asarray(array).dtype.kind in "biufc" for array in tensors.values())
        if self._room >= 0 or not are_numbers:
            return
        try:
            arrays = [np.ascontiguousarray(array) for array in tensors.values()]
            self._kept[batch] = (*tensors,), self._spill.write(arrays)
        except OSError:  # no room there: then it stays in memory
            return

    def __getitem__(self, batch: Batch) -> Tensors:
        kept = self._kept[batch]
        if not isinstance(kept, tuple):
            return kept
        names, spilled = kept
        return dict(zip(names, self._spill.read(spilled), strict=True))

    def __delitem__(self, batch: Batch) -> None:
        del self._kept[batch]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
