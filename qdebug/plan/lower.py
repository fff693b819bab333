"""Lower a plan to one explicit ONNX model with Q/DQ pairs and Casts, the same for every backend."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdebug.calibrators.weights import block_amax, weight_amax
from qdebug.errors import ModelError, PlanError
from qdebug.formats.base import FloatArray, Format
from qdebug.formats.registry import (
    BF16,
    CAST,
    FORMAT_OF,
    FP16,
    SCALED,
    WEIGHT_ONLY,
)
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.plan.plan import BoundPlan, Correction, Granularity, PrecisionPlan
from qdebug.plan.quantize import Grid, half_scale, scale_of, symmetric_grid
from qdebug.plan.rewrite.cast import cast_nodes
from qdebug.plan.rewrite.qdq import QuantizedLayer, WeightQuantization, insert_qdq, weight_axis
from qdebug.types import Precision
from qdebug.wording import option

HALF_QDQ_OPSET = 19
"""The first opset in which Q/DQ carry FP16."""
BLOCK_OPSET = 21
"""The first opset whose DequantizeLinear has blocks, and INT4."""


@dataclass(frozen=True)
class Lowered:
    """A model that computes as a plan says.

    Attributes:
        graph: passes onnx.checker; inputs and outputs are those of the original.
        tensors: reference tensor -> the tensor here that stands for it.
        grids: what Q/DQ pairs round activations to, by reference tensor: where layers of several
            formats read one, that of the lowest precision.
    """

    graph: Graph
    tensors: Mapping[str, str]
    grids: Mapping[str, Grid]


def required_opset(plan: PrecisionPlan, raised: Collection[Precision] = ()) -> int:
    """The opset a model must have for `plan` to be lowered, also with layers `raised` to others of
    these precisions."""
    used = {plan.precision, *plan.layers.values(), *raised}
    scaled = SCALED.intersection(used)
    if scaled:
        used.add(plan.fallback_precision)
    needed = [13, *(FORMAT_OF[precision].opset for precision in used)]
    if not WEIGHT_ONLY.isdisjoint(used):
        needed.append(BLOCK_OPSET)
    if scaled and plan.fallback_precision is Precision.FP16:
        needed.append(HALF_QDQ_OPSET)
    return max(needed)


def lower(bound: BoundPlan) -> Lowered:
    """The model in the precisions of a plan.

    Raises:
        PlanError: a quantized layer reads a tensor without an amax, or the opset is too old.
    """
    graph = bound.layers.graph
    lowered = _apply(bound, graph)
    tensors = {t: t for t in (*(s.name for s in graph.inputs), *graph.activations())}
    return Lowered(lowered, tensors, _grids(bound))


def _apply(bound: BoundPlan, graph: Graph) -> Graph:
    """The rewrites, in turn.

    Raises:
        PlanError: as `lower`.
    """
    cast = {p: {n for x in bound.layers_in(p) for n in x.nodes} for p in CAST}
    items = [quantized_layer(bound, layer) for layer in bound.quantized_layers()]
    if items:
        graph = Graph.inferred(insert_qdq(graph, items))
    mixed = bound.plan.fallback_precision is Precision.FP16 and bool(items)
    if mixed:
        if graph.opset < HALF_QDQ_OPSET:
            raise PlanError(
                f"quantized layers with FP16 need opset {HALF_QDQ_OPSET} (FP16 Q/DQ), "
                f"but the model has {graph.opset}",
                "Export the model with a newer opset, or keep the other layers in FP32.",
                code="QD-PLAN-OPSET",
            )
        cast[Precision.FP16] |= _half_quantized_nodes(graph, items)
    if bound.plan.fallback_precision is Precision.BF16:
        cast[Precision.BF16] |= _with_dequantizers(graph, [x for x in items if not x.activations])
    for precision, nodes in cast.items():
        if nodes:
            follow = _half_quantizers(graph) if mixed and precision is Precision.FP16 else ()
            graph = Graph.inferred(cast_nodes(graph, nodes, FORMAT_OF[precision], follow))
    return graph


def quantized_layer(bound: BoundPlan, layer: Layer) -> QuantizedLayer:
    """`layer` with the scales that the plan gives its operands.

    Raises:
        PlanError: a range is missing or not valid.
    """
    activations = {t: _activation_scale(bound, layer, t) for t in bound.quantized_inputs(layer)}
    correction = bound.corrections.get(layer.name, Correction())
    weight = _weight_quantization(bound, layer)
    return QuantizedLayer(layer, activations, weight, correction.bias, bound.format_of(layer))


def check_ranges(bound: BoundPlan) -> None:
    """Check the ranges that the plan gives the operands of quantized layers.

    Raises:
        PlanError: one is not valid; the message names the tensor.
    """
    tensors = bound.plan.tensors
    for layer in bound.quantized_layers():
        for tensor in bound.quantized_inputs(layer):
            if tensor in tensors:
                _activation_scale(bound, layer, tensor)
        if layer.weight in tensors:
            _weight_quantization(bound, layer)


def _activation_scale(bound: BoundPlan, layer: Layer, tensor: str) -> FloatArray:
    if tensor not in bound.plan.tensors:
        raise PlanError(
            f"layer '{layer.name}' is {bound.format_of(layer).label}, but its input '{tensor}' has "
            "no range (amax) in the plan",
            f"Give calibration samples ({option('calib_data')}), or add the tensor to the plan.",
            code="QD-PLAN-RANGE-MISSING",
        )
    form = bound.format_of(layer)
    return _rounded(bound, bound.activation_scale(tensor, form), form)


def _weight_quantization(bound: BoundPlan, layer: Layer) -> WeightQuantization | None:
    if layer.weight is None:
        return None
    graph = bound.layers.graph
    anchor = graph.by_name[layer.name]
    axis = weight_axis(anchor, graph, layer.weight)
    if bound.precisions[layer.name] in WEIGHT_ONLY:
        return _weight_in_blocks(bound, layer, layer.weight)
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
        _check_finite(amax, layer)
    form = bound.weight_format_of(layer)
    scale = scale_of(amax, f"weight '{layer.weight}'", form)
    if _fits_half(bound.format_of(layer)):
        scale = _rounded(bound, scale, form)
    grouped = graph.attributes(anchor).get("group", 1) > 1
    if (
        axis is None
        and form.precision is Precision.FP8
        and (anchor.op_type == "Conv" or (anchor.op_type == "ConvTranspose" and not grouped))
    ):
        # TensorRT for RTX 1.6.1 takes a scalar scale of a convolution's FP8 weight as 1.
        axis = weight_axis(anchor, graph, layer.weight)
        if axis is not None:
            scale = np.repeat(scale.reshape(1), graph.initializers[layer.weight].dims[axis])
    return WeightQuantization(scale, axis, corrected, form)


def _weight_in_blocks(bound: BoundPlan, layer: Layer, weight: str) -> WeightQuantization:
    """A scale for each block of values that are summed over, from their largest magnitude. Ranges
    that the plan has are those of other granularities.

    One block for all of a channel is written as a scale per channel: TensorRT for RTX 1.7.1 builds
    no engine of INT8 in one block with FP16 around.
    """
    graph = bound.layers.graph
    values = bound.corrections.get(layer.name, Correction()).weight
    own = graph.constant(weight) if values is None else values
    assert own is not None  # a layer's weight is an initializer by construction
    outer = weight_axis(graph.by_name[layer.name], graph, weight)
    axis = own.ndim - 1 if outer == own.ndim - 2 else own.ndim - 2
    size = min(bound.plan.block_size, own.shape[axis])
    amax = block_amax(own.astype(np.float32, copy=False), axis, size)
    _check_finite(amax, layer)
    form = bound.weight_format_of(layer)
    scale = _rounded(bound, scale_of(amax, f"weight '{weight}'", form), form)
    if bound.plan.fallback_precision is Precision.BF16:  # which carries the scales as well
        scale = scale.astype(BF16.dtype).astype(np.float32)
    if size == own.shape[axis] and own.ndim == 2:
        return WeightQuantization(scale.reshape(-1), outer, values, form)
    return WeightQuantization(scale, axis, values, form, size)


def _check_finite(amax: np.ndarray[Any, Any], layer: Layer) -> None:
    if not np.all(np.isfinite(amax)):
        raise ModelError(
            f"the weight '{layer.weight}' of layer '{layer.name}' holds NaN or Inf",
            "Train or export the model again.",
            code="QD-MODEL-WEIGHT-VALUES",
        )


def _rounded(bound: BoundPlan, scale: FloatArray, form: Format) -> FloatArray:
    """`scale`, rounded where FP16 Q/DQ will carry it, before anything is quantized with it."""
    if bound.plan.fallback_precision is not Precision.FP16 or not _fits_half(form):
        return scale
    half = half_scale(scale, form)
    return scale if half is None else half


def _fits_half(form: Format) -> bool:
    """Whether FP16 holds the values of a quantized format to its own digits: those of INT16 it
    would round, so that Q/DQ pairs of that format carry FP32 whatever is around them."""
    return form.bits < FP16.bits


def _half_quantized_nodes(graph: Graph, items: list[QuantizedLayer]) -> set[str]:
    """Nodes of quantized layers all of whose scales FP16 can hold, with the DQ nodes they read."""
    fitting = []
    for item in items:
        scales = list(item.activations.values())
        if item.weight is not None:
            scales.append(item.weight.scale)
        form = item.format if item.activations or item.weight is None else item.weight.format
        if _fits_half(form) and all(half_scale(s, form) is not None for s in scales):
            fitting.append(item)
    return _with_dequantizers(graph, fitting)


def _with_dequantizers(graph: Graph, items: Iterable[QuantizedLayer]) -> set[str]:
    """The nodes of layers, and the DequantizeLinear that they read."""
    nodes = {name for item in items for name in item.layer.nodes}
    makers = (graph.producers.get(t) for name in nodes for t in graph.by_name[name].inputs)
    return nodes | {m.name for m in makers if m and m.op_type == "DequantizeLinear"}


def _half_quantizers(graph: Graph) -> list[str]:
    """QuantizeLinear nodes that may read FP16: FP16 can hold their scale."""
    found = []
    for node in graph.nodes:
        scale = graph.constant(node.inputs[1]) if node.op_type == "QuantizeLinear" else None
        form = format_of_codes(graph, node) if scale is not None else None
        if scale is None or form is None or not _fits_half(form):
            continue
        if half_scale(scale, form) is not None:
            found.append(node.name)
    return found


def _grids(bound: BoundPlan) -> dict[str, Grid]:
    ranges = {t: float(np.max(bound.plan.tensors[t].amax)) for t in bound.needed_ranges()}
    by_format = bound.tensors_by_format(ranges)
    return {t: symmetric_grid(ranges[t], form) for form, ts in by_format.items() for t in ts}
