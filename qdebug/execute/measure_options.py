"""What to measure of a tensor besides the totals: clipping, channels, and the parts of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qdebug.metrics.sums import MeasureOptions
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.network.outputparts import OutputParts, output_parts
from qdebug.plan.pair import ModelPair
from qdebug.plan.quantize import Grid

CHANNEL_AXIS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""Where the channels are in the output of an operator that has them."""

MOST_CHANNELS = 4096
"""A longer axis of an output is none of channels."""


def measure_options(pair: ModelPair, tensors: Sequence[str]) -> dict[str, MeasureOptions]:
    """What to measure of each tensor besides the totals: clipping, channels where it has them."""
    by_output: dict[str, Layer] = {layer.output: layer for layer in pair.layers}
    options = {}
    for tensor in tensors:
        layer = by_output.get(tensor)
        axis = CHANNEL_AXIS.get(layer.op_type) if layer else None
        grid = pair.grids.get(tensor)
        if axis is not None or grid is not None:
            options[tensor] = replace(clipping_of(grid), channel_axis=axis)
        if axis is None and tensor in pair.reference.outputs:
            known = options.get(tensor, MeasureOptions())
            options[tensor] = _of_output(pair.reference, pair.parts, tensor, known)
    return options


def output_options(graph: Graph) -> dict[str, MeasureOptions]:
    """What to measure of the outputs of a model: channels, and the parts that they consist of."""
    found, floats = output_parts(graph), filter(graph.is_float, graph.outputs)
    return {t: _of_output(graph, found, t, MeasureOptions()) for t in floats}


def _of_output(
    graph: Graph, found: Mapping[str, OutputParts], tensor: str, options: MeasureOptions
) -> MeasureOptions:
    """The channels of an output are along the axis of its parts; without parts, along the first
    axis behind the samples that is not too long."""
    parts = found.get(tensor)
    if parts is not None:
        starts = tuple(part.first for part in parts.parts)
        return replace(options, channel_axis=parts.axis, part_starts=starts)
    shape = graph.shapes.get(tensor, ())
    sizes = {k: size for k, size in enumerate(shape) if k and isinstance(size, int)}
    fitting = [k for k, size in sizes.items() if 1 < size <= MOST_CHANNELS]
    axis = next(iter(fitting), 1 if 1 not in sizes else None)
    return replace(options, channel_axis=axis, most_channels=MOST_CHANNELS)


def clipping_of(grid: Grid | None) -> MeasureOptions:
    """Beyond what a pair clips; a symmetric one has the magnitude of its highest value as both."""
    if grid is None:
        return MeasureOptions()
    low, high = grid.limits
    return MeasureOptions(bounds=(-high if grid.symmetric else low, high))
