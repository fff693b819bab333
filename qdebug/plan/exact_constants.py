"""The constants of an FP32 model that those of a quantized one are roundings of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from qdebug.formats.base import along
from qdebug.formats.registry import BY_ONNX_TYPE, CAST
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.plan.quantize import QUANTIZERS, grid_of
from qdebug.plan.rewrite.constants import ConstantValues, spread
from qdebug.types import Array

_SAME = 1e-5
"""Relative to the largest value: two float constants that differ by less are one."""


def exact_constants(
    reference: Graph, aligned: Graph, *, biases: bool = False
) -> Iterator[tuple[str, str, Array | str]]:
    """Of each node of `aligned`, a quantized model in the names of `reference`, the constants that
    it rounds: node, tensor and the value in FP32, of the shape that the node reads. Of a node with
    constants that are no roundings of the FP32 model's, what is other, for people; with `biases`
    other biases next to a weight that is rounded count as roundings.

    Where a BatchNormalization follows that the FP32 model has folded, the constants are those
    before it.
    """
    mine, its = ConstantValues(reference), ConstantValues(aligned)
    for node in aligned.nodes:
        original = reference.by_name.get(node.name)
        if original is None:
            continue
        unfolded = _unfolding(its, node)
        wanted = [t for t in original.inputs if t and mine.is_constant(t)]
        stored = [t for t in node.inputs if t and its.is_constant(t)]
        for tensor, own in zip(wanted, stored, strict=False):
            other = its.value(own)
            value = _as_stored(mine.value(tensor), other)
            if value is None or other is None or value.dtype.kind != "f":
                continue
            what = _role(node, own)
            value = unfolded(value, what).astype(np.float64 if other.dtype == np.float64 else "f4")
            far = _steps_apart(its, own, value, other)
            corrected = biases and what == "bias"
            if far > 1 and not corrected:
                yield node.name, own, f"{what} {_differs(far)}"
                break
            as_stored = far == 0 and own in aligned.initializers
            if not as_stored and not np.array_equal(value, other):
                yield node.name, own, value


def _role(node: Node, tensor: str) -> str:
    if node.op_type not in QUANTIZABLE_OPS:
        return "constant"
    return "weight" if tensor in node.inputs[:2] else "bias"


def _as_stored(value: Array | None, other: Array | None) -> Array | None:
    """The FP32 model's constant in the shape of the other; None where the shapes do not fit."""
    if value is None or other is None:
        return None
    if value.shape == other.shape:
        return value
    if value.ndim == other.ndim == 2 and value.shape == other.shape[::-1]:
        return value.T
    return value.reshape(other.shape) if value.size == other.size else None


def normalization_behind(graph: Graph, node: Node) -> Node | None:
    """The BatchNormalization right after a convolution, which the FP32 model has folded."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        return None
    tensor = node.outputs[0]
    while True:
        readers = graph.consumers.get(tensor, ())
        if len(readers) != 1:
            return None
        if readers[0].op_type not in {*QUANTIZERS, "DequantizeLinear"}:
            return readers[0] if readers[0].op_type == "BatchNormalization" else None
        tensor = readers[0].outputs[0]


def _unfolding(values: ConstantValues, node: Node) -> Callable[[Array, str], Array]:
    """From a constant of a folded convolution to that before its BatchNormalization; of other nodes
    and constants to themselves."""
    graph, normalized = values.graph, normalization_behind(values.graph, node)
    read = [] if normalized is None else [values.value(t) for t in normalized.inputs[1:5]]
    if normalized is None or any(x is None for x in read):
        return lambda value, what: value
    gamma, beta, mean, variance = (np.asarray(x, np.float64) for x in read)
    epsilon = float(graph.attributes(normalized).get("epsilon", 1e-5))
    factor = gamma / np.sqrt(variance + epsilon)
    factor = np.where(factor == 0, 1, factor)

    def unfolded(value: Array, what: str) -> Array:
        if what == "bias":
            return (value - beta) / factor + mean
        axis = 1 if node.op_type == "ConvTranspose" else 0
        if value.ndim < 2 or value.shape[axis] != factor.size:
            return value
        return value / along(factor, axis, value.ndim)

    return unfolded


def _differs(far: float) -> str:
    if not np.isfinite(far):
        return "differs from the FP32 model's by more than float32's rounding"
    return f"differs from the FP32 model's by up to {far:,.{0 if far >= 100 else 1}f} steps"


def _steps_apart(values: ConstantValues, tensor: str, value: Array, other: Array) -> float:
    """By how many steps of its quantization a constant differs from the FP32 one, at most; values
    beyond the range of the codes do not count, nor those whose scale is no positive number. inf for
    one that is not quantized and differs."""
    wide, own = value.astype(np.float64), other.astype(np.float64)
    difference = np.abs(np.subtract(wide, own, out=np.zeros_like(wide), where=wide != own))
    least = _SAME * float(np.abs(value).max(initial=0.0, where=np.isfinite(value)))
    if difference.max(initial=0.0) <= least:
        return 0.0
    step, low, high = _grid(values.graph, tensor, other)
    if step is None:
        return float("inf")
    valid = np.isfinite(step) & (np.asarray(step) > 0)
    clipped = ((other <= low) & (value < other)) | ((other >= high) & (value > other))
    far = np.maximum(difference - least, 0) / np.where(valid, step, 1)
    return float(far.max(initial=0.0, where=valid & ~clipped))


def _grid(graph: Graph, tensor: str, other: Array) -> tuple[Array | float | None, Array, Array]:
    """Of a constant's quantization the step around its values `other`, the least and the largest
    value, in shapes that broadcast."""
    nothing = np.asarray(-np.inf), np.asarray(np.inf)
    node = graph.producers.get(tensor)
    direct = node is not None and node.op_type == "DequantizeLinear"
    while node is not None and node.inputs and node.op_type != "DequantizeLinear":
        tensor = node.inputs[0]
        node = graph.producers.get(tensor)
    if node is None or not node.inputs:
        stored = BY_ONNX_TYPE.get(graph.types.get(tensor, 0))
        half = stored is not None and stored.precision in CAST
        return (stored.step(other) if stored and half else None), *nothing
    scale = graph.constant(node.inputs[1])
    if scale is None:
        return None, *nothing
    grid = grid_of(graph, node)
    if not direct or grid is None:
        attributes = graph.attributes(node)
        block = int(attributes.get("block_size", 0))
        if direct and block:
            scales = spread(scale, other, int(attributes.get("axis", 1)), block)
            form = format_of_codes(graph, node)
            return (scales if form is None else form.step(other, scales)), *nothing
        return float(np.abs(scale).max()) if grid is None else grid.step, *nothing
    axis, form = grid.axis or 0, grid.format
    scales = spread(grid.scale, other, axis, 0)
    zero = spread(grid.zero_point, other, axis, 0)
    low, high = (scales.astype(np.float64) * (end - zero) for end in (form.lowest, form.largest))
    return form.step(other, scales), low, high
