"""FP16 operators as TensorRT's kernels compute them, written out in operators that round nothing
but where they say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import TensorProto, helper

from qdebug.run.fp16_emulation.conv import conv
from qdebug.run.fp16_emulation.normal import (
    hard_sigmoid,
    hard_swish,
    instance_normalization,
    layer_normalization,
    log_softmax,
    softmax,
)
from qdebug.run.fp16_emulation.products import gemm, matmul
from qdebug.run.fp16_emulation.sketch import Shape, Sketch

_KERNELS: dict[str, Callable[[Sketch, onnx.NodeProto, Sequence[Shape]], str | None]] = {
    "Conv": conv,
    "Gemm": gemm,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "Softmax": softmax,
}


def as_tensorrt_computes(
    node: onnx.NodeProto, shapes: Sequence[Shape], opset: int, free: Callable[[str], str]
) -> list[onnx.NodeProto] | None:
    """Nodes in place of an FP16 node, with the same inputs and outputs; None where the node itself
    rounds as TensorRT does: once, at its output.

    Args:
        shapes: of its inputs.
        free: makes a new tensor name from a known one.
    """
    kernel = None if node.domain else _KERNELS.get(node.op_type)
    if kernel is None:
        return None
    sketch = Sketch(opset, free, node.output[0])
    unrounded = kernel(sketch, node, shapes)
    if unrounded is None:
        return None
    cast = helper.make_node("Cast", [unrounded], [node.output[0]], to=TensorProto.FLOAT16)
    return [*sketch.nodes, cast]
