"""TensorRT 10's implicit way to say a plan: the FP32 model, dynamic ranges, layer precisions.

The second lowering of the same BoundPlan; `plan.lower` is the first. It was checked against the
interface of NVIDIA's Python bindings, and never run: that takes a GPU and TensorRT's own library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from qdebug.errors import PlanError, UsageError
from qdebug.model.graph import Graph
from qdebug.plan.plan import BoundPlan, Granularity
from qdebug.plan.quantize import QMAX, scale_of
from qdebug.run.tensorrt.calibrator import make_calibrator
from qdebug.run.tensorrt.inspect.metadata import nodes_in_metadata
from qdebug.run.tensorrt.library import Library
from qdebug.run.tensorrt.network import tensors_of
from qdebug.types import Precision

_DATA_TYPES = {Precision.FP32: "FLOAT", Precision.FP16: "HALF", Precision.INT8: "INT8"}
_FREE = frozenset({"CONSTANT", "SHAPE", "ASSERTION", "CAST", "QUANTIZE", "DEQUANTIZE"})
"""Types of TensorRT layers whose precision is given by their data."""

_INT8_WORK = frozenset({"CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY"})
"""Types that an INT8 layer is pinned by; the activation after it is fused, or left to choose."""


@dataclass(frozen=True)
class Constraints:
    """A plan in the terms of TensorRT 10's implicit quantization.

    Attributes:
        graph: the FP32 model to parse.
        precisions: by ONNX node.
        stored: tensors whose element type is fixed, because a layer reads them as they are.
        ranges: amax by tensor: what TensorRT calls the dynamic range (-amax, amax).
        calibrator: serve the ranges through a calibrator's cache rather than one by one.
        notes: what of the plan cannot be said this way.
    """

    graph: Graph = field(repr=False)
    precisions: Mapping[str, Precision]
    stored: Mapping[str, Precision]
    ranges: Mapping[str, float]
    calibrator: bool = False
    notes: tuple[str, ...] = ()

    @property
    def proto(self) -> onnx.ModelProto:
        """The model to give to `build_engine`."""
        return self.graph.proto

    def fingerprint(self) -> str:
        """Equal for equal constraints; the model is not in it."""
        facts = [self.precisions, self.stored, self.ranges, self.calibrator]
        return json.dumps([sorted(f.items()) if isinstance(f, Mapping) else f for f in facts])


def constraints_of(bound: BoundPlan, calibrator: bool = False) -> Constraints:
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
    return Constraints(
        bound.layers.graph,
        precisions,
        stored,
        {t: _amax(bound, t) for t in bound.needed_ranges()},
        calibrator,
        tuple(_notes(bound)),
    )


def _amax(bound: BoundPlan, tensor: str) -> float:
    amax = bound.plan.tensors[tensor].amax
    if isinstance(amax, tuple):
        raise PlanError(f"tensor '{tensor}' is an activation: it takes one amax, not {len(amax)}")
    return QMAX * float(scale_of(amax, f"tensor '{tensor}'"))


def _notes(bound: BoundPlan) -> list[str]:
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
    return notes


def apply_constraints(library: Library, network: Any, constraints: Constraints) -> None:
    """Set precisions, element types and (without a calibrator) ranges in a parsed network.

    Raises:
        UsageError: not TensorRT 10.
        PlanError: the network has no layer for a node of the plan that must be pinned, or no
            tensor for a range.
    """
    _require(library)
    trt, precisions = library.module, constraints.precisions
    found: set[str] = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        nodes = nodes_of(layer)
        found.update(nodes)
        asked = next((precisions[n] for n in nodes if n in precisions), None)
        if asked is not None and layer.type.name not in _FREE:
            _pin(trt, layer, asked, constraints.stored)
    lost = [n for n in precisions if n not in found]
    if lost:
        raise PlanError(
            f"{library.name} parsed no layer for node '{lost[0]}' of the plan",
            "Simplify the model first (onnxslim), so that it holds what TensorRT keeps.",
        )
    if not constraints.calibrator:
        _set_ranges(library, network, constraints.ranges)


def nodes_of(layer: Any) -> Sequence[str]:
    """The ONNX nodes that a parsed layer was made for: its metadata say, else its name does."""
    return nodes_in_metadata(layer.metadata or "") or (layer.name,)


def _pin(trt: Any, layer: Any, asked: Precision, stored: Mapping[str, Precision]) -> None:
    outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
    floats = (trt.DataType.FLOAT, trt.DataType.HALF)
    if not any(t is not None and t.dtype in floats for t in outputs):
        return
    if asked is not Precision.INT8 or layer.type.name in _INT8_WORK:
        layer.precision = _data_type(trt, asked)
    for index, tensor in enumerate(outputs):
        if tensor is not None and tensor.name in stored and tensor.dtype in floats:
            layer.set_output_type(index, _data_type(trt, stored[tensor.name]))


def _data_type(trt: Any, precision: Precision) -> Any:
    return trt.DataType.__members__[_DATA_TYPES[precision]]


def _set_ranges(library: Library, network: Any, ranges: Mapping[str, float]) -> None:
    inputs = (network.get_input(i) for i in range(network.num_inputs))
    tensors = {t.name: t for t in inputs} | tensors_of(network)
    for name, amax in ranges.items():
        if name not in tensors:
            raise PlanError(
                f"{library.name} parsed no tensor '{name}' that the plan has a range for"
            )
        if not tensors[name].set_dynamic_range(-amax, amax):
            raise PlanError(f"{library.name} refuses the range ±{amax} of tensor '{name}'")


def constrain_config(library: Library, config: Any, constraints: Constraints) -> Any:
    """Set the builder's flags, and the calibrator if there is to be one.

    Returns:
        The calibrator, which the caller keeps until the engine is built; or None.

    Raises:
        UsageError: not TensorRT 10.
    """
    _require(library)
    trt = library.module
    used = {*constraints.precisions.values(), *constraints.stored.values()}
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    if Precision.FP16 in used:
        config.set_flag(trt.BuilderFlag.FP16)
    if Precision.INT8 not in used:
        return None
    config.set_flag(trt.BuilderFlag.INT8)
    if not constraints.calibrator:
        return None
    calibrator = make_calibrator(library, constraints.ranges)
    config.int8_calibrator = calibrator
    return calibrator


def _require(library: Library) -> None:
    if not library.implicit:
        raise UsageError(
            f"{library.name} has no precision constraints and dynamic ranges: TensorRT 10 was the "
            "last that had",
            "Build the lowered model (explicit Q/DQ and Cast) instead.",
        )
