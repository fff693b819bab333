"""What an export may have changed: each as a change of the ONNX model that takes it back.

A cause is named by measurement: with the change made, the outputs are the framework's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.types import Array
from qdebug.wording import counted

Change = Callable[[onnx.ModelProto], None]
"""Changes a copy of the model in place."""

Values = Mapping[str, str | int | float]

_RESIZES = (
    ("nearest", "asymmetric", "floor"),
    ("nearest", "half_pixel", "round_prefer_floor"),
    ("nearest", "align_corners", "round_prefer_floor"),
    ("linear", "half_pixel"),
    ("linear", "pytorch_half_pixel"),
    ("linear", "align_corners"),
    ("linear", "asymmetric"),
    ("cubic", "half_pixel"),
    ("cubic", "align_corners"),
)
"""mode, coordinate_transformation_mode and nearest_mode that frameworks have."""
_RESIZE = ("mode", "coordinate_transformation_mode", "nearest_mode")
_EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12)
"""Defaults of PyTorch (1e-5), Keras (1e-3), Hugging Face (1e-5, 1e-6, 1e-12), and others near."""
_LARGEST_EPSILON = 1e-2
_NORMALIZING = (
    *("BatchNormalization", "InstanceNormalization", "LayerNormalization"),
    *("GroupNormalization", "RMSNormalization"),
)
EPSILON = "Export with the epsilon of the framework's normalization."
_PADDING = "Export with the padding of the framework."
_SETTINGS: Sequence[tuple[str, Sequence[str], Sequence[Values], str]] = (
    (
        "interpolation",
        ("Resize",),
        [dict(zip(_RESIZE, values, strict=False)) for values in _RESIZES],
        "Export with the interpolation of the framework: mode, align_corners and antialias of its "
        "resizing must be those of the exported graph.",
    ),
    ("padding", ("Pad",), [{"mode": m} for m in ("constant", "reflect", "edge")], _PADDING),
    ("padding", ("AveragePool",), [{"count_include_pad": n} for n in (0, 1)], _PADDING),
    ("epsilon", _NORMALIZING, [{"epsilon": e} for e in _EPSILONS], EPSILON),
    (
        "softmax-axis",
        ("Softmax", "LogSoftmax"),
        [{"axis": axis} for axis in (1, -1)],
        "Softmax flattens before opset 13: export at opset 13 or newer.",
    ),
    (
        "gelu",
        ("Gelu",),
        [{"approximate": how} for how in ("none", "tanh")],
        "Export with the approximation of GELU that the framework uses.",
    ),
)
"""Label, operators, settings of them that frameworks have, and what to do."""
_READS_WEIGHTS = QUANTIZABLE_OPS | {"Einsum", "Gather", "GRU", "LSTM", "RNN"}
"""Operators whose constants of more than one dimension are weights; a Gather's are embeddings."""
_ENOUGH_VALUES = 16
"""So many different values of FP32 are not numbers of FP16 by chance: one in 8192 is."""
HALVES = {"BF16": np.dtype(ml_dtypes.bfloat16), "FP16": np.dtype(np.float16)}
"""By name, the fewest bits first: most numbers of BF16 are numbers of FP16 too."""


@dataclass(frozen=True)
class Fault:
    """A change that an export may have made.

    Attributes:
        label: of the cause.
        undone: what is done to take it back, for people: "with …".
        remedy: what to do about it.
        change: does it.
    """

    label: str
    undone: str
    remedy: str
    change: Change


def faults_of(proto: onnx.ModelProto) -> Iterator[Fault]:
    """Those that this model may have."""
    operators = {node.op_type for node in proto.graph.node}
    for label, of, settings, remedy in _SETTINGS:
        found = [name for name in of if name in operators]
        for values in settings if found else ():
            each = (f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())
            undone = f"with {', '.join(each)} in {', '.join(found)}"
            yield Fault(label, undone, remedy, partial(_set_attributes, of=found, values=values))
    if added := _added_epsilons(proto):
        for epsilon in _EPSILONS:
            undo = partial(_set_constants, names=added, value=epsilon)
            yield Fault("epsilon", f"with {epsilon:g} added before the square root", EPSILON, undo)
    if any(map(_trains, proto.graph.node)):
        yield Fault(
            "training-mode",
            "with BatchNormalization and Dropout as in inference",
            "Call model.eval() before the export, or export with training=EVAL.",
            _stop_training,
        )
    for name, dtype in HALVES.items():
        yield Fault(
            "half-weights",
            f"with the weights rounded to {name}",
            f"The framework ran with weights in {name}: run it in FP32, or export those weights.",
            partial(_round_weights, dtype=dtype),
        )


def _set_attributes(proto: onnx.ModelProto, of: Sequence[str], values: Values) -> None:
    for node in proto.graph.node:
        if node.op_type in of:
            kept = [a for a in node.attribute if a.name not in values]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.extend(helper.make_attribute(k, v) for k, v in values.items())


def _added_epsilons(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Small constants that are added before a square root: normalizations in single operators."""
    constants = {t.name: t for t in proto.graph.initializer if not t.dims or list(t.dims) == [1]}
    roots = {n.input[0] for n in proto.graph.node if n.op_type in ("Sqrt", "Rsqrt", "Pow")}
    found = []
    for node in proto.graph.node:
        if node.op_type == "Add" and node.output[0] in roots:
            for name in node.input:
                if name in constants and 0 < float(_scalar(constants[name])) <= _LARGEST_EPSILON:
                    found.append(name)
    return tuple(dict.fromkeys(found))


def _scalar(tensor: onnx.TensorProto) -> float:
    return float(numpy_helper.to_array(tensor).reshape(-1)[0])


def _set_constants(proto: onnx.ModelProto, names: Sequence[str], value: float) -> None:
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            old = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(old, value), tensor.name))


def _trains(node: onnx.NodeProto) -> bool:
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2])
    return node.op_type == "BatchNormalization" and any(
        a.name == "training_mode" and a.i for a in node.attribute
    )


def _stop_training(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.op_type == "Dropout" and len(node.input) > 2:
            del node.input[2:]
        elif _trains(node):
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend(kept)
            del node.output[1:]


def _round_weights(proto: onnx.ModelProto, dtype: np.dtype[np.generic]) -> None:
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(dtype).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def half_of(values: Array) -> str:
    """The half type that all values are numbers of, though they may be stored in FP32; "" where
    there is none, or where the values are too few to tell."""
    if values.dtype.kind != "f":
        return ""
    with np.errstate(over="ignore"):
        rounded = (
            name
            for name, dtype in HALVES.items()
            if np.array_equal(values.astype(dtype).astype(values.dtype), values, equal_nan=True)
        )
        name = next(rounded, "")
    return name if name and len(np.unique(values)) >= _ENOUGH_VALUES else ""


def rounded_weights(proto: onnx.ModelProto) -> str:
    """Which weights are numbers of a half type, though they are stored in FP32, for people; ""
    where none are. Those that a normalization was folded into are not any more; constants that
    only arithmetic reads, such as the corners of a grid, are no weights."""
    readers = (n for n in proto.graph.node if n.op_type in _READS_WEIGHTS)
    read = {name for node in readers for name in node.input}
    weights = (
        numpy_helper.to_array(t)
        for t in proto.graph.initializer
        if t.name in read and t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1
    )
    halves = [half_of(weight) for weight in weights if weight.size >= _ENOUGH_VALUES]
    counts = Counter(filter(None, halves))
    if not counts:
        return ""
    name, same = counts.most_common(1)[0]
    return f"all values of {same} of {counted(halves, 'weight')} are numbers of {name}"
