"""Make ONNX Runtime's CPU round to FP16 where an FP16 engine does: between operators, and within.

Most operators have no FP16 kernel on the CPU. ONNX Runtime then computes them in FP32 and drops
the pairs of Casts in between, at every optimization level: a value of 1e5 survives where an
engine has Inf. (Observed with 1.31: Conv → Relu → Conv in FP16 yields 480 instead of Inf.) Two
Identity nodes behind every FP16 tensor keep the Casts; a single one is treated as an isolated FP16
node and is itself moved to FP32.

Clip, Max and Min do have FP16 kernels, 20 to 30 times slower than the FP32 ones (1.31). They only
select among the values of their operands, so FP32 gives identical results.

TensorRT's kernels also round within some operators. Those are written out in operators that round
only where they say so; conv.py, products.py and functions.py say what was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import onnx
from onnx import TensorProto, shape_inference

from qdebug.backends.fp16_emulation import functions
from qdebug.backends.fp16_emulation.conv import conv
from qdebug.backends.fp16_emulation.products import einsum, gemm, matmul
from qdebug.backends.fp16_emulation.wide import Body, Shape, Wide
from qdebug.formats.base import Format
from qdebug.formats.registry import FP16
from qdebug.network.graph import Graph
from qdebug.network.subgraphs import all_names, free_name
from qdebug.plan.rewrite.edit import attributes_of, copy_node, make_node
from qdebug.types import Fp16Kernels

_KERNELS: dict[str, Callable[..., Wide | None]] = {
    "BatchNormalization": functions.batch_normalization,
    "Clip": partial(functions.as_it_is, "Clip"),
    "Conv": conv,
    "Einsum": einsum,
    "Elu": functions.elu,
    "Gelu": functions.gelu,
    "Gemm": gemm,
    "GroupNormalization": partial(functions.normalized, "GroupNormalization"),
    "HardSigmoid": functions.hard_sigmoid,
    "HardSwish": functions.hard_swish,
    "InstanceNormalization": partial(functions.normalized, "InstanceNormalization"),
    "LayerNormalization": functions.layer_normalization,
    "LeakyRelu": functions.leaky_relu,
    "LogSoftmax": functions.log_softmax,
    "MatMul": matmul,
    "Max": partial(functions.as_it_is, "Max"),
    "Min": partial(functions.as_it_is, "Min"),
    "Mish": functions.mish,
    "ReduceLogSumExp": functions.log_of_sum,
    "ReduceSumSquare": functions.sum_of_squares,
    "Selu": functions.selu,
    "Softmax": functions.softmax,
    "Softplus": functions.softplus,
    "Softsign": functions.softsign,
    "Sum": functions.added,
}

_SLOW = frozenset({"Clip", "Max", "Min"})

OBSERVED = frozenset(
    {"MaxPool", "Relu", "Abs", "Add", "AveragePool", "ConvTranspose", "Cos", "Div", "Dropout"}
    | {"Erf", "Exp", "GlobalAveragePool", "GlobalMaxPool", "Log", "Mul", "Neg", "PRelu", "Pow"}
    | {"Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"}
    | {"ReduceSum", "Resize", "Sigmoid", "Sin", "Sqrt", "Sub", "Tanh", "ThresholdedRelu", "Where"}
    | {"Cast", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "DequantizeLinear"}
    | {"Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape"}
    | {"ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"}
    | {"Transpose", "Unsqueeze", *_KERNELS}
)
"""Operators that TensorRT's kernels were seen to round as the simulation does: written out here,
rounded once, or only moved."""


def keep_fp16_rounding(
    proto: onnx.ModelProto, kernels: Fp16Kernels = Fp16Kernels.EXACT
) -> onnx.ModelProto:
    """`proto` with every FP16 tensor rounded; `proto` itself when it has no FP16.

    Args:
        proto: the model.
        kernels: how FP16 operators round internally.
    """
    if not mentions_narrow(proto, [TensorProto.FLOAT16]):
        return proto
    typed = Graph(shape_inference.infer_shapes(proto))
    barred = deepcopy(proto)
    del barred.graph.node[:], barred.graph.value_info[:]
    taken, _ = all_names(proto.graph)
    free = partial(free_name, taken=taken)
    for original in proto.graph.node:
        node = copy_node(original)
        barriers = []
        for i, tensor in enumerate(original.output):
            if tensor and typed.types.get(tensor) == TensorProto.FLOAT16:
                node.output[i], middle = free(f"{tensor}:unrounded"), free(f"{tensor}:rounded")
                barriers.append(make_node("Identity", [node.output[i]], middle))
                barriers.append(make_node("Identity", [middle], tensor))
        barred.graph.node.extend(_computed(typed, node, kernels, free) if barriers else [node])
        barred.graph.node.extend(barriers)
    return barred


def _computed(
    typed: Graph, node: onnx.NodeProto, kernels: Fp16Kernels, free: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """The nodes that compute a node with FP16 outputs."""
    exact = kernels is Fp16Kernels.EXACT or _runs_in_int8(typed, node)
    if exact and node.op_type not in _SLOW:
        return [node]
    shapes = [typed.shapes.get(tensor) for tensor in node.input]
    return as_tensorrt_computes(node, shapes, typed.opset, free) or [node]


def _runs_in_int8(typed: Graph, node: onnx.NodeProto) -> bool:
    """Whether both operands are dequantized: an engine then multiplies their INT8 codes."""
    return len(node.input) > 1 and all(_is_dequantized(typed, t) for t in node.input[:2])


def _is_dequantized(typed: Graph, tensor: str) -> bool:
    maker = typed.producers.get(tensor)
    while maker is not None and maker.op_type == "Transpose":  # of weights, as PyTorch exports them
        maker = typed.producers.get(maker.inputs[0])
    return maker is not None and maker.op_type == "DequantizeLinear"


def mentions_narrow(
    proto: onnx.ModelProto, kinds: Sequence[int] = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
) -> bool:
    """Whether a model has tensors of one of these element types, outside of subgraphs."""
    graph = proto.graph
    values = (*graph.input, *graph.output)
    attributes = [a for node in graph.node for a in node.attribute]
    return (
        any(t.data_type in kinds for t in graph.initializer)
        or any(v.type.tensor_type.elem_type in kinds for v in values)
        or any(a.t.data_type in kinds for a in attributes)
        or any(a.name in ("to", "dtype") and a.i in kinds for a in attributes)
    )


def as_tensorrt_computes(
    node: onnx.NodeProto,
    shapes: Sequence[Shape],
    opset: int,
    free: Callable[[str], str],
    format: Format = FP16,
) -> list[onnx.NodeProto] | None:
    """Nodes that compute an FP16 or BF16 node as TensorRT does, with its inputs and outputs.

    Args:
        node: the node.
        shapes: of its inputs.
        opset: of the model.
        free: makes a new tensor name from a wanted one.
        format: of what it computes.

    Returns:
        The nodes, or None where TensorRT rounds only once, at the output, as the node itself does.
    """
    kernel = _KERNELS.get(node.op_type)
    if kernel is None or node.domain or any(node.output[1:]):
        return None
    body = Body(opset, free, node.output[0], format)
    # The axes of a reduction are whole numbers.
    axes_from = 1 if node.op_type.startswith("Reduce") else len(node.input)
    operands: list[Wide | str | None] = [
        Wide(body, half=tensor, shape=shape) if tensor else None
        for tensor, shape in zip(node.input[:axes_from], shapes, strict=False)
    ]
    unrounded = kernel(*operands, *node.input[axes_from:], **attributes_of(node))
    if unrounded is None:
        return None
    body.add("Cast", str(unrounded), output=node.output[0], to=format.onnx_type)
    return body.nodes
