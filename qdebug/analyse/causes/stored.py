"""Constants of a file in FP16 that are more than rounded: the layer computes something else."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from qdebug.analyse.causes.overflow import FP16_OVERFLOW
from qdebug.formats.registry import FP16
from qdebug.network.layers import Layer
from qdebug.plan.pair import ModelPair
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.results.compare import Cause
from qdebug.types import Array

_MORE_THAN_ROUNDED = 0.01
"""Of the largest value of a constant: FP16 rounds each value by 1/2048 of it at most."""
_SMALLEST = 2.0**-24
"""The smallest number of FP16: values below are rounded to a multiple of it, or to 0."""
_FOLD = (
    "Fold BatchNormalization into what it follows before the conversion (onnxsim, or ONNX "
    "Runtime's offline optimization)."
)


def changed_constants(pair: ModelPair, layer: Layer) -> Cause | None:
    """The cause of an FP16 layer whose constants are other ones than those of the FP32 model; None
    where they are these, rounded. It may be that FP16 cannot hold one of them."""
    found = _changed(pair, layer) if pair.aligned is not None else None
    if found is None:
        return None
    tensor, reach, held = found
    differs = f"'{tensor}' reaches {reach:.3g} in the FP32 model and {held:.3g} in the one in FP16"
    cut = _cut(pair, layer)
    if cut is None:
        return Cause(
            "other-weights",
            1.0,
            f"{differs}, which is no rounding: it may have been corrected or trained",
            "If that is intended, judge by the outputs; otherwise compare with the FP32 model that "
            "was converted.",
        )
    node, constant, became, remedy = cut
    evidence = f"'{constant}', which '{node}' reads, {became}, so that {differs}"
    return Cause(FP16_OVERFLOW, 1.0, evidence, remedy, brief=evidence)


def _changed(pair: ModelPair, layer: Layer) -> tuple[str, float, float] | None:
    """The first constant of a layer that is more than rounded, and its reach in both models."""
    mine, its = ConstantValues(pair.reference), ConstantValues(pair.candidate)
    for name in layer.nodes:
        one, other = pair.reference.by_name.get(name), pair.candidate.by_name.get(name)
        if one is None or other is None or one.op_type != other.op_type:
            continue
        for tensor, stored in zip(one.inputs, other.inputs, strict=False):
            if not (tensor and stored and mine.is_constant(tensor) and its.is_constant(stored)):
                continue
            values, held = _wide(mine.value(tensor)), _wide(its.value(stored))
            if values is None or held is None or values.shape != held.shape or not values.size:
                continue
            finite = np.isfinite(values)  # infinities of FP32, as of a mask, are no size
            if not finite.any():
                continue
            own, read = values[finite], held[finite]
            reach = float(np.abs(own).max())
            bound = max(_MORE_THAN_ROUNDED * reach, _SMALLEST)
            if not float(np.abs(own - read).max()) <= bound:
                return tensor, reach, float(np.abs(read).max())
    return None


def _wide(values: Array | None) -> Array | None:
    """Constants of floating point as float64; None of others."""
    return None if values is None or values.dtype.kind != "f" else values.astype(np.float64)


def _cut(pair: ModelPair, layer: Layer) -> tuple[str, str, str, str] | None:
    """The first node of the file that a layer stands for which reads a constant in FP16 that FP16
    cannot hold; the constant, what became of it, and what to do."""
    origins = {user for name in layer.nodes for user in pair.model.origins.get(name, (name,))}
    graph = pair.model.file.proto.graph
    constants = {
        t.name: t
        for t in graph.initializer
        if t.data_type == TensorProto.FLOAT16 and not uses_external_data(t)
    }
    for node in graph.node:
        if node.name not in origins:
            continue
        for tensor in node.input:
            if tensor not in constants or not _exceeds(pair, tensor):
                continue
            values = np.abs(numpy_helper.to_array(constants[tensor]).astype(np.float64))
            if values.max(initial=0) >= FP16.largest:
                finite = bool(np.isfinite(values).all())
                limit = f"{FP16.largest:.0f}, the largest number of FP16"
                became = f"was cut to {limit}" if finite else f"is Inf: it is beyond {limit}"
                keep = "keep the layer in FP32."
                normalizes = node.op_type == "BatchNormalization"
                remedy = f"{_FOLD} Otherwise {keep}" if normalizes else f"K{keep[1:]}"
                return node.name, tensor, became, remedy
    return None


def _exceeds(pair: ModelPair, tensor: str) -> bool:
    """Whether the FP32 model has values there that FP16 cannot hold, as far as it has a constant of
    this name."""
    own = pair.reference.initializers.get(tensor)
    if own is None or uses_external_data(own):
        return True
    values = _wide(numpy_helper.to_array(own))
    if values is None:
        return False
    sizes = np.abs(values[np.isfinite(values)])
    return bool(sizes.max(initial=0) > FP16.largest)
