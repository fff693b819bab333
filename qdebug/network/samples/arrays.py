"""Arrays of samples that any reader may give, and what readers of files share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from qdebug.network.samples.samples import SampleArray
from qdebug.types import Array


class ArrayInMemory:
    """An array that is there already."""

    def __init__(self, array: Array) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[np.generic] = array.dtype
        self._array = array

    def read(self, start: int, stop: int) -> Array:
        """A copy of rows start to stop."""
        return np.array(self._array[start:stop] if self.shape else self._array, order="C")


class ComputedRows:
    """An array of which `row` computes each row when it is read."""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[np.generic], row: Callable[[int], Array]
    ) -> None:
        self.shape, self.dtype, self._row = shape, dtype, row

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop."""
        numbers = range(self.shape[0])[start:stop]
        return np.stack([self._row(number) for number in numbers])


def read_all(array: SampleArray) -> Array:
    """All of an array of any rank, 0 included."""
    return array.read(0, array.shape[0] if array.shape else 0)


class Cursor(Protocol):
    """A reader that goes forward only, or best."""

    def tell(self) -> int:
        """Where it is."""


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
        ready = [cursor for cursor in self._cursors if cursor.tell() <= position]
        if ready:
            cursor = max(ready, key=lambda each: each.tell())
            self._cursors.remove(cursor)
        else:
            cursor = self._open()
            del self._cursors[: len(self._cursors) - self._keep + 1]
        self._cursors.append(cursor)
        return cursor

    def clear(self) -> None:
        """Forgets every cursor, so that the next read starts afresh."""
        self._cursors.clear()
