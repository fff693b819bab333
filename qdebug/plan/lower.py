"""Lower a plan to one explicit ONNX model with Q/DQ pairs and Casts, the same for every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qdebug.calibrators.weights import weight_amax
from qdebug.errors import ModelError, PlanError
from qdebug.formats.base import FloatArray
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.plan.plan import BoundPlan, Correction, Granularity, PrecisionPlan
from qdebug.plan.quantize import half_scale, scale_of
from qdebug.plan.rewrite.fp16 import convert_to_fp16
from qdebug.plan.rewrite.qdq import Int8Layer, WeightQuantization, insert_qdq, weight_axis
from qdebug.types import Precision
from qdebug.wording import option

HALF_QDQ_OPSET = 19
"""The first opset in which Q/DQ carry FP16."""


@dataclass(frozen=True)
class Lowered:
    """A model that computes as a plan says.

    Attributes:
        graph: passes onnx.checker; inputs and outputs are those of the original.
        tensors: reference tensor -> the tensor here that stands for it.
        amax: range beyond which Q/DQ clips, by reference tensor.
    """

    graph: Graph
    tensors: Mapping[str, str]
    amax: Mapping[str, float]


def required_opset(plan: PrecisionPlan) -> int:
    """The opset a model must have for `plan` to be lowered."""
    int8 = plan.precision is Precision.INT8 or Precision.INT8 in plan.layers.values()
    return HALF_QDQ_OPSET if int8 and plan.fallback_precision is Precision.FP16 else 13


def lower(bound: BoundPlan) -> Lowered:
    """The model in the precisions of a plan.

    Raises:
        PlanError: an INT8 layer reads a tensor without an amax, or the opset is too old.
    """
    graph = bound.layers.graph
    lowered = _apply(bound, graph)
    tensors = {t: t for t in (*(s.name for s in graph.inputs), *graph.activations())}
    return Lowered(lowered, tensors, _clip_limits(bound))


def _apply(bound: BoundPlan, graph: Graph) -> Graph:
    """The two rewrites, in turn.

    Raises:
        PlanError: as `lower`.
    """
    half = {n for layer in bound.layers_in(Precision.FP16) for n in layer.nodes}
    items = [int8_layer(bound, layer) for layer in bound.layers_in(Precision.INT8)]
    if items:
        graph = Graph.inferred(insert_qdq(graph, items))
    mixed = bound.plan.fallback_precision is Precision.FP16 and bool(items)
    if mixed:
        if graph.opset < HALF_QDQ_OPSET:
            raise PlanError(
                f"INT8 with FP16 needs opset {HALF_QDQ_OPSET} (FP16 Q/DQ), "
                f"but the model has {graph.opset}",
                "Export the model with a newer opset, or keep the other layers in FP32.",
                code="QD-PLAN-OPSET",
            )
        half |= _half_int8_nodes(graph, items)
    if not half:
        return graph
    return Graph.inferred(convert_to_fp16(graph, half, _half_quantizers(graph) if mixed else ()))


def int8_layer(bound: BoundPlan, layer: Layer) -> Int8Layer:
    """`layer` with the scales that the plan gives its operands.

    Raises:
        PlanError: a range is missing or not valid.
    """
    activations = {t: _activation_scale(bound, layer, t) for t in layer.quantized_inputs}
    correction = bound.corrections.get(layer.name, Correction())
    return Int8Layer(layer, activations, _weight_quantization(bound, layer), correction.bias)


def activation_scales(bound: BoundPlan) -> dict[str, FloatArray]:
    """The scale, float32 [], of each activation that an INT8 layer reads, by tensor.

    Raises:
        PlanError: a range is missing or not valid.
    """
    int8 = bound.layers_in(Precision.INT8)
    return {t: _activation_scale(bound, x, t) for x in int8 for t in x.quantized_inputs}


def check_ranges(bound: BoundPlan) -> None:
    """Check the ranges that the plan gives the operands of INT8 layers.

    Raises:
        PlanError: one is not valid; the message names the tensor.
    """
    tensors = bound.plan.tensors
    for layer in bound.layers_in(Precision.INT8):
        for tensor in layer.quantized_inputs:
            if tensor in tensors:
                _activation_scale(bound, layer, tensor)
        if layer.weight in tensors:
            _weight_quantization(bound, layer)


def _activation_scale(bound: BoundPlan, layer: Layer, tensor: str) -> FloatArray:
    if tensor not in bound.plan.tensors:
        raise PlanError(
            f"layer '{layer.name}' is INT8, but its input '{tensor}' has no range (amax) in the "
            "plan",
            f"Give calibration samples ({option('calib_data')}), or add the tensor to the plan.",
            code="QD-PLAN-RANGE-MISSING",
        )
    return _rounded(bound, bound.activation_scale(tensor))


def _weight_quantization(bound: BoundPlan, layer: Layer) -> WeightQuantization | None:
    if layer.weight is None:
        return None
    graph = bound.layers.graph
    axis = weight_axis(graph.by_name[layer.name], graph, layer.weight)
    entry = bound.plan.tensors.get(layer.weight)
    corrected = bound.corrections.get(layer.name, Correction()).weight
    if entry is not None:
        amax = np.asarray(entry.amax, np.float64)
        channels = graph.initializers[layer.weight].dims[axis] if axis is not None else 0
        if amax.ndim and len(amax) != channels:
            raise PlanError(
                f"weight '{layer.weight}' of layer '{layer.name}' has {channels} output channels, "
                f"but {len(amax)} amax are given",
                "Give one number, or one per output channel.",
                code="QD-PLAN-AMAX-COUNT",
            )
        axis = axis if amax.ndim else None
    else:
        axis = axis if bound.plan.weights is Granularity.PER_CHANNEL else None
        values = graph.constant(layer.weight) if corrected is None else corrected
        assert values is not None  # a layer's weight is an initializer by construction
        amax = weight_amax(values.astype(np.float32, copy=False), axis)
        if not np.all(np.isfinite(amax)):
            raise ModelError(
                f"the weight '{layer.weight}' of layer '{layer.name}' holds NaN or Inf",
                "Train or export the model again.",
                code="QD-MODEL-WEIGHT-VALUES",
            )
    scale = _rounded(bound, scale_of(amax, f"weight '{layer.weight}'"))
    return WeightQuantization(scale, axis, corrected)


def _rounded(bound: BoundPlan, scale: FloatArray) -> FloatArray:
    """`scale`, rounded where FP16 Q/DQ will carry it, before anything is quantized with it."""
    if bound.plan.fallback_precision is not Precision.FP16:
        return scale
    half = half_scale(scale)
    return scale if half is None else half


def _half_int8_nodes(graph: Graph, items: list[Int8Layer]) -> set[str]:
    """Nodes of INT8 layers all of whose scales FP16 can hold, with the DQ nodes they read."""
    nodes: set[str] = set()
    for item in items:
        scales = list(item.activations.values())
        if item.weight is not None:
            scales.append(item.weight.scale)
        if any(half_scale(s) is None for s in scales):
            continue
        nodes.update(item.layer.nodes)
        for name in item.layer.nodes:
            producers = (graph.producers.get(t) for t in graph.by_name[name].inputs)
            nodes.update(p.name for p in producers if p and p.op_type == "DequantizeLinear")
    return nodes


def _half_quantizers(graph: Graph) -> list[str]:
    """QuantizeLinear nodes that may read FP16: FP16 can hold their scale."""
    found = []
    for node in graph.nodes:
        scale = graph.constant(node.inputs[1]) if node.op_type == "QuantizeLinear" else None
        if scale is not None and half_scale(scale) is not None:
            found.append(node.name)
    return found


def _clip_limits(bound: BoundPlan) -> dict[str, float]:
    return {t: float(np.max(bound.plan.tensors[t].amax)) for t in bound.needed_ranges()}
