"""Of what parts an output consists: boxes and scores that one Concat joins, say.

An output of a detector often holds quantities of unlike scale side by side. One ratio of energies
over all of them is that of the largest quantity: boxes of up to 640 hide scores of at most 1.

The parts are found by structure. Behind operations that only move values, the inputs of the last
Concat are parts. A Concat of equal branches, as the levels of a feature pyramid are, makes no parts
of its own: where each level is a Concat of the same parts, these are pooled over the levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.types import Array

_MOST_PARTS = 16
"""A Concat of more is a sequence, not a few quantities."""
_MOST_STEPS = 32
"""How far back branches are compared."""
_SAME_PLACES = frozenset(
    {"Identity", "Cast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
)
_RESHAPES = frozenset({"Reshape", "Flatten"})
Shape = Sequence[int | str | None]


@dataclass(frozen=True)
class Part:
    """A part of an output.

    Attributes:
        branch: the tensor that the Concat reads; of several levels the first level's.
        first, last: its places along the axis of the parts.
    """

    branch: str
    first: int
    last: int


@dataclass(frozen=True)
class OutputParts:
    """The parts of an output, two at the least, which lie along one axis and leave nothing out."""

    axis: int
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Of the axis."""
        return self.parts[-1].last + 1

    def of(self, array: Array) -> list[Array]:
        """The values of each part of an output."""
        before = (slice(None),) * self.axis
        return [array[(*before, slice(p.first, p.last + 1))] for p in self.parts]


def output_parts(graph: Graph) -> dict[str, OutputParts]:
    """Of each float output that consists of parts. An axis of samples, the first, has none."""
    found = {t: joined_parts(graph, t) for t in graph.outputs if graph.is_float(t)}
    return {tensor: parts for tensor, parts in found.items() if parts is not None}


def joined_parts(graph: Graph, tensor: str) -> OutputParts | None:
    """The parts of any tensor; None where it has none."""
    layout = _layout(graph, tensor)
    if layout is None or layout.axis < 1 or not 1 < len(layout.pieces) <= _MOST_PARTS:
        return None
    parts, start = [], 0
    for size, branch in layout.pieces:
        parts.append(Part(branch, start, start + size - 1))
        start += size
    return OutputParts(layout.axis, tuple(parts))


def shown_parts(graph: Graph, tensor: str) -> OutputParts | None:
    """The parts of a tensor that is an output, or becomes one by being moved; else None."""
    return joined_parts(graph, tensor) if _is_shown(graph, tensor) else None


def _is_shown(graph: Graph, tensor: str) -> bool:
    if tensor in graph.outputs:
        return True
    readers = [n for n in graph.consumers.get(tensor, ()) if _moves(n) and not n.domain]
    return any(_is_shown(graph, n.outputs[0]) for n in readers if n.inputs[0] == tensor)


@dataclass(frozen=True)
class _Layout:
    """Pieces along an axis, each with its size and the tensor it comes from."""

    axis: int
    pieces: tuple[tuple[int, str], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for size, _ in self.pieces)

    def cut(self, start: int, stop: int) -> _Layout:
        """What lies at these places."""
        pieces, begins = [], 0
        for size, branch in self.pieces:
            left = min(stop, begins + size) - max(start, begins)
            if left > 0:
                pieces.append((left, branch))
            begins += size
        return _Layout(self.axis, tuple(pieces))


def _layout(graph: Graph, tensor: str) -> _Layout | None:
    """Where the pieces of a tensor lie; None for one piece, and where that is not known."""
    node = graph.producers.get(tensor)
    if node is None or node.domain:
        return None
    if node.op_type == "Concat":
        return _of_concat(graph, node)
    before = _layout(graph, node.inputs[0]) if _moves(node) else None
    if before is None:
        return None
    if node.op_type == "Slice":
        return _sliced(graph, node, before)
    axis = _axis_behind(graph, node, before.axis)
    return None if axis is None else _Layout(axis, before.pieces)


def _moves(node: Node) -> bool:
    moving = {"Transpose", "Squeeze", "Unsqueeze", "Slice"} | _RESHAPES | _SAME_PLACES
    return node.op_type in moving


