"""Raise FP16 and BF16 to FP32: the reference of a model that contains them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from qdebug.network.subgraphs import rename_reads
from qdebug.network.weights import tensor_of, values_of
from qdebug.plan.rewrite.edit import check, make_node

FP32 = TensorProto.FLOAT
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def raise_to_fp32(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `proto` whose constants and Casts in FP16 and BF16 are FP32.

    Inputs in them keep their type and are cast; outputs become FP32.

    Raises:
        PlanError: as `check`.
    """
    raised = onnx.ModelProto()
    raised.CopyFrom(proto)
    del raised.graph.value_info[:]
    _raise_graph(raised.graph)
    casts = []
    for value in raised.graph.input:
        if value.type.tensor_type.elem_type in _NARROW:
            wide = f"{value.name}:fp32"
            for node in raised.graph.node:
                rename_reads(node, {value.name: wide})
            casts.append(make_node("Cast", [value.name], wide, wide, to=FP32))
    nodes = [*casts, *raised.graph.node]
    del raised.graph.node[:]
    raised.graph.node.extend(nodes)
    return check(raised, "the model in FP32")


def _raise_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _raise_tensor(tensor)
    for value in graph.output:
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = FP32
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _raise_tensor(attribute.t)
            elif attribute.HasField("g"):
                _raise_graph(attribute.g)
            elif attribute.name in ("to", "dtype") and attribute.i in _NARROW:
                attribute.i = FP32


def _raise_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        values = values_of(tensor).astype(np.float32)
        tensor.CopyFrom(tensor_of(values, tensor.name))
