"""Feeds that Python code gives one by one, each a dict of names to arrays.

They come from `script.py:function` (Polygraphy's `load_data()` convention, without arguments), or
from an object in memory:
- a function, or any object that can be iterated again, is asked anew for every pass over the
  samples, so that memory holds one feed; it must give the same feeds each time and must end, or be
  cut by a number of samples;
- a generator or another iterator can be read only once: its feeds are kept in memory.
The script imports modules of its own folder, as `python script.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.arrays import Cursors
from qdebug.types import Array, Feeds
from qdebug.userfile import last_line, raising_line


class IteratedFeeds:
    """Feeds in the order of an iterable, which `start` gives anew for every pass."""

    def __init__(self, start: Callable[[], Any], name: str, path: Path | None = None) -> None:
        self._function, self._name, self._path = start, name, path
        self._kept: Iterable[Any] | None = None
        self._passes = Cursors(self._start)

    def read(self, index: int) -> Feeds | None:
        """Feed `index`; an earlier one than the last starts another pass.

        Raises:
            SampleError: the user's code raised, or gave something else than dicts of arrays.
        """
        current = self._passes.before(index)
        try:
            with self._running(self._name):
                while current.tell() < index and current.take() is not _END:
                    pass
                feed = current.take()
        except SampleError:
            self._passes.clear()
            raise
        if feed is _END:
            return None
        if not isinstance(feed, Mapping):
            raise SampleError(
                f"{self.where(index)} is of type {type(feed).__name__}, not a dict.",
                "Yield a dict of arrays by input name, such as {'input': array}.",
                code="QD-SAMPLES-FEEDS",
            )
        return {
            str(name): self._array(value, f"{self.where(index)}: '{name}'")
            for name, value in feed.items()
        }

    def where(self, index: int) -> str:
        """The iterable and the number of the feed."""
        return f"{self._name}: item {index}"

    def _start(self) -> _Pass:
        if self._kept is not None:
            return _Pass(iter(self._kept))
        with self._running(self._name):
            result = self._function()
            iterator = iter(result)
        if iterator is not result:
            self._kept = result
        return _Pass(iterator)

    def _array(self, value: Any, name: str) -> Array:
        with self._running(name):  # tensors of other libraries raise what they like
            array: Array = np.asarray(value)
        if array.dtype.hasobject:
            raise SampleError(
                f"{name} is of type {type(value).__name__}, not a numeric array.",
                "Yield numpy arrays.",
                code="QD-SAMPLES-OBJECTS",
            )
        return array

    @contextmanager
    def _running(self, name: str) -> Iterator[None]:
        """Run the user's code.

        Raises:
            SampleError: it raised.
        """
        try:
            yield
        except Exception as error:
            raise SampleError(
                f"{name} failed: {last_line(error)}",
                raising_line(error, self._path),
                code="QD-SAMPLES-FEEDS",
            ) from error


def feeds_of(given: Iterable[Any] | Callable[[], Iterable[Any]], name: str) -> IteratedFeeds:
    """The feeds of an object in memory, called `name` in messages. Nothing is read."""
    if callable(given):
        return IteratedFeeds(given, name)
    again = _Again(given) if isinstance(given, Iterator) else given
    return IteratedFeeds(lambda: again, name)


class _Again:
    """What an iterator gives, which is kept to be given again."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._kept = iterator, list[Any]()
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        for number in count():  # another pass may have gone on meanwhile
            if number == len(self._kept):
                if self._failure is not None:  # what failed is over, and not shorter
                    raise self._failure
                try:
                    feed = next(self._iterator, _END)
                except Exception as error:
                    self._failure = error
                    raise
                if feed is _END:
                    return
                self._kept.append(deepcopy(feed))  # it may fill one array again and again
            yield self._kept[number]


_END = object()
"""What a pass gives after its last feed, which may be None."""


class _Pass:
    """One pass over the feeds."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._taken, self._iterator = 0, iterator

    def tell(self) -> int:
        """How many feeds were taken."""
        return self._taken

    def take(self) -> Any:
        """The next feed, or _END."""
        feed = next(self._iterator, _END)
        self._taken += feed is not _END
        return feed
