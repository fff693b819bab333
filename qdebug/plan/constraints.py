"""Lower a plan to TensorRT 10's implicit quantization: dynamic ranges and layer precisions.

This is the second lowering of a BoundPlan; `plan.lower` is the first. Here, too, a lowered plan is
one ONNX model: the FP32 model, whose metadata holds what TensorRT is to be told about it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import onnx
from pydantic import TypeAdapter

from qdebug.errors import PlanError
from qdebug.formats.registry import INT8
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.plan.plan import BoundPlan, Granularity
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.types import Precision
from qdebug.wording import option

_CUTTING = frozenset({"Relu", "Clip"})  # they cut values off and change no others
_KEY = "qdebug.constraints"  # of the model's metadata


@dataclass(frozen=True)
class Constraints:
    """A plan in the terms of TensorRT 10's implicit quantization.

    Attributes:
        precisions: by ONNX node.
        stored: the element type of tensors for which it is fixed, because a layer reads them as
            they are.
        fallback: the element type of everything else that an INT8 layer writes, such as what is
            between its nodes, except what is in `free`.
        free: tensors that TensorRT may store in INT8.
        ranges: amax by tensor; TensorRT calls (-amax, amax) the dynamic range.
        others: by node of the INT8 layers: amax for whatever they read and write that is not in
            `ranges`. TensorRT chooses an INT8 kernel only where all of these have a range, even
            what is stored in floating point or lives within a kernel.
        weights: by the same nodes: the largest magnitude of their weights.
        by_cache: the ranges are passed as a calibrator's cache rather than one by one.
    """

    precisions: Mapping[str, Precision]
    stored: Mapping[str, Precision]
    fallback: Precision
    free: tuple[str, ...]
    ranges: Mapping[str, float]
    others: Mapping[str, float]
    weights: Mapping[str, float]
    by_cache: bool = False


def constrained_graph(bound: BoundPlan, *, by_cache: bool = False) -> Graph:
    """The FP32 model with the constraints of a plan in its metadata.

    Raises:
        PlanError: as `constraints_of`.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(bound.layers.graph.proto)
    found = asdict(constraints_of(bound, by_cache=by_cache))
    proto.metadata_props.add(key=_KEY, value=json.dumps(found))
    return Graph(proto)


def constraints_in(proto: onnx.ModelProto) -> Constraints | None:
    """The constraints that a `constrained_graph` carries; None for any other model."""
    text = next((p.value for p in proto.metadata_props if p.key == _KEY), None)
    return None if text is None else TypeAdapter(Constraints).validate_json(text)


def constraints_of(bound: BoundPlan, *, by_cache: bool = False) -> Constraints:
    """The constraints that request a plan from TensorRT 10.

    The output of a layer in higher precision has that precision. The output of an INT8 layer has
    the plan's fallback precision, unless every reader is an INT8 layer that quantizes it: then
    TensorRT may pass INT8 on.

    Raises:
        PlanError: an INT8 layer reads a tensor without an amax, or with several.
    """
    missing = bound.missing_ranges()
    if missing:
        raise PlanError(
            f"tensor '{missing[0]}' is read by an INT8 layer, but has no range (amax) in the plan",
            f"Give calibration samples ({option('calib_data')}), or add the tensor to the plan.",
            code="QD-PLAN-RANGE-MISSING",
        )
    precisions = {n: bound.precisions[layer.name] for layer in bound.layers for n in layer.nodes}
    stored: dict[str, Precision] = {}
    for layer in bound.layers:
        requested = bound.precisions[layer.name]
        if layer.output in bound.layers.graph.outputs:
            stored[layer.output] = Precision.FP32  # a model keeps the types of its outputs
        elif requested is not Precision.INT8:
            stored[layer.output] = requested
        elif not bound.only_quantized(layer.output):
            stored[layer.output] = bound.plan.fallback_precision
    ranges = {t: _amax(bound, t) for t in bound.needed_ranges()}
    int8 = bound.layers_in(Precision.INT8)
    weights = {x.name: _largest(bound.layers.graph, x.weight) for x in int8 if x.weight}
    free: list[str] = []
    others: dict[str, float] = {}
    for layer in int8:
        cut = _cut_off(bound, layer)
        other = _amax(bound, layer.output) if cut else _limit(bound, layer)
        others |= dict.fromkeys(layer.nodes, other)
        if layer.output not in stored:
            free += _written(bound, layer) if cut else [layer.output]
    fallback = bound.plan.fallback_precision
    return Constraints(precisions, stored, fallback, tuple(free), ranges, others, weights, by_cache)


def _amax(bound: BoundPlan, tensor: str) -> float:
    return INT8.largest * float(bound.activation_scale(tensor))


def _written(bound: BoundPlan, layer: Layer) -> list[str]:
    return [t for name in layer.nodes for t in bound.layers.graph.by_name[name].outputs]


def _cut_off(bound: BoundPlan, layer: Layer) -> bool:
    """Whether all tensors of an INT8 layer may be quantized as its output is: what follows its
    product only cuts values off, so it makes no difference where."""
    after = {bound.layers.graph.by_name[name].op_type for name in layer.nodes[1:]}
    return layer.output in bound.plan.tensors and bool(after) and after <= _CUTTING


def _limit(bound: BoundPlan, layer: Layer) -> float:
    """A magnitude that no tensor of an INT8 layer exceeds: Σ|w|·amax of its worst output channel
    (K·amax·amax for two activations), plus everything that is added to it. No activation function
    that is fused with a product exceeds its input, or 1."""
    graph = bound.layers.graph
    anchor = graph.by_name[layer.name]
    reads = [_amax(bound, t) for t in layer.quantized_inputs if t in anchor.inputs]
    if layer.weight is not None:
        values = graph.constant(layer.weight)
        assert values is not None  # a layer's weight is an initializer by construction
        weights = np.abs(values)
        axis = weight_axis(anchor, graph, layer.weight)
        others = tuple(k for k in range(weights.ndim) if axis is not None and k != axis)
        total = max(reads, default=1.0) * float(weights.sum(axis=others or None).max())
    else:
        inner = graph.shapes.get(anchor.inputs[0], ())[-1:]
        total = math.prod(reads) * next((k for k in inner if isinstance(k, int)), 1)
    inside = _written(bound, layer)
    for name in layer.nodes:
        for tensor in graph.by_name[name].inputs:
            if tensor in graph.initializers and tensor != layer.weight:
                total += _largest(graph, tensor)
            elif tensor in bound.plan.tensors and tensor not in (*anchor.inputs, *inside):
                total += _amax(bound, tensor)
    return max(total, 1.0)


def _largest(graph: Graph, constant: str) -> float:
    values = graph.constant(constant)
    if values is None or not values.size or not np.issubdtype(values.dtype, np.floating):
        return 0.0
    return float(np.abs(values).max())


def lost_in_constraints(bound: BoundPlan) -> tuple[str, ...]:
    """What of a plan constraints cannot express, in words."""
    notes = []
    weights = [x.weight for x in bound.layers_in(Precision.INT8) if x.weight]
    own = [w for w in weights if w in bound.plan.tensors]
    if own:
        notes.append(
            f"The plan's ranges for {len(own)} weights are not used (first '{own[0]}'): implicit "
            "quantization derives them from the values, per output channel."
        )
    elif weights and bound.plan.weights is Granularity.PER_TENSOR:
        notes.append(
            "Implicit quantization quantizes weights per output channel, never per tensor."
        )
    return tuple(notes)
