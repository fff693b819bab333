"""Make ONNX Runtime's CPU round to FP16 where an FP16 engine does: between operators, and within.

Most operators have no FP16 kernel on the CPU. ONNX Runtime then computes them in FP32 and drops
the pairs of Casts in between, at every optimization level: a value of 1e5 survives where an
engine has Inf. (Observed with 1.31: Conv → Relu → Conv in FP16 yields 480 instead of Inf.) Two
Identity nodes behind every FP16 tensor keep the Casts; a single one is treated as an isolated FP16
node and is itself moved to FP32.

Clip, Max and Min do have FP16 kernels, 20 to 30 times slower than the FP32 ones (1.31). They only
select among the values of their operands, so FP32 gives identical results.

TensorRT's kernels also round within some operators. Those are written out in operators that round
only where they say so; conv.py, products.py and normal.py say what was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count

import onnx
from onnx import TensorProto, shape_inference

from qdebug.backends.fp16_emulation.conv import conv
from qdebug.backends.fp16_emulation.normal import (
    batch_normalization,
    group_normalization,
    hard_sigmoid,
    hard_swish,
    instance_normalization,
    layer_normalization,
    log_of_sum,
    log_softmax,
    softmax,
    sum_of_squares,
)
from qdebug.backends.fp16_emulation.pointwise import (
    added,
    elu,
    gelu,
    leaky_relu,
    mish,
    selu,
    softplus,
    softsign,
)
from qdebug.backends.fp16_emulation.products import einsum, gemm, matmul
from qdebug.backends.fp16_emulation.recurrent import RECURRENT, recurrent
from qdebug.backends.fp16_emulation.sketch import Shape, Sketch
from qdebug.formats.registry import FP16
from qdebug.network.graph import Graph
from qdebug.network.subgraphs import all_names, free_name
from qdebug.plan.rewrite.edit import copy_node, make_node
from qdebug.types import Fp16Kernels

_KERNELS: dict[str, Callable[[Sketch, onnx.NodeProto, Sequence[Shape]], str | None]] = {
    "BatchNormalization": batch_normalization,
    "Conv": conv,
    "Einsum": einsum,
    "Elu": elu,
    "Gelu": gelu,
    "Gemm": gemm,
    "GroupNormalization": group_normalization,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "LeakyRelu": leaky_relu,
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "Mish": mish,
    "ReduceLogSumExp": log_of_sum,
    "ReduceSumSquare": sum_of_squares,
    "Selu": selu,
    "Softmax": softmax,
    "Softplus": softplus,
    "Softsign": softsign,
    "Sum": added,
}

WRITTEN_OUT = frozenset(_KERNELS)
"""Operators that round inside; see `is_written_out`."""

_SLOW = frozenset({"Clip", "Max", "Min"})
SELECTING = _SLOW | {"MaxPool", "Relu"}
"""Operators whose results are values of their operands, or 0: they do not round."""


def keep_fp16_rounding(
    proto: onnx.ModelProto, kernels: Fp16Kernels = Fp16Kernels.EXACT
) -> onnx.ModelProto:
    """`proto` with every FP16 tensor rounded; `proto` itself when it has no FP16.

    Args:
        proto: the model.
        kernels: how FP16 operators round internally.
    """
    if not mentions_fp16(proto):
        return proto
    typed = Graph(shape_inference.infer_shapes(proto))
    barred = onnx.ModelProto()
    barred.CopyFrom(proto)
    del barred.graph.node[:], barred.graph.value_info[:]
    taken, _ = all_names(proto.graph)

    def free(wanted: str) -> str:
        return free_name(wanted, taken)

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
    if node.op_type in _SLOW and not node.domain:
        return _around_fp32(node, free)
    made = None
    if kernels is Fp16Kernels.TENSORRT and not _runs_in_int8(typed, node):
        shapes = [typed.shapes.get(tensor) for tensor in node.input]
        made = as_tensorrt_computes(node, shapes, typed.opset, free)
    return made or [node]


def _runs_in_int8(typed: Graph, node: onnx.NodeProto) -> bool:
    """Whether both operands are dequantized: an engine then multiplies their INT8 codes."""
    return len(node.input) > 1 and all(_is_dequantized(typed, t) for t in node.input[:2])


def _is_dequantized(typed: Graph, tensor: str) -> bool:
    maker = typed.producers.get(tensor)
    while maker is not None and maker.op_type == "Transpose":  # of weights, as PyTorch exports them
        maker = typed.producers.get(maker.inputs[0])
    return maker is not None and maker.op_type == "DequantizeLinear"


def fed_fp32(
    node: onnx.NodeProto, halves: Iterable[int], free: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """`node`, edited in place, behind Casts to FP32 of its FP16 inputs.

    Args:
        node: the node.
        halves: positions of its FP16 inputs.
        free: makes a new tensor name from a wanted one.
    """
    casts = []
    for i in halves:
        wide = free(node.input[i])
        casts.append(make_node("Cast", [node.input[i]], wide, to=TensorProto.FLOAT))
        node.input[i] = wide
    return [*casts, node]


def _around_fp32(node: onnx.NodeProto, free: Callable[[str], str]) -> list[onnx.NodeProto]:
    """The same node in FP32, for an operator whose inputs and outputs are all FP16."""
    nodes = fed_fp32(node, [i for i, t in enumerate(node.input) if t], free)
    half, node.output[0] = node.output[0], free(node.output[0])
    return [*nodes, make_node("Cast", [node.output[0]], half, to=TensorProto.FLOAT16)]


def mentions_fp16(proto: onnx.ModelProto) -> bool:
    """Whether a model has FP16 in it."""
    graph = proto.graph
    if any(t.data_type == TensorProto.FLOAT16 for t in graph.initializer):
        return True
    if any(v.type.tensor_type.elem_type == TensorProto.FLOAT16 for v in graph.input):
        return True
    return any(
        a.t.data_type == TensorProto.FLOAT16 or (a.name == "to" and a.i == TensorProto.FLOAT16)
        for node in graph.node
        for a in node.attribute
    )


def as_tensorrt_computes(
    node: onnx.NodeProto,
    shapes: Sequence[Shape],
    opset: int,
    free: Callable[[str], str],
    kind: type[Sketch] = Sketch,
) -> list[onnx.NodeProto] | None:
    """Nodes that compute an FP16 or BF16 node as TensorRT does, with its inputs and outputs.

    Args:
        node: the node.
        shapes: of its inputs.
        opset: of the model.
        free: makes a new tensor name from a wanted one.
        kind: of the format.

    Returns:
        The nodes, or None where TensorRT rounds only once, at the output, as the node itself does.
    """
    if node.domain:
        return None
    sketch = kind(opset, free, node.output[0] or node.op_type)
    if node.op_type in RECURRENT and sketch.format is not FP16:
        return None
    if node.op_type in RECURRENT:
        return sketch.nodes if recurrent(sketch, node, shapes) else None
    kernel = _KERNELS.get(node.op_type)
    if kernel is None:
        return None
    unrounded = kernel(sketch, node, shapes)
    if unrounded is None:
        return None
    sketch.add("Cast", unrounded, output=node.output[0], to=sketch.format.onnx_type)
    return sketch.nodes


def is_written_out(node: onnx.NodeProto, shapes: Sequence[Shape], opset: int) -> bool:
    """Whether `as_tensorrt_computes` gives nodes for it."""
    names = count()
    return as_tensorrt_computes(node, shapes, opset, lambda n: f"{n}_{next(names)}") is not None
