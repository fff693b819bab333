"""Make ONNX Runtime's CPU round to FP16 between operators, as an FP16 engine does.

Most operators have no FP16 kernel on the CPU. ONNX Runtime then computes them in FP32 and drops
the pairs of Casts in between, at every optimization level: a value of 1e5 survives where an
engine has Inf. (Seen with 1.31: Conv → Relu → Conv in FP16 yields 480 instead of Inf.) Two
Identity nodes behind every FP16 tensor keep the Casts: a single one is taken for an isolated FP16
node and is itself moved to FP32.

Clip, Max and Min do have FP16 kernels, 20 to 30 times slower than those for FP32 (1.31). Their
results are values of their operands, so FP32 gives the very same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
from onnx import TensorProto, helper, shape_inference

from qdebug.model.graph import Graph
from qdebug.plan.rewrite.edit import all_names, free_name
from qdebug.run.fp16_emulation.kernels import as_tensorrt_computes
from qdebug.types import Fp16Kernels

_SLOW = frozenset({"Clip", "Max", "Min"})
SELECTING = _SLOW | {"MaxPool", "Relu"}
"""Operators whose results are values of their operands, or 0: they round nothing."""


def keep_fp16_rounding(
    proto: onnx.ModelProto, kernels: Fp16Kernels = Fp16Kernels.EXACT
) -> onnx.ModelProto:
    """`proto` with a barrier behind every FP16 tensor; itself when there is no FP16 in it.

    `kernels` says how what is computed in FP16 rounds inside.
    """
    if not mentions_fp16(proto):
        return proto
    typed = Graph(shape_inference.infer_shapes(proto))
    barred = onnx.ModelProto()
    barred.CopyFrom(proto)
    del barred.graph.node[:], barred.graph.value_info[:]
    taken, _ = all_names(proto.graph)
    for original in proto.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        barriers = []
        for i, tensor in enumerate(original.output):
            if tensor and typed.types.get(tensor) == TensorProto.FLOAT16:
                node.output[i], middle = (
                    free_name(f"{tensor}:{form}", taken) for form in ("unrounded", "rounded")
                )
                barriers.append(helper.make_node("Identity", [node.output[i]], [middle]))
                barriers.append(helper.make_node("Identity", [middle], [tensor]))
        barred.graph.node.extend(_computed(typed, node, kernels, taken) if barriers else [node])
        barred.graph.node.extend(barriers)
    return barred


def _computed(
    typed: Graph, node: onnx.NodeProto, kernels: Fp16Kernels, taken: set[str]
) -> list[onnx.NodeProto]:
    """What computes a node that has FP16 outputs."""

    def free(name: str) -> str:
        return free_name(name, taken)

    if node.op_type in _SLOW and not node.domain:
        return _around_fp32(node, free)
    made = None
    if kernels is Fp16Kernels.TENSORRT and not _runs_in_int8(typed, node):
        shapes = [typed.shapes.get(tensor) for tensor in node.input]
        made = as_tensorrt_computes(node, shapes, typed.opset, free)
    return made or [node]


def _runs_in_int8(typed: Graph, node: onnx.NodeProto) -> bool:
    """Whether two operands are dequantized: then an engine multiplies their codes."""
    return len(node.input) > 1 and all(_is_dequantized(typed, t) for t in node.input[:2])


def _is_dequantized(typed: Graph, tensor: str) -> bool:
    maker = typed.producers.get(tensor)
    while maker is not None and maker.op_type == "Transpose":  # of weights, as PyTorch exports them
        maker = typed.producers.get(maker.inputs[0])
    return maker is not None and maker.op_type == "DequantizeLinear"


def fed_fp32(
    node: onnx.NodeProto, halves: Iterable[int], free: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """`node` behind Casts to FP32 of its FP16 inputs, those at `halves`; it is changed.

    `free` makes a new name from a known one.
    """
    casts = []
    for i in halves:
        wide = free(node.input[i])
        casts.append(helper.make_node("Cast", [node.input[i]], [wide], to=TensorProto.FLOAT))
        node.input[i] = wide
    return [*casts, node]


def _around_fp32(node: onnx.NodeProto, free: Callable[[str], str]) -> list[onnx.NodeProto]:
    """The same in FP32, for an operator with nothing but FP16 around it."""
    nodes = fed_fp32(node, [i for i, t in enumerate(node.input) if t], free)
    half, node.output[0] = node.output[0], free(node.output[0])
    return [*nodes, helper.make_node("Cast", [node.output[0]], [half], to=TensorProto.FLOAT16)]


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
