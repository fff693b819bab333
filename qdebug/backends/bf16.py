"""BF16 in operators that ONNX Runtime's CPU has, which computes next to nothing in it.

Every operator is computed in FP32 from operands that BF16 holds, and its result rounded by a Cast
to BF16 and one back. ONNX Runtime 1.32 leaves such a pair of Casts in place: its optimizers keep
what loses digits.

Tensor cores sum products of BF16 in FP32. For the rest, kernels round inside as those of FP16 do
(`fp16_emulation`): before a bias is added, between the steps of a Softmax. A bias that is added
last, before a Cast to FP32, is not rounded. Observed with TensorRT for RTX 1.6.1 on an H100.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, shape_inference

from qdebug.backends.fp16_emulation.rounding import as_tensorrt_computes, mentions_narrow
from qdebug.formats.registry import BF16
from qdebug.network.graph import Graph
from qdebug.network.subgraphs import all_names, free_name, rename_reads
from qdebug.network.weights import tensor_of, values_of
from qdebug.plan.rewrite.edit import copy_node, make_node
from qdebug.types import Fp16Kernels

_BF16, _FP32 = int(TensorProto.BFLOAT16), int(TensorProto.FLOAT)
_SELECTING = frozenset(
    {"Clip", "Max", "MaxPool", "Min", "Relu", "Abs", "Neg", "DequantizeLinear"}
    | {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice"}
    | {"Gather", "Expand", "Identity", "Pad", "Tile", "Where", "GatherElements", "GatherND"}
)
"""Operators whose results are values of their operands, up to the sign: they do not round. What
DequantizeLinear gives is multiplied as codes by a kernel, but for weights in blocks."""


def in_fp32(proto: onnx.ModelProto, kernels: Fp16Kernels = Fp16Kernels.EXACT) -> onnx.ModelProto:
    """`proto` with every BF16 tensor as an FP32 one that is rounded; itself where there is none.
    What is in a subgraph stays as it is.

    Args:
        proto: the model.
        kernels: how operators round internally.
    """
    if not mentions_narrow(proto, [_BF16]):
        return proto
    typed = Graph(shape_inference.infer_shapes(proto))
    wide = deepcopy(proto)
    del wide.graph.node[:], wide.graph.value_info[:]
    for tensor in wide.graph.initializer:
        _constant_in_fp32(tensor)
    for value in wide.graph.output:
        if value.type.tensor_type.elem_type == _BF16:
            value.type.tensor_type.elem_type = _FP32
    taken, _ = all_names(proto.graph)
    fed = [v.name for v in wide.graph.input if v.type.tensor_type.elem_type == _BF16]
    cast = {name: free_name(f"{name}:fp32", taken) for name in fed}
    nodes = [make_node("Cast", [name], new, to=_FP32) for name, new in cast.items()]
    as_engines = kernels is Fp16Kernels.TENSORRT
    for original in proto.graph.node:
        node = copy_node(original)
        rename_reads(node, cast)
        narrow = [t for t in original.output if t and typed.types.get(t) == _BF16]
        made = None
        if narrow and as_engines:
            shapes = [typed.shapes.get(tensor) for tensor in original.input]
            made = as_tensorrt_computes(
                node, shapes, typed.opset, lambda wanted: free_name(wanted, taken), BF16
            )
        nodes += made or [node]
        _attributes_in_fp32(nodes[-1])  # of what is written out, the Cast to BF16 at its end
        last = nodes[-1]
        if _rounds(node):
            nodes += _rounding(last, narrow, taken)
        if narrow and as_engines and _is_wide_end(typed, original):
            cast[narrow[0]] = last.output[0]
    wide.graph.node.extend(nodes)
    return wide


def _attributes_in_fp32(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _constant_in_fp32(attribute.t)
        elif attribute.name in ("to", "dtype") and attribute.i == _BF16:
            attribute.i = _FP32


def _rounds(node: onnx.NodeProto) -> bool:
    return node.op_type not in _SELECTING or any(a.name == "block_size" for a in node.attribute)


def _rounding(
    node: onnx.NodeProto, narrow: Sequence[str], taken: set[str]
) -> Iterator[onnx.NodeProto]:
    """What rounds the `narrow` ones of the outputs of `node`, which get other names."""
    for i, tensor in enumerate(node.output):
        if tensor in narrow:
            node.output[i] = free_name(f"{tensor}:unrounded", taken)
            middle = free_name(f"{tensor}:bf16", taken)
            yield make_node("Cast", [node.output[i]], middle, to=_BF16)
            yield make_node("Cast", [middle], tensor, to=_FP32)


def _is_wide_end(graph: Graph, node: onnx.NodeProto) -> bool:
    """Whether a node adds a constant to a product, and only Casts to FP32 read the sum: kernels of
    MatMul and Gemm take in both and round the product alone; those of a stack of matrices do
    not."""
    output = node.output[0]
    readers = graph.consumers.get(output, ())
    wide = all(r.op_type == "Cast" and graph.types.get(r.outputs[0]) == _FP32 for r in readers)
    if node.domain or not readers or not wide or output in graph.outputs:
        return False
    if node.op_type == "Gemm":
        return len(node.input) > 2 and node.input[2] in graph.initializers
    makers = [graph.producers.get(t) for t in node.input]
    summed = any(m is not None and m.op_type == "MatMul" for m in makers)
    stacked = any(n != 1 for n in (graph.shapes.get(output) or ())[:-2])
    constant = any(t in graph.initializers for t in node.input)
    return node.op_type == "Add" and summed and constant and not stacked


def _constant_in_fp32(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _BF16:
        tensor.CopyFrom(tensor_of(values_of(tensor).astype(np.float32), tensor.name))
