"""Arrays that are wanted again, in a temporary file that lives as long as they do."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import IO

import numpy as np

from qdebug.types import Array


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
