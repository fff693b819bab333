"""What a training framework computed on the same samples: stored arrays, or a function that runs
it."""

from __future__ import annotations

import inspect
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError, given_by
from qdebug.inmemory import InMemory
from qdebug.metrics.tasks.base import sample_axis
from qdebug.network.samples import FeedSource, SampleArray, Samples
from qdebug.network.samples.arrays import ArrayInMemory, read_all
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
        modules: names of arrays in the framework's order of execution, as `qdebug.capture` kept it.
        left_out: why an array cannot be compared, by its name.
    """

    where: str
    read: Read
    digests: Array | None = None
    modules: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def check(self, start: int, feeds: Feeds, count: int) -> None:
        """Make sure that the arrays are of these samples.

        Raises:
            SampleError: they are of others, or in another order.
        """
        if self.digests is None:
            return
        for row, digest in enumerate(digests_of(feeds, count), start):
            if np.array_equal(self.digests[row], digest):
                continue
            place = np.flatnonzero((self.digests == digest).all(axis=1))
            what = "is not among those" if not place.size else f"is sample {place[0]} of those"
            raise SampleError(
                f"{option('framework')}: {self.where}: sample {row} of {option('inputs')} {what} "
                "that it was captured on.",
                "Capture the outputs of the samples that are compared, prepared alike and in the "
                "same order.",
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
            function = function_of(load_file(named[0], _PROBLEM), named[1], data, _PROBLEM)
            if _takes_feeds(function):
                return FrameworkArrays(data, _running(function, data, named[0]))
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


def _running(function: Callable[..., Any], where: str, path: Path) -> Read:
    def read(_: int, count: int, feeds: Feeds) -> dict[str, Array]:
        try:
            returned = function(dict(feeds))
        except Exception as error:  # the user's code may raise anything
            raise SampleError(
                f"{where} raised {last_line(error)}", raising_line(error, path), code=CODE
            ) from error
        found = named_arrays(returned)
        for name, array in found.items():
            axis = sample_axis([array.shape], [count])
            if axis is not None:
                found[name] = np.moveaxis(array, axis, 0)
            elif not array.ndim or len(array) % count:
                raise SampleError(
                    f"{where}: '{name}' has shape {list(array.shape)}, and there are "
                    f"{counted(count, 'sample')}.",
                    "Give arrays of which one axis is that of the samples, best the leading one.",
                    code=CODE,
                )
        return found

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


def _stored(where: str, arrays: dict[str, SampleArray], samples: Samples) -> FrameworkArrays:
    """Arrays of all samples. They may be of more than are compared, where only the first are."""
    facts = _facts(where, arrays.pop(FACTS, None))
    kept = arrays.pop(DIGESTS, None)
    digests = None if kept is None else read_all(kept)
    count, limited = samples.count, samples.spec.limit is not None
    held = count if digests is None and not limited else None if digests is None else len(digests)
    for name, array in arrays.items():
        axis = sample_axis([array.shape], [held]) if held is not None else None
        if axis:  # such as [time, samples, classes] of a recurrent network
            arrays[name] = ArrayInMemory(np.moveaxis(read_all(array), axis, 0))
    rows = {name: array.shape[0] if array.shape else 0 for name, array in arrays.items()}
    held = held if held is not None else statistics.mode(rows.values()) if rows else 0
    fitting = {name: array for name, array in arrays.items() if rows[name] == held}
    if not fitting or held < count or (held > count and not limited):
        name = next(iter(fitting or arrays), "")
        shape = f"'{name}' has shape {list(arrays[name].shape)}" if arrays else "it holds no arrays"
        raise SampleError(
            f"{where}: {shape}, and {counted(count, 'sample')} are compared.",
            "Give the framework's outputs for the samples that are compared, one row for each.",
            code=CODE,
        )
    left_out = {
        name: f"it has {counted(rows[name], 'row')} for {counted(held, 'sample')}"
        for name in arrays
        if name not in fitting
    }

    def read(start: int, count: int, _: Feeds) -> dict[str, Array]:
        return {name: as_array(array.read(start, start + count)) for name, array in fitting.items()}

    left_out = {**facts.get("left_out", {}), **left_out}
    return FrameworkArrays(where, read, digests, facts.get("modules", ()), left_out)


def _facts(where: str, text: SampleArray | None) -> dict[str, Any]:
    """What `qdebug.capture` says of the modules; nothing of other arrays."""
    try:
        return {} if text is None else dict(json.loads(np.asarray(read_all(text)).tobytes()))
    except (ValueError, TypeError) as error:
        raise SampleError(
            f"{where}: damaged: '{FACTS}' is no record of a module ({error}).",
            "Capture it again.",
            code=CODE,
        ) from error


def _by_feed(source: FeedSource, where: str) -> Read:
    def read(start: int, count: int, _: Feeds) -> dict[str, Array]:
        rows = []
        for index in range(start, start + count):
            feed = source.read(index)
            if feed is None:
                raise SampleError(
                    f"{where}: it has no outputs for sample {index}.",
                    "Give the outputs of every sample that is compared, one item for each.",
                    code=CODE,
                )
            rows.append({name: as_array(value) for name, value in feed.items()})
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
