"""Make ONNX Runtime's CPU round to FP16 between operators, as an FP16 engine does.

Most operators have no FP16 kernel on the CPU. ONNX Runtime then computes them in FP32 and drops
the pairs of Casts in between, at every optimization level: a value of 1e5 survives where an
engine has Inf. (Seen with 1.31: Conv → Relu → Conv in FP16 yields 480 instead of Inf.) Two
Identity nodes behind every FP16 tensor keep the Casts: a single one is taken for an isolated FP16
node and is itself moved to FP32.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, shape_inference

from qdebug.model.graph import Graph


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
        barred.graph.node.extend([node, *barriers])
    return barred


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
