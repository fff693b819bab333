"""BF16 in operators that ONNX Runtime's CPU has, which computes next to nothing in it.

Every operator is computed in FP32 from operands that BF16 holds, and its result rounded once, by a
Cast to BF16 and one back. That is what an engine does: tensor cores sum products of BF16 in FP32
(TensorRT for RTX 1.6.1 on an H200: a MatMul was at 133 dB from exact sums, rounded once; a
convolution at 55.6 dB, where rounding is at 52.6, so that its own sums differ more). ONNX Runtime
1.32 leaves such a pair of Casts in place: its optimizers keep what loses digits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, shape_inference

from qdebug.network.graph import Graph
from qdebug.network.subgraphs import all_names, free_name, rename_reads
from qdebug.network.weights import tensor_of, values_of
from qdebug.plan.rewrite.edit import copy_node, make_node

_BF16, _FP32 = int(TensorProto.BFLOAT16), int(TensorProto.FLOAT)
_SELECTING = frozenset(
    {"Clip", "Max", "MaxPool", "Min", "Relu", "Abs", "Neg", "DequantizeLinear"}
    | {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice"}
    | {"Gather", "Expand", "Identity", "Pad", "Tile", "Where", "GatherElements", "GatherND"}
)
"""Operators whose results are values of their operands, up to the sign: they do not round. What
DequantizeLinear gives is multiplied as codes by a kernel."""


def in_fp32(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with every BF16 tensor as an FP32 one that is rounded; itself where there is none.
    What is in a subgraph stays as it is."""
    if not mentions_bf16(proto):
        return proto
    typed = Graph(shape_inference.infer_shapes(proto))
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    del wide.graph.node[:], wide.graph.value_info[:]
    for tensor in wide.graph.initializer:
        _constant_in_fp32(tensor)
    for value in wide.graph.output:
        if value.type.tensor_type.elem_type == _BF16:
            value.type.tensor_type.elem_type = _FP32
    taken, _ = all_names(proto.graph)

    def free(wanted: str) -> str:
        return free_name(wanted, taken)

    fed = [v.name for v in wide.graph.input if v.type.tensor_type.elem_type == _BF16]
    cast = {name: free(f"{name}:fp32") for name in fed}
    nodes = [make_node("Cast", [name], new, to=_FP32) for name, new in cast.items()]
    for original in proto.graph.node:
        node = copy_node(original)
        rename_reads(node, cast)
        narrow = {t for t in original.output if t and typed.types.get(t) == _BF16}
        nodes += _rounded(node, narrow, free)
    wide.graph.node.extend(nodes)
    return wide


def mentions_bf16(proto: onnx.ModelProto) -> bool:
    """Whether a model has BF16 in it, outside of subgraphs."""
    graph = proto.graph
    if any(t.data_type == _BF16 for t in graph.initializer):
        return True
    values = (*graph.input, *graph.output)
    return any(v.type.tensor_type.elem_type == _BF16 for v in values) or any(
        (a.name in ("to", "dtype") and a.i == _BF16) or a.t.data_type == _BF16
        for node in graph.node
        for a in node.attribute
    )


def _rounded(
    node: onnx.NodeProto, narrow: set[str], free: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """`node`, edited in place to compute in FP32, and what rounds those of its outputs that are
    `narrow`."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _constant_in_fp32(attribute.t)
        elif attribute.name in ("to", "dtype") and attribute.i == _BF16:
            attribute.i = _FP32
    made = [node]
    for i, tensor in enumerate(node.output):
        if tensor in narrow and node.op_type not in _SELECTING:
            node.output[i], middle = free(f"{tensor}:unrounded"), free(f"{tensor}:bf16")
            made.append(make_node("Cast", [node.output[i]], middle, to=_BF16))
            made.append(make_node("Cast", [middle], tensor, to=_FP32))
    return made


def _constant_in_fp32(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _BF16:
        tensor.CopyFrom(tensor_of(values_of(tensor).astype(np.float32), tensor.name))
