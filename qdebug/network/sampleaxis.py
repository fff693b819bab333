"""Whether the leading axis of a network's inputs holds samples, as far as its shapes tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qdebug.network.graph import Graph
from qdebug.network.macs import shapes_of_inputs
from qdebug.types import TensorSpec

_LENGTHS = 1024, 1536
"""Of the leading axis, for which shapes are inferred: more than kernels along it take off."""


def sample_inputs(graph: Graph) -> tuple[TensorSpec, ...]:
    """The inputs, as samples are fitted to them: without an axis of samples where no output keeps
    one, such as the class of a recording whose leading axis is time."""
    inputs = graph.inputs
    if not inputs or any(not s.shape or isinstance(s.shape[0], int) for s in inputs):
        return inputs
    names = {s.shape[0] for s in inputs} - {None}
    declared = [graph.shapes.get(output) for output in graph.outputs]
    if any(shape is None or names & set(shape) for shape in declared):
        return inputs
    shapes = [_outputs(graph, length) for length in _LENGTHS]
    if any(_may_hold(*of_output) for of_output in zip(*shapes, strict=True)):
        return inputs
    return tuple(replace(s, holds_samples=False) for s in inputs)


def _outputs(graph: Graph, length: int) -> list[Sequence[object] | None]:
    """The shapes of the outputs for a leading axis of this length; None where it is unknown."""
    shapes = shapes_of_inputs(graph, {s.name: (length, *s.shape[1:]) for s in graph.inputs})
    return [shapes.get(output) for output in graph.outputs]


def _may_hold(short: Sequence[object] | None, long: Sequence[object] | None) -> bool:
    """Whether an output of these shapes may have rows of every sample: an axis that grows as the
    leading axis does, or one of unknown length."""
    if short is None or long is None:
        return True
    few, many = _LENGTHS
    return any(
        not isinstance(a, int) or not isinstance(b, int) or (a > 0 and a * many == b * few)
        for a, b in zip(short, long, strict=True)
    )
