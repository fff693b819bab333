"""What a quantized model computes with in INT8: its own codes of weights, and its own biases.

A quantizer may have rounded weights otherwise than to the nearest code, trained them, or corrected
biases. As ranges of weights and as corrections these make the FP32 model, lowered by a plan,
compute what the quantized model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from qdebug.formats.base import FloatArray, Kind, along
from qdebug.formats.registry import FORMATS, INT8
from qdebug.network.graph import Node
from qdebug.network.layers import Layer
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import GIVEN, Correction, TensorRange
from qdebug.plan.quantize import QUANTIZERS, scale_of
from qdebug.plan.rewrite.constants import ConstantValues, spread
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.types import Array, Precision

Float64 = npt.NDArray[np.float64]

_INTEGERS = {*(f.onnx_type for f in FORMATS if f.kind is Kind.INTEGER), TensorProto.INT32}
"""What weights and biases are stored as."""
_SAME = 1e-6
"""Relative to the largest: biases that differ by less are one, in other arithmetic."""
_HALF = 0.501
"""Of a step: what rounding changes at most."""


@dataclass(frozen=True)
class OwnConstants:
    """What the INT8 layers of a quantized model compute with.

    Attributes:
        ranges: of their weights, by the name that these have in the FP32 model.
        corrections: by layer, where the nearest codes of the FP32 weight, or its bias, are others.
    """

    ranges: Mapping[str, TensorRange]
    corrections: Mapping[str, Correction]


def own_constants(pair: ModelPair) -> OwnConstants:
    """Those of the candidate of a pair. Layers whose weight is computed, or read more than once,
    are left out."""
    ranges: dict[str, TensorRange] = {}
    corrections: dict[str, Correction] = {}
    reader = _Reader(pair)
    for layer in pair.layers:
        if pair.precisions[layer.name] is not Precision.INT8 or layer.weight is None:
            continue
        if len(pair.reference.consumers[layer.weight]) != 1:
            continue
        found = reader.read(layer)
        if found is None:
            continue
        entry, correction = found
        if entry is not None:
            ranges[layer.weight] = entry
        if correction is not None:
            corrections[layer.name] = correction
    return OwnConstants(ranges, corrections)


@dataclass(frozen=True)
class _Sum:
    """A layer's output is factor · (what its anchor multiplies) + bias.

    Attributes:
        factor: [channels], of a BatchNormalization behind.
        bias: [channels].
        tolerance: what rounding may have changed of it.
    """

    factor: Float64
    bias: Float64
    tolerance: float


class _Reader:
    """Reads the constants of a layer on both sides."""

    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        self._mine, self._its = ConstantValues(pair.reference), ConstantValues(pair.candidate)

    def read(self, layer: Layer) -> tuple[TensorRange | None, Correction | None] | None:
        """The range of a layer's weight and its correction; None where the weight is not found."""
        reference, weight = self._pair.reference, layer.weight or ""
        anchor, other = reference.by_name[layer.name], self._pair.candidate.by_name.get(layer.name)
        wanted = reference.constant(weight)
        if other is None or wanted is None:
            return None
        axis = weight_axis(anchor, reference, weight)
        own = self._sum(self._mine, anchor, layer)
        its = self._sum(self._its, other, layer)
        place = next((t for t in other.inputs[:2] if t and self._its.is_constant(t)), None)
        values = self._its.value(place) if place else None
        if values is None or place is None:
            return None
        steps = _steps(self._its, place)
        turned = _turned(values, wanted)
        if turned is None:
            return None
        factor = np.ones(1) if its is None else its.factor
        factors = _along(factor, axis, wanted.ndim)
        if factors is None:
            return None
        values = (_shaped(values, wanted, turned).astype(np.float64) * factors).astype(np.float32)
        amax = None
        if steps is not None:
            steps = _shaped(steps, wanted, turned).astype(np.float64) * np.abs(factors)
            amax = _amax(steps, values, axis)
        changed = _other_codes(wanted.astype(np.float32), values, amax, axis)
        bias = None if own is None or its is None else _other_bias(own, its)
        correction = Correction(values if changed else None, bias)
        entry = None
        if amax is not None:
            entry = TensorRange(tuple(amax.tolist()) if amax.ndim else float(amax), GIVEN)
        return entry, correction if changed or bias is not None else None

    def _sum(self, values: ConstantValues, anchor: Node, layer: Layer) -> _Sum | None:
        """What is added behind a layer's anchor, in one of the two graphs; None where that is not
        one value for each channel."""
        graph = values.graph
        channels = self._channels(layer)
        found: _Sum | None = _Sum(np.ones(channels), np.zeros(channels), 0.0)
        assert found is not None
        if anchor.op_type != "MatMul" and len(anchor.inputs) > 2 and anchor.inputs[2]:
            beta = float(graph.attributes(anchor).get("beta", 1.0))
            found = _plus(values, found, anchor.inputs[2], beta)
        tensor = anchor.outputs[0]
        while found is not None:
            readers = graph.consumers.get(tensor, ())
            if len(readers) != 1 or tensor in graph.outputs:
                return found
            node = readers[0]
            own = node.name in layer.nodes or node.name not in self._pair.reference.by_name
            if node.op_type == "Add" and own:
                constant = next((t for t in node.inputs if values.is_constant(t)), None)
                if constant is None:
                    return found
                found = _plus(values, found, constant, 1.0)
            elif node.op_type == "BatchNormalization" and own:
                found = _normalized(values, found, node)
            elif node.op_type not in {*QUANTIZERS, "DequantizeLinear"}:
                return found
            tensor = node.outputs[0]
        return found

    def _channels(self, layer: Layer) -> int:
        graph, weight = self._pair.reference, layer.weight or ""
        anchor = graph.by_name[layer.name]
        axis = weight_axis(anchor, graph, weight)
        if axis is None:
            return 1
        groups = graph.attributes(anchor).get("group", 1)
        times = int(groups) if anchor.op_type == "ConvTranspose" else 1
        return int(graph.initializers[weight].dims[axis]) * times