def _of_concat(graph: Graph, node: Node) -> _Layout | None:
    inputs, shape = [_plain(graph, t) for t in node.inputs], graph.shapes.get(node.outputs[0])
    if shape is None or any(t not in graph.producers for t in inputs):
        return None  # what is handed on unchanged, as a cache, is no part of the result
    if any(t in graph.initializers for t in inputs):
        return None
    axis = int(graph.attributes(node)["axis"]) % len(shape)
    layouts = [_layout(graph, t) for t in inputs]
    first = layouts[0]
    if first is not None and all(
        x is not None and x.axis == first.axis != axis and x.sizes == first.sizes for x in layouts
    ):
        return first  # levels, each of the same parts
    if _are_levels(graph, inputs, axis):
        return None
    pieces: list[tuple[int, str]] = []
    for tensor, layout in zip(inputs, layouts, strict=True):
        if layout is not None and layout.axis == axis:
            pieces += layout.pieces
            continue
        size = _size(graph, tensor, axis)
        if size is None:
            return None
        pieces.append((size, tensor))
    return _Layout(axis, tuple(pieces))


def _plain(graph: Graph, tensor: str) -> str:
    """The tensor whose values these are, before they were rounded or cast."""
    node = graph.producers.get(tensor)
    while node is not None and node.op_type in _SAME_PLACES and node.inputs[0]:
        tensor = node.inputs[0]
        node = graph.producers.get(tensor)
    return tensor


def _size(graph: Graph, tensor: str, axis: int) -> int | None:
    shape = graph.shapes.get(tensor)
    if shape is None or axis >= len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) and size > 0 else None


def _are_levels(graph: Graph, tensors: Sequence[str], axis: int) -> bool:
    """Whether these branches give the same quantity at other places: they compute alike, and what
    joins them is an axis of places, or they have the same weights."""
    if len(tensors) < 2:
        return True
    traced = [_traced(graph, t, axis) for t in tensors]
    first = traced[0]
    if any(x.operators != first.operators for x in traced):
        return False
    shared = first.weight is not None and all(x.weight == first.weight for x in traced)
    return shared or all(x.places for x in traced)


@dataclass(frozen=True)
class _Traced:
    """How a branch begins.

    Attributes:
        operators: from its end back to its last product of matrices.
        weight: of that.
        places: the axis is one of places, not of channels: it is merged from several axes, or is
            one that a convolution slides along.
    """

    operators: tuple[str, ...]
    weight: str | None
    places: bool


def _traced(graph: Graph, tensor: str, axis: int) -> _Traced:
    operators: list[str] = []
    at: int | None = axis
    node = graph.producers.get(tensor)
    while node is not None and len(operators) < _MOST_STEPS:
        if node.op_type not in _SAME_PLACES:
            operators.append(node.op_type)
        if node.op_type in QUANTIZABLE_OPS:
            places = at is None or (node.op_type in ("Conv", "ConvTranspose") and at >= 2)
            return _Traced(tuple(operators), node.inputs[1], places)
        if at is not None:
            at = _axis_before(graph, node, at)
        producers = (graph.producers.get(t) for t in node.inputs if t not in graph.initializers)
        node = next((p for p in producers if p is not None and p.op_type != "Constant"), None)
    return _Traced(tuple(operators), None, at is None)


def _axis_before(graph: Graph, node: Node, axis: int) -> int | None:
    """Which axis of what `node` reads becomes this one of what it writes; None where several do."""
    if node.op_type == "Transpose":
        return _permutation(graph, node)[axis]
    read, written = (graph.shapes.get(t) for t in (node.inputs[0], node.outputs[0]))
    if node.op_type in _RESHAPES:
        return None if read is None or written is None else _same_axis(written, read, axis)
    if node.op_type in ("Squeeze", "Unsqueeze") and read is not None:
        rank = len(read)
        return next((k for k in range(rank) if _axis_behind(graph, node, k) == axis), None)
    return axis


