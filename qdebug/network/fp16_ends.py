"""Networks that were converted to FP16 with their inputs and outputs."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from qdebug.network.subgraphs import all_names, free_name, refill, rename_tensors


def widen_ends(graph: onnx.GraphProto) -> bool:
    """Have FP16 inputs and outputs of a graph in FP32, with Casts at both ends: a network that was
    converted whole is fed, and compared, as the FP32 one that it was made from. Whether there are
    any."""
    tensors, nodes = all_names(graph)
    ends = (*graph.input, *graph.output)
    half = [v for v in ends if v.type.tensor_type.elem_type == TensorProto.FLOAT16]
    inner = {v.name: free_name(f"{v.name}_fp16", tensors) for v in half}
    rename_tensors(graph, inner)
    outer = {made: name for name, made in inner.items()}

    def cast(read: str, written: str, kind: int) -> onnx.NodeProto:
        name = free_name(f"{written}_cast", nodes)
        return helper.make_node("Cast", [read], [written], name, to=kind)

    inputs = [v.name for v in graph.input if v.name in outer]
    outputs = [v.name for v in graph.output if v.name in outer]
    first = [cast(outer[t], t, TensorProto.FLOAT16) for t in inputs]
    last = [cast(t, outer[t], TensorProto.FLOAT) for t in outputs]
    for value in half:
        value.name = outer[value.name]
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    refill(graph.node, [*first, *graph.node, *last])
    return bool(half)
