"""What a training framework computed on the same samples: stored arrays, or a function that runs
it."""

from __future__ import annotations

import inspect
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError, given_by
from qdebug.inmemory import InMemory
from qdebug.metrics.tasks.base import sample_axis
from qdebug.network.samples import FeedSource, SampleArray, Samples
from qdebug.network.samples.opening import open_source
from qdebug.network.samples.readers.python import split_spec
from qdebug.network.samples.samples import RawSamples
from qdebug.store.capture_file import DIGESTS, FACTS, digests_of
from qdebug.types import Array, Feeds
from qdebug.userfile import UserCodeProblem, function_of, last_line, load_file, raising_line
from qdebug.wording import counted, option

CODE = "QD-SAMPLES-FRAMEWORK"
_PROBLEM = UserCodeProblem(SampleError, CODE)

Read = Callable[[int, int, Feeds], dict[str, Array]]
"""The arrays of `count` samples from `start`, by the framework's names, samples first; it may run
the framework on these feeds."""


@dataclass(frozen=True)
class FrameworkArrays:
    """What a framework gave.

    Attributes:
        where: what it is called in messages.
        read: see Read.
        digests: of the inputs of each sample, uint8 [samples, 32]; None where none were kept.
        facts: what `qdebug.capture` kept of the module; empty of other arrays.
        left_out: why an array cannot be compared, by its name.
    """

    where: str
    read: Read
    digests: Array | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def check(self, start: int, feeds: Feeds, count: int) -> None:
        """Make sure that the arrays are of these samples.

        Raises:
            SampleError: they are of others, or in another order.
        """
        if self.digests is None:
            return
        for row, digest in enumerate(digests_of(feeds, count)):
            kept = self.digests[start + row]
            if np.array_equal(kept, digest):
                continue
            place = np.flatnonzero((self.digests == digest).all(axis=1))
            what = "is not among those" if not place.size else f"is sample {place[0]} of those"
            raise SampleError(
                f"{option('framework')}: {self.where}: sample {start + row} of {option('inputs')} "
                f"{what} that it was captured on.",
                "Capture the outputs of the same samples, prepared alike and in the same order."
                if not place.size
                else "Capture them in the order of the samples that are compared.",
                code=CODE,
            )


def open_framework(data: str, samples: Samples) -> FrameworkArrays:
    """What `framework` names, for these samples.

    Raises:
        SampleError: it cannot be read, or holds another number of samples.
    """
    named = None if isinstance(data, InMemory) else split_spec(data)
    with given_by("framework"):
        if named is not None:
            path, name = named
            function = function_of(load_file(path, _PROBLEM), name, data, _PROBLEM)
            if _takes_feeds(function):
                return FrameworkArrays(data, _running(function, data, path))
        source = data.value if isinstance(data, InMemory) else open_source(data, samples.inputs)
        if isinstance(source, Mapping):
            return _stored(data, dict(source), samples)
        if isinstance(source, Samples | RawSamples):
            raise SampleError(
                f"{data}: these are samples, not what a model makes of them.",
                "Give its outputs, as arrays by name.",
                code=CODE,
            )
        return FrameworkArrays(data, _by_feed(source, data))


def _takes_feeds(function: Callable[..., Any]) -> bool:
    """Whether it runs a model on given inputs, and does not give feeds of its own."""
    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False


def _running(function: Callable[..., Any], name: str, path: Path) -> Read:
    def read(_: int, count: int, feeds: Feeds) -> dict[str, Array]:
        try:
            returned = function(dict(feeds))
        except Exception as error:  # the user's code may raise anything
            raise SampleError(
                f"{name} raised {last_line(error)}", raising_line(error, path), code=CODE
            ) from error
        return {k: _samples_first(name, k, x, count) for k, x in named_arrays(returned).items()}

    return read


def named_arrays(returned: Any) -> dict[str, Array]:
    """What a model returned, by name; of a list, a tuple or one array by order. Tensors of PyTorch
    become arrays."""
    if isinstance(returned, Mapping):
        return {str(name): as_array(value) for name, value in returned.items()}
    several = isinstance(returned, list | tuple)
    return {f"output_{k}": as_array(x) for k, x in enumerate(returned if several else [returned])}


