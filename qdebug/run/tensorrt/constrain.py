"""Tell TensorRT 10 what a model's constraints ask: layer precisions, types, ranges, flags.

Checked against the interface of NVIDIA's Python bindings, and never run: that takes a GPU and
TensorRT's own library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from qdebug.errors import PlanError, UsageError
from qdebug.run.tensorrt.calibrator import make_calibrator
from qdebug.run.tensorrt.constraints import Constraints
from qdebug.run.tensorrt.inspect.metadata import nodes_in_metadata
from qdebug.run.tensorrt.library import Library
from qdebug.run.tensorrt.network import tensors_of
from qdebug.types import Precision

_DATA_TYPES = {Precision.FP32: "FLOAT", Precision.FP16: "HALF", Precision.INT8: "INT8"}
_FREE = frozenset({"CONSTANT", "SHAPE", "ASSERTION", "CAST", "QUANTIZE", "DEQUANTIZE"})
"""Types of TensorRT layers whose precision is given by their data."""

EXPECTED_WARNINGS = re.compile(
    r"^(?:Missing scale and zero-point for tensor .*, expect fall back to non-int8|"
    r"Calibrator is not being used\. Users must provide dynamic range for all tensors)"
)
"""What TensorRT 10 says of tensors without a range: only those of layers that are not INT8 have
none."""

_INT8_WORK = frozenset({"CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY"})
"""Types that an INT8 layer is pinned by; the activation after it is fused, or left to choose."""


def apply_constraints(library: Library, network: Any, constraints: Constraints) -> None:
    """Set precisions, element types and (without a calibrator) ranges in a parsed network.

    Raises:
        UsageError: not TensorRT 10.
        PlanError: the network has no layer for a node of the plan that must be pinned, or no
            tensor for a range.
    """
    check_implicit(library)
    trt, precisions = library.module, constraints.precisions
    found: set[str] = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        nodes = nodes_of(layer)
        found.update(nodes)
        asked = next((precisions[n] for n in nodes if n in precisions), None)
        if asked is not None and layer.type.name not in _FREE:
            _pin(trt, layer, asked, constraints)
    lost = [n for n in precisions if n not in found]
    if lost:
        raise PlanError(
            f"{library.name} parsed no layer for node '{lost[0]}' of the plan",
            "Simplify the model first (onnxslim), so that it holds what TensorRT keeps.",
        )
    if not constraints.by_cache:
        _set_ranges(library, network, ranges_in(library, network, constraints))


def nodes_of(layer: Any) -> Sequence[str]:
    """The ONNX nodes that a parsed layer was made for: its metadata say, else its name does."""
    return nodes_in_metadata(layer.metadata or "") or (layer.name,)


def _pin(trt: Any, layer: Any, asked: Precision, constraints: Constraints) -> None:
    outputs = [(i, t) for i, t in enumerate(_outputs(layer)) if _is_float(trt, t)]
    if not outputs:
        return
    int8 = asked is Precision.INT8
    if not int8 or layer.type.name in _INT8_WORK:
        layer.precision = _data_type(trt, asked)
    for index, tensor in outputs:
        kind = constraints.stored.get(tensor.name)
        if kind is None and int8 and tensor.name not in constraints.free:
            kind = constraints.rest
        if kind is not None:
            layer.set_output_type(index, _data_type(trt, kind))


def _outputs(layer: Any) -> list[Any]:
    return [layer.get_output(i) for i in range(layer.num_outputs)]


def _is_float(trt: Any, tensor: Any) -> bool:
    return tensor is not None and tensor.dtype in (trt.DataType.FLOAT, trt.DataType.HALF)


def _data_type(trt: Any, precision: Precision) -> Any:
    return trt.DataType.__members__[_DATA_TYPES[precision]]


def ranges_in(library: Library, network: Any, constraints: Constraints) -> dict[str, float]:
    """amax of the plan's tensors, and of all others that the layers of an INT8 node read or write,
    by their names in the parsed network: the parser makes more layers and tensors than nodes."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    made = {t.name: layer for layer in layers for t in _outputs(layer) if t is not None}
    ranges = dict(constraints.ranges)
    for layer in layers:
        node = next((n for n in nodes_of(layer) if n in constraints.others), None)
        if node is None or layer.type.name in _FREE:
            continue
        other = constraints.others[node]
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
        for tensor in (*inputs, *_outputs(layer)):
            if _is_float(library.module, tensor):
                weight = _is_constant(tensor.name, made)
                amax = constraints.weights.get(node, other) if weight else other
                ranges.setdefault(tensor.name, amax)
    return ranges


def _is_constant(name: str, made: Mapping[str, Any]) -> bool:
    """Whether a tensor is a constant, in the shape that the parser gave it for broadcasting."""
    while name in made and made[name].type.name == "SHUFFLE":
        name = made[name].get_input(0).name
    return name in made and made[name].type.name == "CONSTANT"


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


def constrain_config(library: Library, config: Any, network: Any, constraints: Constraints) -> Any:
    """Set the builder's flags, and the calibrator if there is to be one.

    Returns:
        The calibrator, which the caller keeps until the engine is built; or None.

    Raises:
        UsageError: not TensorRT 10.
    """
    check_implicit(library)
    trt = library.module
    used = {*constraints.precisions.values(), *constraints.stored.values()}
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    if Precision.FP16 in used:
        config.set_flag(trt.BuilderFlag.FP16)
    if Precision.INT8 not in used:
        return None
    config.set_flag(trt.BuilderFlag.INT8)
    if not constraints.by_cache:
        return None
    calibrator = make_calibrator(library, ranges_in(library, network, constraints))
    config.int8_calibrator = calibrator
    return calibrator


def check_implicit(library: Library) -> None:
    """Refuse a library without the implicit way.

    Raises:
        UsageError: not TensorRT 10.
    """
    if not library.implicit:
        raise UsageError(
            f"{library.name} has no implicit quantization (precision constraints and dynamic "
            "ranges): TensorRT 10 was the last that had",
            "Use --typing strong, which builds the lowered model (explicit Q/DQ and Cast).",
        )
