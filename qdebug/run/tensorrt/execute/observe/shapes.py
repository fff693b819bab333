"""The shapes of a model's tensors for given inputs, by ONNX's shape inference."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from qdebug.model.graph import Graph

Shape = tuple[int, ...]


def shapes_for(proto: onnx.ModelProto, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shape of every tensor that is known when the inputs have these shapes."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    del fixed.graph.value_info[:]
    for value in fixed.graph.input:
        if value.name in inputs:
            kind = value.type.tensor_type.elem_type
            shape = inputs[value.name]
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    for value in fixed.graph.output:  # a declared symbol would win over what is inferred
        value.type.tensor_type.ClearField("shape")
    graph = Graph(onnx.shape_inference.infer_shapes(fixed, data_prop=True))
    return {
        name: tuple(int(axis) for axis in shape if isinstance(axis, int))
        for name, shape in graph.shapes.items()
        if all(isinstance(axis, int) for axis in shape)
    }


def sizes_for(proto: onnx.ModelProto, inputs: Mapping[str, Shape]) -> dict[str, int]:
    """The bytes of every tensor whose shape and type are known. See `shapes_for`."""
    types = Graph(onnx.shape_inference.infer_shapes(proto)).types
    return {
        name: math.prod(shape) * _item_bytes(types[name])
        for name, shape in shapes_for(proto, inputs).items()
        if name in types
    }


def _item_bytes(kind: int) -> int:
    if kind == TensorProto.STRING:
        return 8
    return int(helper.tensor_dtype_to_np_dtype(kind).itemsize)
