"""What is compared: the FP32 reference, the lowered candidate, and their layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.errors import PlanError, UsageError
from qdebug.model.graph import Graph
from qdebug.model.layers import Layer, Layers, find_layers
from qdebug.model.prepare import Model
from qdebug.plan.lower import lower
from qdebug.plan.plan import BoundPlan, PrecisionPlan
from qdebug.plan.quantize import QMAX, QMIN
from qdebug.plan.rewrite.raise_fp32 import raise_to_fp32
from qdebug.plan.rewrite.strip import strip_qdq
from qdebug.plan.unconverted import unconverted_notes
from qdebug.types import Precision
from qdebug.wording import option


@dataclass(frozen=True)
class ModelPair:
    """A reference and a candidate whose tensors are matched.

    Attributes:
        model: the user's model.
        reference: computes in FP32.
        candidate: computes as planned.
        tensors: reference tensor -> candidate tensor.
        layers: of the reference.
        precisions: what each layer of the candidate runs in, by name.
        amax: range beyond which a Q/DQ pair of the candidate clips, by reference tensor.
        plan: the plan that was lowered; None for a model that is already quantized.
        notes: what the reader of the result must know.
    """

    model: Model
    reference: Graph
    candidate: Graph
    tensors: Mapping[str, str]
    layers: Layers
    precisions: Mapping[str, Precision]
    amax: Mapping[str, float]
    plan: PrecisionPlan | None
    notes: tuple[str, ...] = ()

    def reads(self, layer: str) -> frozenset[str]:
        """The reference tensors that a layer reads, except those between its own nodes."""
        nodes = [self.reference.by_name[n] for n in self.layers.by_name[layer].nodes]
        own = {t for node in nodes for t in node.outputs}
        return frozenset(t for node in nodes for t in node.reads if t not in own)


def planned_pair(model: Model, bound: BoundPlan) -> ModelPair:
    """The model against itself in the precisions of a plan.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    lowered = lower(bound)
    precisions = {x.name: _lowered_precision(bound, lowered.graph, x) for x in bound.layers}
    return ModelPair(
        model=model,
        reference=model.graph,
        candidate=lowered.graph,
        tensors=lowered.tensors,
        layers=bound.layers,
        precisions=precisions,
        amax=lowered.amax,
        plan=bound.plan,
        notes=unconverted_notes(bound, precisions),
    )


def _lowered_precision(bound: BoundPlan, lowered: Graph, layer: Layer) -> Precision:
    """What a layer really runs in: an operator without an FP16 form stays FP32, and FP16 in the
    model itself stays FP16."""
    if bound.precisions[layer.name] is Precision.INT8:
        return Precision.INT8
    outputs = lowered.by_name[layer.name].outputs
    half = any(lowered.types.get(t) == onnx.TensorProto.FLOAT16 for t in outputs)
    return Precision.FP16 if half else Precision.FP32


def quantized_pair(
    model: Model, reference: Graph | None = None, reference_path: str | None = None
) -> ModelPair:
    """A quantized model as it is, against the FP32 model it was made from.

    Args:
        model: the quantized model.
        reference: the FP32 model; None stands for the model itself without its Q/DQ.
        reference_path: where it was read from, for messages.

    Raises:
        UsageError: the two have different inputs.
        PlanError: the reference given shares no tensor with the model.
    """
    note = ""
    if reference is None:
        reference, note = _without_qdq(model)
    _check_inputs(model, reference, reference_path)
    layers = find_layers(reference)
    known = set(model.graph.producers)
    tensors = {t: t for t in reference.activations() if t in known}
    if not tensors:
        raise PlanError(
            f"{reference_path} and {model.file.path} share no tensor name",
            "Give the FP32 model that the quantized one was made from.",
            code="QD-PLAN-NO-COMMON-TENSOR",
        )
    return ModelPair(
        model=model,
        reference=reference,
        candidate=model.graph,
        tensors=tensors,
        layers=layers,
        precisions={x.name: _found_precision(model.graph, reference, x.name) for x in layers},
        amax=_found_ranges(model.graph),
        plan=None,
        notes=(note,) if note else (),
    )


def _without_qdq(model: Model) -> tuple[Graph, str]:
    raised = Graph(onnx.shape_inference.infer_shapes(raise_to_fp32(model.graph.proto)))
    stripped = onnx.shape_inference.infer_shapes(strip_qdq(raised))
    note = (
        "The model is quantized (Q/DQ): it is compared with itself without Q/DQ. That hides the "
        f"rounding of weights stored as INT8; {option('reference', 'FP32.onnx')} shows it."
    )
    return Graph(stripped), note


def _check_inputs(model: Model, reference: Graph, reference_path: str | None) -> None:
    given = {spec.name: spec.dtype for spec in model.graph.inputs}
    for spec in reference.inputs:
        found = given.get(spec.name)
        if found != spec.dtype:
            kind = "none of that name" if found is None else f"it as {found}"
            raise UsageError(
                f"{option('reference')}: {reference_path} has an input '{spec.name}' "
                f"({spec.dtype}), but {model.file.path} has {kind}",
                "Give the FP32 model that the quantized one was made from.",
                code="QD-USAGE-REFERENCE-INPUTS",
            )


def _found_precision(graph: Graph, reference: Graph, name: str) -> Precision:
    # By name, or by what it computes: a quantizer may rename nodes.
    node = graph.by_name.get(name) or graph.producers.get(reference.by_name[name].outputs[0])
    if node is None:
        return Precision.FP32
    producers = [graph.producers.get(t) for t in node.inputs[:2]]
    if any(p is not None and p.op_type == "DequantizeLinear" for p in producers):
        return Precision.INT8
    half = graph.types.get(node.outputs[0]) == onnx.TensorProto.FLOAT16
    return Precision.FP16 if half else Precision.FP32


def _found_ranges(graph: Graph) -> dict[str, float]:
    """The magnitude that each QuantizeLinear of an activation can hold."""
    ranges = {}
    for node in graph.nodes:
        if node.op_type != "QuantizeLinear" or node.inputs[0] in graph.initializers:
            continue
        scale = graph.constant(node.inputs[1])
        zero = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if scale is None or scale.size != 1 or (zero is not None and zero.size != 1):
            continue
        offset = int(zero.reshape(())) if zero is not None else 0
        unsigned = zero is None or zero.dtype == np.uint8
        lowest, highest = (0, 255) if unsigned else (QMIN, QMAX)
        steps = max(abs(lowest - offset), abs(highest - offset))
        if offset == 0:
            steps = highest
        ranges[node.inputs[0]] = float(scale.reshape(())) * steps
    return ranges
