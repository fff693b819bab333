"""A network whose narrow channels matter as much as its wide ones, quantized in several ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qdebug
from qdebug.types import Array

CHANNELS, INNER = 8, 16
RANGES = 10.0 ** np.linspace(0, 2.5, CHANNELS)
"""Of the output channels of the layer in the middle; what follows it undoes them, so that all
matter alike."""


def quantized(op_type: str, scales: str | None, undo_by: str = "Mul") -> onnx.ModelProto:
    """x → Conv, ConvTranspose, Gemm or MatMul in the middle, whose output channels have ranges from
    1 to 300 → a Mul or BatchNormalization that undoes them. `scales` lie along the output
    channels, along the input channels, or are one for the tensor; None quantizes nothing."""
    rng = np.random.default_rng(5)
    image = op_type in ("Conv", "ConvTranspose")
    outer = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0, "MatMul": 1}[op_type]
    kernel = (3, 3) if image else ()
    shape = (CHANNELS, INNER) if outer == 0 else (INNER, CHANNELS)
    weight = rng.normal(size=(*shape, *kernel)) / np.sqrt(INNER * (9 if image else 1))
    along = [1] * weight.ndim
    along[outer] = CHANNELS
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {"w": (weight * RANGES.reshape(along)).astype(np.float32)}

    def pair(tensor: str, scale: Array, axis: int | None) -> str:
        constants[f"{tensor}_s"] = np.asarray(scale, np.float32)
        constants[f"{tensor}_z"] = np.zeros(np.shape(scale), np.int8)
        more: dict[str, Any] = {} if axis is None else {"axis": axis}
        reads = [f"{tensor}_s", f"{tensor}_z"]
        nodes.append(helper.make_node("QuantizeLinear", [tensor, *reads], [f"{tensor}_q"], **more))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{tensor}_q", *reads], [f"{tensor}_d"], **more)
        )
        return f"{tensor}_d"

    reads = ["x", "w"]
    if scales is not None:
        axis = {"out": outer, "in": 1 - outer, "tensor": None}[scales]
        others = tuple(i for i in range(weight.ndim) if i != axis) if axis is not None else None
        amax = np.abs(constants["w"]).max(axis=others)
        reads = [pair("x", np.float32(4.5 / 127), None), pair("w", amax / 127, axis)]
    how: dict[str, Any] = {"pads": [1] * 4} if image else {}
    if op_type == "Gemm":
        how = {"transB": 1}
    nodes.append(helper.make_node(op_type, reads, ["y"], "middle", **how))
    undo = (1 / RANGES).astype(np.float32)
    constants["undo"] = undo.reshape(-1, 1, 1) if image and undo_by == "Mul" else undo
    rest = ["none", "none", "one"] if undo_by == "BatchNormalization" else []
    if rest:
        constants |= {"none": np.zeros(CHANNELS, np.float32), "one": np.ones(CHANNELS, np.float32)}
    nodes.append(helper.make_node(undo_by, ["y", "undo", *rest], ["wide"], "undone"))
    nodes.append(helper.make_node("Tanh", ["wide"], ["z"], "last"))
    size = ["N", INNER, 8, 8] if image else ["N", INNER]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, size)],
        [value("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def compared(
    op_type: str, scales: str | None, undo_by: str = "Mul", **more: Any
) -> qdebug.CompareResult:
    size = (16, INNER, 8, 8) if op_type in ("Conv", "ConvTranspose") else (64, INNER)
    x = np.random.default_rng(1).normal(size=size).astype(np.float32)
    if scales is not None:
        more["reference"] = quantized(op_type, None, undo_by)
    return qdebug.compare(quantized(op_type, scales, undo_by), inputs={"x": x}, **more)
