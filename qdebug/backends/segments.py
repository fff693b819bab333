"""A model in segments, which are executed one after the other: of each its weights are in memory
only while it runs.

What ONNX Runtime made of the whole model is cut, not the model: optimized once, each segment is
executed as it is, so that results are those of the whole model to the bit, wherever the cuts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from qdebug.backends.base import Session
from qdebug.backends.segmentation import Segmentation
from qdebug.errors import BackendError
from qdebug.network.graph import reads_of
from qdebug.network.weights import place_of, without_graph
from qdebug.types import Array, Feeds, Skipped, Tensors

_UNKNOWN = 1 << 20
"""Bytes that a tensor counts whose size is not known: cuts go elsewhere."""


@dataclass(frozen=True)
class Segment:
    """A part of a model.

    Attributes:
        model: its encoding.
        needs: the tensors to feed.
        gives: its outputs.
    """

    model: bytes
    needs: tuple[str, ...]
    gives: tuple[str, ...]


Types = Mapping[str, np.dtype[np.generic]]


def segments_of(
    proto: onnx.ModelProto,
    outputs: Collection[str],
    places: Sequence[int],
    types_of: Callable[[bytes], Types],
) -> list[Segment]:
    """`proto` cut before the nodes at these places, in order; not where something crosses that
    numpy cannot hold.

    Args:
        outputs: those that are wanted.
        types_of: opens a segment, and gives the types of those of its outputs that numpy can hold.
    """
    cutter = _Cutter(proto, outputs)
    segments: list[Segment] = []
    start = 0
    last = len(proto.graph.node)
    for end in [*(place for place in places if 0 < place < last), last]:
        segment = cutter.segment(start, end)
        if not segment.gives:  # nobody reads what its nodes compute
            start = end
            continue
        types = types_of(segment.model)
        if end < last and not types.keys() >= set(segment.gives):
            continue
        cutter.known |= types
        segments.append(segment)
        start = end
    return segments


def sizes_of(proto: onnx.ModelProto) -> dict[str, int]:
    """The sizes of tensors in bytes, of one sample, as far as the model says."""
    found = {}
    for value in (*proto.graph.value_info, *proto.graph.output):
        kind = value.type.tensor_type
        if kind.elem_type and kind.HasField("shape"):
            items = math.prod(d.dim_value or 1 for d in kind.shape.dim)
            found[value.name] = items * helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
    return found


def places_for(
    proto: onnx.ModelProto, sizes: Mapping[str, int], asked: Segmentation, executions: int = 1
) -> list[int]:
    """Where to cut: before these nodes, in order.

    Args:
        sizes: of tensors, in bytes, as far as they are known: few should cross a cut.
        executions: in flight, each of which may be in another segment.
    """
    costs = _costs(proto)
    crossing = _crossing(proto, sizes)
    if asked.count is None:
        return _places(costs, crossing, asked.room / executions)
    low, high = 0.0, float(sum(sum(cost.values()) for cost in costs))
    for _ in range(40):  # the smallest room that takes no more segments
        middle = (low + high) / 2
        if len(_places(costs, crossing, middle)) < asked.count:
            high = middle
        else:
            low = middle
    return _places(costs, crossing, high)


def _places(costs: Sequence[Mapping[str, int]], crossing: Sequence[int], room: float) -> list[int]:
    """Cuts between which constants take no more than `room`, unless a single node does. Each is
    where the least crosses, in the second half of the room before it is full."""
    places: list[int] = []
    start, i, taken = 0, 0, 0
    held: set[str] = set()
    filled: list[int] = []  # by node from `start` on
    while i < len(costs):
        taken += sum(size for name, size in costs[i].items() if name not in held)
        held.update(costs[i])
        if taken <= room or i == start:
            filled.append(taken)
            i += 1
            continue
        late = [start + k + 1 for k, t in enumerate(filled) if t > room / 2] or [i]
        best = min(late, key=lambda place: (crossing[place], -place))
        places.append(best)
        start, i, taken = best, best, 0
        held, filled = set(), []
    return places


def _costs(proto: onnx.ModelProto) -> list[dict[str, int]]:
    """What each node reads of constants, in bytes by name; and a byte for itself."""
    sizes = {}
    for tensor in proto.graph.initializer:
        place = place_of(tensor)
        sizes[tensor.name] = place.length if place else int(tensor.ByteSize())
    return [
        {f"node {i}": 1} | {t: sizes[t] for t in reads_of(node) if t in sizes}
        for i, node in enumerate(proto.graph.node)
    ]


def _crossing(proto: onnx.ModelProto, sizes: Mapping[str, int]) -> list[int]:
    """How many bytes cross before each node."""
    nodes = proto.graph.node
    last = {t: i for i, node in enumerate(nodes) for t in reads_of(node)}
    ends: dict[int, int] = {}
    alive, found = 0, []
    for i, node in enumerate(nodes):
        found.append(alive)
        for tensor in node.output:
            if tensor in last:
                size = sizes.get(tensor, _UNKNOWN)
                alive += size
                ends[last[tensor]] = ends.get(last[tensor], 0) + size
        alive -= ends.get(i, 0)
    return found


class _Cutter:
    """Makes the segments of a model.

    Attributes:
        known: the types of what earlier segments give.
    """

    def __init__(self, proto: onnx.ModelProto, outputs: Collection[str]) -> None:
        graph = proto.graph
        self._proto = proto
        self._outputs = set(outputs)
        self._reads = [reads_of(node) for node in graph.node]
        self._last = {t: i for i, reads in enumerate(self._reads) for t in reads}
        self._constants = {t.name: t for t in graph.initializer}
        self._sparse = {t.values.name: t for t in graph.sparse_initializer}
        self._inputs = {v.name: v for v in graph.input}
        computed = {t for node in graph.node for t in node.output}
        self._passed = [t for t in outputs if t not in computed]
        """Outputs that are inputs or constants: the first segment gives them."""
        self.known: dict[str, np.dtype[np.generic]] = {}

    def segment(self, start: int, end: int) -> Segment:
        """The nodes from `start` to before `end`."""
        nodes = self._proto.graph.node[start:end]
        made = dict.fromkeys(t for node in nodes for t in node.output if t)
        passed = self._passed if start == 0 else []
        gives = [t for t in made if t in self._outputs or self._last.get(t, -1) >= end] + passed
        reads = dict.fromkeys(t for reads in self._reads[start:end] for t in reads)
        reads |= dict.fromkeys(passed)
        model = without_graph(self._proto)
        graph = model.graph
        graph.name = self._proto.graph.name or "segment"
        graph.node.extend(nodes)
        graph.initializer.extend(self._constants[t] for t in reads if t in self._constants)
        graph.sparse_initializer.extend(self._sparse[t] for t in reads if t in self._sparse)
        graph.input.extend(self._inputs[t] for t in reads if t in self._inputs)
        given = {*made, *self._inputs, *self._constants, *self._sparse}
        crossing = [t for t in reads if t in self.known and t not in given]
        for tensor in crossing:
            kind = helper.np_dtype_to_tensor_dtype(self.known[tensor])
            graph.input.append(helper.make_tensor_value_info(tensor, kind, None))
        graph.output.extend(onnx.ValueInfoProto(name=t) for t in gives)
        needs = [v.name for v in graph.input if v.name not in self._constants]
        return Segment(model.SerializeToString(), tuple(needs), tuple(gives))


class SegmentedSession:
    """See Session. Each execution opens one segment after the other, and closes it before the
    next; what later ones need is kept in between.

    Attributes:
        segments: in their order.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        opened: Callable[[bytes], Session],
        whole: Session,
    ) -> None:
        """`opened` opens a segment; `whole` is a session of the whole model, which is not kept."""
        self.segments = tuple(segments)
        self._opened = opened
        self._dtypes = dict(whole.dtypes)
        self._skipped = whole.skipped
        self._closed = False

    @property
    def dtypes(self) -> Types:
        """See Session."""
        return self._dtypes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """See Session."""
        return self._skipped

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        held: Tensors = dict(feeds)
        found: dict[str, Array] = {}
        for i, segment in enumerate(self.segments):
            if self._closed:
                raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
            with closing(self._opened(segment.model)) as session:
                made = session.run({name: held[name] for name in segment.needs if name in held})
            found |= {name: array for name, array in made.items() if name in self._dtypes}
            later = {name for other in self.segments[i + 1 :] for name in other.needs}
            held = {name: array for name, array in {**held, **made}.items() if name in later}
        return {name: found[name] for name in self._dtypes}

    def close(self) -> None:
        """See Session.close."""
        self._closed = True