def as_array(value: Any) -> Array:
    """An array, of a tensor of PyTorch too, wherever that lies."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has none
            value = value.float()
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array


def _samples_first(where: str, name: str, array: Array, count: int) -> Array:
    """With the axis of the samples in front; rows that are a multiple of them are left to fit.

    Raises:
        SampleError: no axis is that of the samples.
    """
    axis = sample_axis([array.shape], [count])
    if axis is not None:
        return np.moveaxis(array, axis, 0)
    if not array.ndim or len(array) % count:
        raise SampleError(
            f"{where}: '{name}' has shape {list(array.shape)}, and there are {count} samples.",
            "Give arrays of which one axis is that of the samples, best the leading one.",
            code=CODE,
        )
    return array


@dataclass(frozen=True)
class _SamplesFirst:
    """An array whose samples lie on another axis than the leading one, read as if they lay there;
    see SampleArray."""

    array: SampleArray
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """With the axis of the samples in front."""
        rest = list(self.array.shape)
        return (rest.pop(self.axis), *rest)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type as stored."""
        return self.array.dtype

    def read(self, start: int, stop: int) -> Array:
        """Samples start to stop; the stored array is read whole."""
        whole = self.array.read(0, self.array.shape[0])
        return np.moveaxis(whole, self.axis, 0)[start:stop].copy()


def _stored(data: str, arrays: dict[str, SampleArray], samples: Samples) -> FrameworkArrays:
    facts: dict[str, Any] = {}
    text = arrays.pop(FACTS, None)
    if text is not None:
        try:
            facts = json.loads(np.asarray(text.read(0, 1), np.uint8).tobytes())
        except ValueError as error:
            raise SampleError(
                f"{data}: damaged: '{FACTS}' is no record of a module ({error}).",
                "Capture it again.",
                code=CODE,
            ) from error
    kept = arrays.pop(DIGESTS, None)
    digests = None if kept is None else kept.read(0, kept.shape[0])
    count = samples.count
    held: int | None = None  # they may be of more samples than are compared
    if digests is not None:
        held = len(digests)
    elif samples.spec.limit is None:
        held = count
    for name, array in arrays.items():
        axis = sample_axis([array.shape], [held]) if held is not None else None
        if axis:  # such as [time, samples, classes] of a recurrent network
            arrays[name] = _SamplesFirst(array, axis)
    lengths = {name: array.shape[0] if array.shape else 0 for name, array in arrays.items()}
    rows = held if held is not None else statistics.mode(lengths.values()) if lengths else 0
    fitting = {name: array for name, array in arrays.items() if lengths[name] == rows}
    if not fitting or rows < count or (rows > count and samples.spec.limit is None):
        name = next(iter(fitting or arrays), "")
        shape = f"'{name}' has shape {list(arrays[name].shape)}" if arrays else "it holds no arrays"
        raise SampleError(
            f"{data}: {shape}, and {counted(count, 'sample')} are compared.",
            "Give the framework's outputs for the samples that are compared, one row for each.",
            code=CODE,
        )
    left_out = {
        name: f"it has {counted(lengths[name], 'row')} for {counted(rows, 'sample')}"
        for name in arrays
        if name not in fitting
    }

    def read(start: int, count: int, _: Feeds) -> dict[str, Array]:
        return {name: as_array(array.read(start, start + count)) for name, array in fitting.items()}

    return FrameworkArrays(data, read, digests, facts, {**facts.get("left_out", {}), **left_out})


def _by_feed(source: FeedSource, where: str) -> Read:
    def read(start: int, count: int, _: Feeds) -> dict[str, Array]:
        feeds = [source.read(start + row) for row in range(count)]
        if any(feed is None for feed in feeds):
            raise SampleError(
                f"{where}: it has no outputs for sample {start + feeds.index(None)}.",
                "Give the outputs of every sample that is compared, one item for each.",
                code=CODE,
            )
        rows = [{k: as_array(v) for k, v in feed.items()} for feed in feeds if feed is not None]
        try:
            return {name: _joined([row[name] for row in rows]) for name in rows[0]}
        except (KeyError, ValueError) as error:
            raise SampleError(
                f"{where}: the outputs of samples {start} to {start + count - 1} differ in their "
                f"names or shapes ({error}).",
                "Give the same arrays for each sample.",
                code=CODE,
            ) from error

    return read


def _joined(arrays: list[Array]) -> Array:
    """The outputs of several samples: with a leading axis of one sample, or without."""
    has_axis = all(array.ndim and len(array) == 1 for array in arrays)
    joined: Array = np.concatenate(arrays) if has_axis else np.stack(arrays)
    return joined
