"""`script.py:function`, Polygraphy's `load_data()` convention: an iterable of feeds.

The function takes no arguments and returns feeds, each a dict of names to arrays:
- a generator function is called again for every pass over the samples, so memory holds one feed;
  it must give the same feeds each time and must end (or be cut by `--samples`);
- a list or another iterable object is called for once and kept, and iterated again.
The script's directory is put on `sys.path`, as `python script.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.model.samples.arrays import Cursors
from qdebug.types import Array, Feeds
from qdebug.userfile import function_of, last_line, load_file, raising_line

DEFAULT_FUNCTION = "load_data"


def split_spec(spec: str) -> tuple[Path, str] | None:
    """The script and the function that `spec` names, or None when it names no script."""
    script, colon, function = spec.rpartition(":")
    if colon and script.endswith(".py"):
        return Path(script), function or DEFAULT_FUNCTION
    return (Path(spec), DEFAULT_FUNCTION) if spec.endswith(".py") else None


def open_script(path: Path, function: str) -> ScriptFeeds:
    """The feeds that a function of a script gives.

    Raises:
        SampleError: the script fails, or has no such function.
    """
    module = load_file(path, "", SampleError)
    name = f"{path}:{function}"
    return ScriptFeeds(function_of(module, function, name, "", SampleError), path, name)


class ScriptFeeds:
    """Feeds of a user's function, in its order."""

    def __init__(self, function: Callable[[], Any], path: Path, name: str) -> None:
        self._function = function
        self._path = path
        self._name = name
        self._kept: Iterable[Any] | None = None
        self._passes = Cursors(self._start)

    def read(self, index: int) -> Feeds | None:
        """Feed `index`; an earlier one than the last calls the function again.

        Raises:
            SampleError: the function raised, or gave something else than dicts of arrays.
        """
        current = self._passes.before(index)
        try:
            while current.position < index and current.take() is not None:
                pass
            feed = current.take()
        except Exception as error:
            self._passes.clear()
            raise _failed(self._name, error, self._path) from error
        return None if feed is None else self._arrays(feed.value, index)

    def where(self, index: int) -> str:
        """The function and the number of the feed."""
        return f"{self._name}: feed {index}"

    def _start(self) -> _Pass:
        if self._kept is not None:
            return _Pass(iter(self._kept))
        try:
            result = self._function()
            iterator = iter(result)
        except Exception as error:
            raise _failed(self._name, error, self._path) from error
        if iterator is not result:
            self._kept = result
        return _Pass(iterator)

    def _arrays(self, feed: Any, index: int) -> Feeds:
        if not isinstance(feed, Mapping):
            raise SampleError(
                f"{self.where(index)} is {_a(feed)}, not a dict.",
                "Yield one dict of input names to arrays per feed.",
            )
        return {
            str(name): self._array(value, f"{self.where(index)}: '{name}'")
            for name, value in feed.items()
        }

    def _array(self, value: Any, name: str) -> Array:
        try:
            array: Array = np.asarray(value)
        except Exception as error:  # tensors of other libraries raise what they like
            raise _failed(name, error, self._path) from error
        if array.dtype.hasobject:
            raise SampleError(f"{name} is {_a(value)}, not a numeric array.", "Yield numpy arrays.")
        return array


class _Feed:
    """A box, so that a feed that is None is not taken for the end."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Pass:
    """One pass over the feeds."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.position = 0
        self._iterator = iterator

    def take(self) -> _Feed | None:
        """The next feed, or None at the end."""
        try:
            feed = _Feed(next(self._iterator))
        except StopIteration:
            return None
        self.position += 1
        return feed


def _a(value: object) -> str:
    return f"of type {type(value).__name__}"


def _failed(name: str, error: Exception, script: Path) -> SampleError:
    return SampleError(f"{name} failed: {last_line(error)}", raising_line(error, script))
