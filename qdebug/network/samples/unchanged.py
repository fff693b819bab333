"""Sample files stay as they were when they were opened, or reading them is an error.

A file that is cut off or written anew meanwhile would give samples of two states, and HDF5 gives
zeros for what is no longer there: figures of both look like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.samples import SampleArray
from qdebug.types import Array


class Unchanged:
    """Files, and the size, the time of the last change and the identity that each has now.

    Raises:
        OSError: one of them is not there.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._stamps = {file: _stamp(file) for file in files}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Guard one read of the files.

        Raises:
            SampleError: one was changed since they were opened, which also explains whatever else
                went wrong in the block.
        """
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()

    def check(self) -> None:
        """Look at the files again.

        Raises:
            SampleError: one of them is not as it was.
        """
        for file, before in self._stamps.items():
            try:
                now = _stamp(file)
            except OSError as error:
                raise SampleError(
                    f"{file}: cannot be read any more ({error}).",
                    "Leave the data in place.",
                    code="QD-SAMPLES-DAMAGED",
                ) from error
            if now != before:
                sizes = f" from {before[0]} to {now[0]} bytes" if now[0] != before[0] else ""
                raise SampleError(
                    f"{file}: was changed{sizes} while it was read.",
                    "Wait until the program that writes it has ended, and repeat the command.",
                    code="QD-SAMPLES-CHANGED",
                )


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


class UnchangedArray:
    """An array of files that must stay as they are."""

    def __init__(self, array: SampleArray, files: Unchanged) -> None:
        self._array, self._files = array, files

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole array's shape."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type as stored."""
        return self._array.dtype

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop.

        Raises:
            SampleError: as of the array; or its file was changed.
        """
        with self._files.reading():
            return self._array.read(start, stop)


def open_unchanged(
    path: Path, open_arrays: Callable[[Path], dict[str, SampleArray]]
) -> dict[str, SampleArray]:
    """The arrays of a file that must stay as it is.

    Raises:
        SampleError: as of `open_arrays`.
        OSError: the file is not there.
    """
    file = Unchanged([path])
    return {name: UnchangedArray(array, file) for name, array in open_arrays(path).items()}
