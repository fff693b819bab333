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

_SLOW = frozenset({"Clip", "Max", "Min"})
SELECTING = _SLOW | {"MaxPool", "Relu"}
"""Operators whose results are values of their operands, or 0: they round nothing."""


def keep_fp16_rounding(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with a barrier behind every FP16 tensor; itself when there is no FP16 in it."""
    if not mentions_fp16(proto):
        return proto
    typed = Graph(shape_inference.infer_shapes(proto))
    barred = onnx.ModelProto()
    barred.CopyFrom(proto)
    del barred.graph.node[:], barred.graph.value_info[:]
    taken = {*typed.initializers, *typed.producers, *(v.name for v in proto.graph.input)}
    for original in proto.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        barriers = []
        for i, tensor in enumerate(original.output):
            if tensor and typed.types.get(tensor) == TensorProto.FLOAT16:
                node.output[i], middle = (
                    _free(f"{tensor}:{form}", taken) for form in ("unrounded", "rounded")
                )
                barriers.append(helper.make_node("Identity", [node.output[i]], [middle]))
                barriers.append(helper.make_node("Identity", [middle], [tensor]))
        if barriers and node.op_type in _SLOW and not node.domain:
            barred.graph.node.extend(_around_fp32(node, lambda name: _free(name, taken)))
        else:
            barred.graph.node.append(node)
        barred.graph.node.extend(barriers)
    return barred


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


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
