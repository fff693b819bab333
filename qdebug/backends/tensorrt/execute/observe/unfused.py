"""Which ONNX tensor lies between two kernels of an engine: suggested by metadata, proved by
numbers.

Neither the names nor the shapes that TensorRT gives to such tensors can be relied on. Seen on a
CNN: the output of the kernel of `/stem/conv/Conv` was called
`/blocks/blocks.0/depthwise/act/Clip_output_0`. Seen on a transformer: [batch · tokens, channels]
held the tokens outermost, and a product of INT8 matrices came before its scale was applied. So a
tensor counts as known when one execution on noise shows that it holds what the simulation computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from qdebug.engine_info.layers import EngineLayer
from qdebug.network.graph import Graph
from qdebug.types import Array, Skipped

RESEMBLES_DB = 40.0
"""SQNR from which on two arrays are taken for the same tensor. Unrelated ones are around 0 dB; a
tensor and the same less its mean, which a LayerNormalization leaves, were at 24 dB."""

CLEARLY_DB = 6.0
"""By how much the best match must beat the next."""

_MOST_AXES = 5


@dataclass(frozen=True)
class Place:
    """Where a tensor of the model is found in what an engine reports.

    Attributes:
        tensor: of the model.
        order: its axes, from the outermost in memory to the innermost.
    """

    tensor: str
    order: tuple[int, ...]

    def restore(self, found: Array, shape: Sequence[int]) -> Array:
        """The tensor in the model's shape, from the engine's array."""
        stored = found.reshape([shape[axis] for axis in self.order])
        return np.ascontiguousarray(stored.transpose(np.argsort(self.order)))


def candidates(layers: Sequence[EngineLayer], graph: Graph) -> dict[str, tuple[str, ...]]:
    """By the engine's name, the tensors of the model that it may be.

    A kernel completes the nodes that no later kernel names. Of what they compute it must write what
    something else reads.
    """
    last = {node: k for k, layer in enumerate(layers) for node in layer.onnx_nodes}
    found = {}
    for k, layer in enumerate(layers):
        done = {node for node in layer.onnx_nodes if last[node] == k and node in graph.by_name}
        written = tuple(_boundary(graph, done))
        for tensor in layer.outputs:
            if written and tensor.name not in graph.outputs:
                found[tensor.name] = written
    return found


def _boundary(graph: Graph, nodes: set[str]) -> Iterator[str]:
    """What `nodes` compute and others read, or the model returns."""
    for name in nodes:
        for tensor in graph.by_name[name].outputs:
            readers = graph.consumers.get(tensor, ())
            if tensor and (tensor in graph.outputs or any(c.name not in nodes for c in readers)):
                yield tensor


def place_tensors(
    options: Mapping[str, Sequence[str]],
    heard: Mapping[str, Array],
    simulated: Mapping[str, Array],
) -> dict[str, Place]:
    """The place of each tensor of the engine that is known beyond doubt, by the engine's name.

    Args:
        options: see `candidates`.
        heard: one execution's tensors, by the engine's names.
        simulated: the same execution's tensors of the model.
    """
    found: dict[str, Place] = {}
    taken: set[str] = set()
    for name, tensors in options.items():
        if name in heard:
            place = _place(heard[name], {t: simulated[t] for t in tensors if t in simulated})
            if place is not None and place.tensor not in taken:
                found[name] = place
                taken.add(place.tensor)
    return found


@dataclass(frozen=True)
class _Match:
    place: Place
    stored: Array
    likeness_db: float

    def clearer_than(self, other: _Match) -> bool:
        """Whether this is the one, and `other` is not; two tensors that hold the same are fine."""
        if self.place.tensor != other.place.tensor and np.array_equal(self.stored, other.stored):
            return True
        return self.likeness_db - other.likeness_db >= CLEARLY_DB


def _place(heard: Array, tensors: Mapping[str, Array]) -> Place | None:
    fitting = {t: a for t, a in tensors.items() if a.dtype == heard.dtype and a.size == heard.size}
    for orders in (lambda shape: [tuple(range(len(shape)))], _permuted):
        matches = []
        for tensor, array in fitting.items():
            for order in orders(array.shape):
                stored = array.transpose(order).reshape(-1)
                likeness = _likeness_db(stored, heard.reshape(-1))
                matches.append(_Match(Place(tensor, order), stored, likeness))
        best = max(matches, key=lambda m: m.likeness_db, default=None)
        if best is not None and best.likeness_db >= RESEMBLES_DB:
            clear = all(best.clearer_than(m) for m in matches if m is not best)
            return best.place if clear else None
    return None


def _permuted(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All orders of the axes that differ; axes of size 1 have no place."""
    long = [axis for axis, size in enumerate(shape) if size != 1]
    short = tuple(axis for axis, size in enumerate(shape) if size == 1)
    if len(long) <= _MOST_AXES:
        for order in permutations(long):
            yield (*order, *short)


def _likeness_db(expected: Array, found: Array) -> float:
    """SQNR in dB; -inf where either is not finite."""
    a, b = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(all="ignore"):
        signal, noise = float(a @ a), float(np.square(a - b).sum())
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal == 0:
        return -math.inf
    return math.inf if noise == 0 else 10 * math.log10(signal / noise)


def not_observed(wanted: Iterable[str], places: Mapping[str, Place]) -> tuple[Skipped, ...]:
    """Those of `wanted` that are not among the engine's tensors."""
    seen = {place.tensor for place in places.values()}
    reason = "fused: no tensor between two kernels of the engine holds it"
    return tuple(Skipped(t, reason) for t in wanted if t not in seen)
