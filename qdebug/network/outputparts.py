"""Of what parts an output consists: boxes and scores that one Concat joins, say.

An output of a detector often holds quantities of unlike scale side by side. One ratio of energies
over all of them is that of the largest quantity: boxes of up to 640 hide scores of at most 1.

The parts are found by structure. Behind operations that only move values, the inputs of the last
Concat are parts. A Concat of equal branches, as the levels of a feature pyramid are, makes no parts
of its own: where each level is a Concat of the same parts, these are pooled over the levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

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
_MOVES = _SAME_PLACES | {"Transpose", "Slice", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}
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
    readers = [n for n in graph.consumers.get(tensor, ()) if n.op_type in _MOVES and not n.domain]
    return any(_is_shown(graph, n.outputs[0]) for n in readers if n.inputs[0] == tensor)


@dataclass(frozen=True)
class _Layout:
    """Which branch each place of an axis comes from."""

    axis: int
    branches: tuple[str, ...]

    @property
    def pieces(self) -> list[tuple[int, str]]:
        """The length of each run of places of one branch, and that branch."""
        return [(len(list(run)), branch) for branch, run in groupby(self.branches)]

    @property
    def sizes(self) -> list[int]:
        """The lengths of the pieces."""
        return [size for size, _ in self.pieces]


def _layout(graph: Graph, tensor: str) -> _Layout | None:
    """Where the pieces of a tensor lie; None for one piece, and where that is not known."""
    node = graph.producers.get(tensor)
    if node is None or node.domain:
        return None
    if node.op_type == "Concat":
        return _of_concat(graph, node)
    before = _layout(graph, node.inputs[0]) if node.op_type in _MOVES else None
    moved = None if before is None else _moved(graph, node, before.axis)
    if before is None or moved is None:
        return None
    axis, places = moved
    return _Layout(axis, tuple(before.branches[k] for k in places))


def _of_concat(graph: Graph, node: Node) -> _Layout | None:
    inputs, shape = [_plain(graph, t) for t in node.inputs], graph.shapes.get(node.outputs[0])
    if shape is None or any(t not in graph.producers or t in graph.initializers for t in inputs):
        return None  # what is handed on unchanged, as a cache, is no part of the result
    axis = int(graph.attributes(node)["axis"]) % len(shape)
    layouts = [_layout(graph, t) for t in inputs]
    first = layouts[0]
    if first is not None and all(
        x is not None and x.axis == first.axis != axis and x.sizes == first.sizes for x in layouts
    ):
        return first  # levels, each of the same parts
    if _are_levels(graph, inputs, axis):
        return None
    branches: list[str] = []
    for tensor, layout in zip(inputs, layouts, strict=True):
        if layout is not None and layout.axis == axis:
            branches += layout.branches
            continue
        size = next(iter(graph.shapes.get(tensor, ())[axis:]), None)
        if not isinstance(size, int):
            return None
        branches += [tensor] * size
    return _Layout(axis, tuple(branches))


def _plain(graph: Graph, tensor: str) -> str:
    """The tensor whose values these are, before they were rounded or cast."""
    node = graph.producers.get(tensor)
    while node is not None and node.op_type in _SAME_PLACES and node.inputs[0]:
        tensor = node.inputs[0]
        node = graph.producers.get(tensor)
    return tensor


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
        if at is not None and node.op_type in _MOVES:
            ranks = range(len(graph.shapes.get(node.inputs[0], ())))
            moved = ((k, _moved(graph, node, k)) for k in ranks)
            at = next((k for k, where in moved if where is not None and where[0] == at), None)
        producers = (graph.producers.get(t) for t in node.inputs if t not in graph.initializers)
        node = next((p for p in producers if p is not None and p.op_type != "Constant"), None)
    return _Traced(tuple(operators), None, at is None)


def _moved(graph: Graph, node: Node, axis: int) -> tuple[int, Sequence[int]] | None:
    """Where an axis of what a node of `_MOVES` reads is in what it writes, and which of its places
    are left there, in order; None where it is merged or split, or that is not known.

    An array that holds the places along that axis is moved, with one place on each free axis.
    """
    read, written = (graph.shapes.get(t) for t in (node.inputs[0], node.outputs[0]))
    if read is None:
        return None
    shape = [size if isinstance(size, int) else 1 for size in read]
    places = np.arange(shape[axis])
    if node.op_type in _SAME_PLACES:
        return axis, places.tolist()
    if node.op_type == "Transpose":
        axes = graph.attributes(node).get("perm", range(len(shape))[::-1])
        return list(axes).index(axis), places.tolist()
    array = np.broadcast_to(_along(places, axis, len(shape)), shape)
    moved: Array | None = None
    if node.op_type == "Slice" and (cut := _cut(graph, node, len(shape))) is not None:
        moved = array[cut]
    elif node.op_type != "Slice" and written is not None:
        moved = _reshaped(array, written)
    if moved is None or not moved.size:  # nothing is left of a free axis that a Slice cuts
        return None
    for k in range(moved.ndim):
        line = np.moveaxis(moved, k, -1)[(0,) * (moved.ndim - 1)]
        alone = len(set(line.tolist())) == len(line) > 1
        if alone and (moved == _along(line, k, moved.ndim)).all():
            return k, line.tolist()
    return None


def _along(values: Array, axis: int, rank: int) -> Array:
    """Values along an axis, with one place on the others."""
    return values.reshape([-1 if k == axis else 1 for k in range(rank)])


def _cut(graph: Graph, node: Node, rank: int) -> tuple[slice, ...] | None:
    """What a Slice takes of each axis; None where that is not constant."""
    operands: list[list[int]] = []
    for tensor in node.inputs[1:]:
        values = graph.constant(tensor) if tensor else np.array([])
        if values is None:
            return None
        operands.append(values.reshape(-1).tolist())
    starts, stops, axes, steps = (*operands, [], [])[:4]
    cut = [slice(None)] * rank
    for k, axis in enumerate(axes or range(len(starts))):
        cut[axis] = slice(starts[k], stops[k], steps[k] if steps else 1)
    return tuple(cut)


def _reshaped(array: Array, shape: Shape) -> Array | None:
    """An array in a shape, whose last free axis has what is left; None where it does not fit."""
    sizes = [size if isinstance(size, int) else 1 for size in shape]
    free = [k for k, size in enumerate(shape) if not isinstance(size, int)]
    for k in free[-1:]:
        sizes[k] = -1
    try:
        return array.reshape(sizes)
    except ValueError:
        return None


def parts_of(parts: OutputParts | None, array: Array) -> list[Array]:
    """The values of each part, where there are parts and the values are as many as the shape told;
    else all of them as one."""
    if parts is None or array.ndim <= parts.axis or array.shape[parts.axis] != parts.size:
        return [array]
    return parts.of(array)