def _plus(values: ConstantValues, found: _Sum, tensor: str, beta: float) -> _Sum | None:
    """With a constant added."""
    constant, steps = values.value(tensor), _steps(values, tensor)
    if constant is None or constant.size not in (1, found.bias.size):
        return None
    rounding = 0.0 if steps is None else _HALF * float(steps.max(initial=0.0))
    bias = found.bias + beta * constant.astype(np.float64).reshape(-1)
    return _Sum(found.factor, bias, found.tolerance + rounding)


def _normalized(values: ConstantValues, found: _Sum, node: Node) -> _Sum | None:
    """Behind a BatchNormalization."""
    read = [values.value(t) if values.is_constant(t) else None for t in node.inputs[1:5]]
    gamma, beta, mean, variance = (None if r is None else r.astype(np.float64) for r in read)
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    if gamma.size != found.bias.size:
        return None
    epsilon = float(values.graph.attributes(node).get("epsilon", 1e-5))
    factor = gamma / np.sqrt(variance + epsilon)
    tolerance = found.tolerance * float(np.abs(factor).max())
    return _Sum(found.factor * factor, (found.bias - mean) * factor + beta, tolerance)


def _other_bias(own: _Sum, its: _Sum) -> FloatArray | None:
    """By how much the biases differ, beyond rounding; None where they do not."""
    missing = its.bias - own.bias
    least = max(own.tolerance + its.tolerance, _SAME * float(np.abs(own.bias).max(initial=0.0)))
    if not np.all(np.isfinite(missing)) or float(np.abs(missing).max(initial=0.0)) <= least:
        return None
    return missing.astype(np.float32)


def _other_codes(
    wanted: FloatArray, values: FloatArray, amax: Float64 | None, axis: int | None
) -> bool:
    """Whether two weights have other codes; without a range, whether they are others."""
    if amax is None:
        return not np.array_equal(wanted, values)
    scale, own = scale_of(amax), axis if amax.ndim else None
    mine, its = (INT8.quantize(w, scale, own) for w in (wanted, values))
    return not np.array_equal(mine, its)


def _amax(steps: Float64, values: FloatArray, axis: int | None) -> Float64 | None:
    """The range of a weight whose codes are `steps` apart, [] or [channels]; None where it has a
    step for other parts than its output channels."""
    steps = np.broadcast_to(steps, values.shape)
    if np.all(steps == steps.flat[0]):
        step, largest = steps.reshape(-1)[:1].reshape(()), np.abs(values).max(initial=0.0)
    elif axis is None:
        return None
    else:
        rows = np.moveaxis(steps, axis, 0).reshape(values.shape[axis], -1)
        if not np.all(rows == rows[:, :1]):
            return None
        step = rows[:, 0]
        largest = np.abs(np.moveaxis(values, axis, 0)).reshape(len(rows), -1).max(axis=1)
    # Codes of another zero point may reach beyond those of INT8.
    beyond = largest > -(INT8.lowest - 0.5) * step
    return np.asarray(np.where(beyond, largest, INT8.largest * np.asarray(step)), np.float64)


def _steps(values: ConstantValues, tensor: str) -> Array | None:
    """The step between the codes of a constant, of its shape; None where it is not quantized, or
    by blocks."""
    graph = values.graph
    node = graph.producers.get(tensor)
    if node is None or tensor in graph.initializers:
        return None
    if node.op_type == "DequantizeLinear":
        scale, value = graph.constant(node.inputs[1]), values.value(tensor)
        integers = graph.types.get(node.inputs[0]) in _INTEGERS
        if scale is None or scale.ndim > 1 or value is None or not integers:
            return None
        axis = int(graph.attributes(node).get("axis", 1))
        return np.broadcast_to(spread(scale.astype(np.float32), value, axis, 0), value.shape)
    inner = _steps(values, node.inputs[0])
    return None if inner is None else values.moved(node, inner)


def _turned(values: Array, wanted: Array) -> bool | None:
    """Whether a matrix is the other one transposed; None where the sizes do not fit."""
    if values.size != wanted.size:
        return None
    if not values.ndim == wanted.ndim == 2 or values.shape != wanted.shape[::-1]:
        return False
    if values.shape != wanted.shape:
        return True
    far = [float(np.linalg.norm(v.astype(np.float64) - wanted)) for v in (values, values.T)]
    return far[1] < far[0]


def _shaped(values: Array, wanted: Array, turned: bool) -> Array:
    return values.T if turned else values.reshape(wanted.shape)


def _along(factor: Float64, axis: int | None, rank: int) -> Float64 | None:
    """Factors of output channels along the axis of a weight; None where it has none."""
    if np.all(factor == 1):
        return np.ones((1,) * rank)
    if axis is None:
        return None
    return along(factor, axis, rank)
