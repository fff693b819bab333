"""TensorRT 10's implicit way to say a plan: the FP32 model, dynamic ranges, layer precisions.

The second lowering of the same BoundPlan; `plan.lower` is the first. As there, a lowered plan is
one ONNX model: here the FP32 model, and among its metadata what TensorRT is to be told of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import onnx

from qdebug.errors import PlanError
from qdebug.model.graph import Graph
from qdebug.plan.plan import BoundPlan, Granularity
from qdebug.plan.quantize import QMAX, scale_of
from qdebug.types import Precision

_KEY = "qdebug.constraints"
"""Of the metadata that hold them."""


@dataclass(frozen=True)
class Constraints:
    """A plan in the terms of TensorRT 10's implicit quantization.

    Attributes:
        precisions: by ONNX node.
        stored: tensors whose element type is fixed, because a layer reads them as they are.
        ranges: amax by tensor: what TensorRT calls the dynamic range (-amax, amax).
        by_cache: the ranges are given as a calibrator's cache rather than one by one.
    """

    precisions: Mapping[str, Precision]
    stored: Mapping[str, Precision]
    ranges: Mapping[str, float]
    by_cache: bool = False


def constrained_graph(bound: BoundPlan, *, by_cache: bool = False) -> Graph:
    """The model that asks TensorRT 10 for a plan: FP32, with its constraints among its metadata.

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
    texts = [p.value for p in proto.metadata_props if p.key == _KEY]
    if not texts:
        return None
    found = json.loads(texts[0])

    def precisions(name: str) -> dict[str, Precision]:
        return {key: Precision(value) for key, value in found[name].items()}

    return Constraints(
        precisions("precisions"), precisions("stored"), found["ranges"], found["by_cache"]
    )


def constraints_of(bound: BoundPlan, *, by_cache: bool = False) -> Constraints:
    """The constraints that ask TensorRT 10 for a plan.

    A layer that is not INT8 keeps its output in its own precision; an INT8 layer in that of the
    rest, unless all who read it are INT8 layers that quantize it: then TensorRT may pass INT8 on.

    Raises:
        PlanError: an INT8 layer reads a tensor without an amax, or with several.
    """
    missing = bound.missing_ranges()
    if missing:
        raise PlanError(
            f"tensor '{missing[0]}' is read by an INT8 layer and has no amax in the plan",
            "Give calibration samples (--calib-data), or add the tensor to the plan.",
        )
    precisions = {n: bound.precisions[layer.name] for layer in bound.layers for n in layer.nodes}
    stored: dict[str, Precision] = {}
    for layer in bound.layers:
        asked = bound.precisions[layer.name]
        if layer.output in bound.layers.graph.outputs:
            stored[layer.output] = Precision.FP32  # a model keeps the types of its outputs
        elif asked is not Precision.INT8:
            stored[layer.output] = asked
        elif not bound.only_quantized(layer.output):
            stored[layer.output] = bound.plan.rest
    ranges = {t: _amax(bound, t) for t in bound.needed_ranges()}
    return Constraints(precisions, stored, ranges, by_cache)


def _amax(bound: BoundPlan, tensor: str) -> float:
    amax = bound.plan.tensors[tensor].amax
    if isinstance(amax, tuple):
        raise PlanError(f"tensor '{tensor}' is an activation: it takes one amax, not {len(amax)}")
    return QMAX * float(scale_of(amax, f"tensor '{tensor}'"))


def lost_in_constraints(bound: BoundPlan) -> tuple[str, ...]:
    """What of a plan cannot be said this way, for people."""
    notes = []
    weights = [x.weight for x in bound.layers_in(Precision.INT8) if x.weight]
    own = [w for w in weights if w in bound.plan.tensors]
    if own:
        notes.append(
            f"The plan's ranges for {len(own)} weights, first '{own[0]}', are not used: implicit "
            "quantization takes a weight's from its values, by output channel."
        )
    elif weights and bound.plan.weights is Granularity.PER_TENSOR:
        notes.append("Implicit quantization quantizes weights by output channel, never as a whole.")
    return tuple(notes)