def _axis_behind(graph: Graph, node: Node, axis: int) -> int | None:
    """Where an axis of what `node` reads is in what it writes; None where it is merged."""
    if node.op_type in _SAME_PLACES:
        return axis
    if node.op_type == "Transpose":
        return _permutation(graph, node).index(axis)
    read, written = (graph.shapes.get(t) for t in (node.inputs[0], node.outputs[0]))
    if read is None or written is None:
        return None
    if node.op_type in _RESHAPES:
        return _same_axis(read, written, axis)
    given = _axes(graph, node)
    if given is None:
        return _same_axis(read, written, axis)
    if node.op_type == "Unsqueeze":
        added = {a % len(written) for a in given}
        return [k for k in range(len(written)) if k not in added][axis]
    dropped = {a % len(read) for a in given}
    return None if axis in dropped else axis - sum(a < axis for a in dropped)


def _axes(graph: Graph, node: Node) -> list[int] | None:
    attribute = graph.attributes(node).get("axes")
    if attribute is not None:
        return [int(a) for a in attribute]
    if len(node.inputs) < 2:
        return None
    constant = graph.constant(node.inputs[1])
    return None if constant is None else [int(a) for a in constant.reshape(-1)]


def _permutation(graph: Graph, node: Node) -> list[int]:
    rank = len(graph.shapes.get(node.inputs[0], graph.shapes.get(node.outputs[0], ())))
    return [int(k) for k in graph.attributes(node).get("perm", reversed(range(rank)))]


def _same_axis(read: Shape, written: Shape, axis: int) -> int | None:
    """Where a reshaped axis is; None where it is split, or merged with others."""
    for k, size in enumerate(written):
        before = _are_as_many(read[:axis], written[:k])
        behind = _are_as_many(read[axis + 1 :], written[k + 1 :])
        if size == read[axis] and isinstance(size, int) and size > 1 and (before or behind):
            return k
    return None


def _are_as_many(one: Shape, other: Shape) -> bool:
    if all(isinstance(d, int) for d in (*one, *other)):
        return math.prod(cast(Sequence[int], one)) == math.prod(cast(Sequence[int], other))
    return None not in one and tuple(one) == tuple(other)


def _sliced(graph: Graph, node: Node, layout: _Layout) -> _Layout | None:
    """What a Slice leaves; None where it is not known, or takes places in another order."""
    values = _slice_values(graph, node)
    shape = graph.shapes.get(node.inputs[0])
    if values is None or shape is None:
        return None
    for axis, start, stop, step in values:
        if axis % len(shape) != layout.axis:
            continue
        if step != 1:
            return None
        size = sum(layout.sizes)
        begin, end, _ = slice(start, stop).indices(size)
        layout = layout.cut(begin, end)
    return layout


def _slice_values(graph: Graph, node: Node) -> list[tuple[int, int, int, int]] | None:
    """Axis, start, stop and step of each axis that a Slice cuts."""
    attributes = graph.attributes(node)
    if "starts" in attributes:
        starts, stops = attributes["starts"], attributes["ends"]
        axes = attributes.get("axes", range(len(starts)))
        return [(int(a), int(b), int(c), 1) for a, b, c in zip(axes, starts, stops, strict=True)]
    given = [graph.constant(t) if t else None for t in node.inputs[1:]]
    given += [None] * (4 - len(given))
    start, stop, axis, step = given
    if start is None or stop is None:
        return None
    if any(t and found is None for t, found in zip(node.inputs[1:], given, strict=False)):
        return None
    count = start.size
    which = range(count) if axis is None else axis.reshape(-1).tolist()
    steps = [1] * count if step is None else step.reshape(-1).tolist()
    starts, stops = start.reshape(-1).tolist(), stop.reshape(-1).tolist()
    return [
        (int(a), int(b), int(c), int(d))
        for a, b, c, d in zip(which, starts, stops, steps, strict=True)
    ]


def parts_of(parts: OutputParts | None, array: Array) -> list[Array]:
    """The values of each part, where there are parts and the values are as many as the shape told;
    else all of them as one."""
    if parts is None or array.ndim <= parts.axis or array.shape[parts.axis] != parts.size:
        return [array]
    return parts.of(array)
