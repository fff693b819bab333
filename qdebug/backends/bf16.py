"""BF16 in operators that ONNX Runtime's CPU has, which computes next to nothing in it.

Every operator is computed in FP32 from operands that BF16 holds, and its result rounded by a Cast
to BF16 and one back. ONNX Runtime 1.32 leaves such a pair of Casts in place: its optimizers keep
what loses digits.

Tensor cores sum products of BF16 in FP32. For the rest, kernels round inside as those of FP16 do
(`fp16_emulation`): before a bias is added, between the steps of a Softmax. A bias that is added
last, before a Cast to FP32, is not rounded. Observed with TensorRT for RTX 1.6.1 on an H100.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, shape_inference

from qdebug.backends.fp16_emulation.rounding import as_tensorrt_computes
from qdebug.formats.registry import BF16
from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import all_names, free_name, rename_reads
from qdebug.network.weights import tensor_of, values_of
from qdebug.plan.rewrite.edit import Editor, copy_node, make_node
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
    if not mentions_bf16(proto):
        return proto
    if kernels is Fp16Kernels.TENSORRT:
        proto = _with_wide_ends(proto)
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
        made = None
        if narrow and kernels is Fp16Kernels.TENSORRT:
            shapes = [typed.shapes.get(tensor) for tensor in original.input]
            made = as_tensorrt_computes(node, shapes, typed.opset, free, BF16)
        if made:  # the last of which is the Cast to BF16
            (rounded,) = made[-1].output
            made[-1].output[0] = free(f"{rounded}:bf16")
            nodes += [*made, make_node("Cast", [made[-1].output[0]], rounded, to=_FP32)]
        else:
            nodes += _rounded(node, narrow, free)
    wide.graph.node.extend(nodes)
    return wide


def _with_wide_ends(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with the biases added in FP32 behind whose sum of products comes a Cast to FP32:
    TensorRT's kernels of MatMul and Gemm take in both, and round the product alone; those of a
    stack of matrices do not. Itself where there is none."""
    graph = Graph(shape_inference.infer_shapes(proto))
    ends = {n.name for n in graph.nodes if _is_wide_end(graph, n)}
    if not ends:
        return proto
    editor = Editor(graph)
    wide: dict[str, str] = {}
    for original in graph.proto.graph.node:
        node = copy_node(original)
        if node.name in ends:
            addends = list(node.input)
            if node.op_type == "Gemm":
                plain = copy_node(original)
                plain.name = editor.node_name(f"{node.name}_product")
                del plain.input[2:]
                plain.output[0] = editor.tensor_name(f"{node.output[0]}_product")
                editor.emit(plain)
                addends = [plain.output[0], node.input[2]]
            sides = [editor.add("Cast", t, to=_FP32) for t in addends]
            wide[node.output[0]] = editor.add("Add", *sides)
        if node.op_type == "Cast" and node.input[0] in wide:
            node = make_node("Identity", [wide[node.input[0]]], node.output[0], node.name)
        editor.emit(node)
    return editor.finish("the model with sums in FP32")


def _is_wide_end(graph: Graph, node: Node) -> bool:
    """Whether a node adds a constant to a product in BF16, and only a Cast to FP32 reads
    that."""
    if node.domain or node.op_type not in ("Add", "Gemm"):
        return False
    (output,) = node.outputs
    readers = graph.consumers.get(output, ())
    if graph.types.get(output) != _BF16 or output in graph.outputs or not readers:
        return False
    if not all(r.op_type == "Cast" and graph.types.get(r.outputs[0]) == _FP32 for r in readers):
        return False
    if node.op_type == "Gemm":
        usual = graph.attributes(node).get("beta", 1.0) == 1.0
        return usual and len(node.inputs) > 2 and node.inputs[2] in graph.initializers
    makers = [graph.producers.get(t) for t in node.inputs]
    summed = any(m is not None and m.op_type == "MatMul" for m in makers)
    stacked = any(n != 1 for n in (graph.shapes.get(output) or ())[:-2])
    return summed and not stacked and any(t in graph.initializers for t in node.inputs)


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
        in_blocks = any(a.name == "block_size" for a in node.attribute)
        if tensor in narrow and (node.op_type not in _SELECTING or in_blocks):
            node.output[i], middle = free(f"{tensor}:unrounded"), free(f"{tensor}:bf16")
            made.append(make_node("Cast", [node.output[i]], middle, to=_BF16))
            made.append(make_node("Cast", [middle], tensor, to=_FP32))
    return made


def _constant_in_fp32(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _BF16:
        tensor.CopyFrom(tensor_of(values_of(tensor).astype(np.float32), tensor.name))
