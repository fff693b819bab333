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

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.arrays import Cursors
from qdebug.network.samples.samples import FeedSource
from qdebug.types import Array, Feeds
from qdebug.userfile import last_line, raising_line


class IteratedFeeds:
    """Feeds in the order of an iterable, which `start` gives anew for every pass."""

    def __init__(self, start: Callable[[], Any], name: str, path: Path | None = None) -> None:
        self._function = start
        self._path = path
        self._name = name
        self._kept: Iterable[Any] | None = None
        self._passes = Cursors(self._start)

    def read(self, index: int) -> Feeds | None:
        """Feed `index`; an earlier one than the last starts another pass.

        Raises:
            SampleError: the user's code raised, or gave something else than dicts of arrays.
        """
        current = self._passes.before(index)
        try:
            while current.tell() < index and current.take() is not _END:
                pass
            feed = current.take()
        except Exception as error:
            self._passes.clear()
            _refuse(self._name, error, self._path)
        return None if feed is _END else self._arrays(feed, index)

    def where(self, index: int) -> str:
        """The iterable and the number of the feed."""
        return f"{self._name}: item {index}"

    def _start(self) -> _Pass:
        if self._kept is not None:
            return _Pass(iter(self._kept))
        try:
            result = self._function()
            iterator = iter(result)
        except Exception as error:
            _refuse(self._name, error, self._path)
        if iterator is not result:
            self._kept = result
        return _Pass(iterator)

    def _arrays(self, feed: Any, index: int) -> Feeds:
        if not isinstance(feed, Mapping):
            raise SampleError(
                f"{self.where(index)} is {_a(feed)}, not a dict.",
                "Yield a dict of arrays by input name, such as {'input': array}.",
                code="QD-SAMPLES-FEEDS",
            )
        return {
            str(name): self._array(value, f"{self.where(index)}: '{name}'")
            for name, value in feed.items()
        }

    def _array(self, value: Any, name: str) -> Array:
        try:
            array: Array = np.asarray(value)
        except Exception as error:  # tensors of other libraries raise what they like
            _refuse(name, error, self._path)
        if array.dtype.hasobject:
            raise SampleError(
                f"{name} is {_a(value)}, not a numeric array.",
                "Yield numpy arrays.",
                code="QD-SAMPLES-OBJECTS",
            )
        return array


class KeptFeeds:
    """Feeds of a source that can be read only once and in order, kept to be read in any."""

    def __init__(self, source: FeedSource) -> None:
        self._source = source
        self._kept: list[Feeds] = []
        self._ended = False
        self._failure: SampleError | None = None
        self._lock = threading.Lock()

    def read(self, index: int) -> Feeds | None:
        """Feed `index`; reads the source as far as that.

        Raises:
            SampleError: as of the source, again at every later call.
        """
        with self._lock:
            while index >= len(self._kept) and not self._ended:
                self._keep_one()
            return self._kept[index] if index < len(self._kept) else None

    def where(self, index: int) -> str:
        """As of the source."""
        return self._source.where(index)

    def _keep_one(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            feed = self._source.read(len(self._kept))
        except SampleError as error:
            self._failure = error
            raise
        if feed is None:
            self._ended = True
            return
        # Copies: an iterator may fill one array again and again.
        self._kept.append({name: np.array(array) for name, array in feed.items()})


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


def _a(value: object) -> str:
    return f"of type {type(value).__name__}"


def _refuse(name: str, error: Exception, script: Path | None) -> NoReturn:
    raise SampleError(
        f"{name} failed: {last_line(error)}", raising_line(error, script), code="QD-SAMPLES-FEEDS"
    ) from error
