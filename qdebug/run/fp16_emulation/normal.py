"""FP16 normalizations and activation functions that round intermediate results in TensorRT.

Observed on an H100 and an H200 with TensorRT for RTX 1.6.1, every element equal: each step of a
Softmax is an FP16 layer of its own, with its sum computed in FP32 and rounded; a normalization is
rounded before it is scaled and shifted. Most other operators examined (Exp, Log, Erf, Tanh,
Sigmoid, Sqrt, Reciprocal, Add, Mul, Div, Pow, PRelu, Resize, reductions and pools) round once. Elu,
Selu, Mish, Softplus, BatchNormalization, Einsum and Sum do not, and are not emulated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from qdebug.plan.rewrite.edit import attributes_of
from qdebug.run.fp16_emulation.sketch import Shape, Sketch


def softmax(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """The FP32 tensor that, rounded, is the node's output; None before opset 13, where Softmax
    flattens its input."""
    del shapes
    if sketch.opset < 13:
        return None
    axis = attributes_of(node).get("axis", -1)
    x = sketch.wide(node.input[0])
    below = sketch.rounded(sketch.add("Sub", x, sketch.reduced("ReduceMax", x, axis)))
    powers = sketch.rounded(sketch.add("Exp", below))
    total = sketch.rounded(sketch.reduced("ReduceSum", powers, axis))
    return sketch.add("Div", powers, total)


def log_softmax(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See softmax."""
    shares = softmax(sketch, node, shapes)
    return None if shares is None else sketch.add("Log", sketch.rounded(shares))


def layer_normalization(
    sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]
) -> str | None:
    """See softmax; None where the mean or the deviation is also an output."""
    del shapes
    if any(node.output[1:]):
        return None
    x, scale = sketch.wide(node.input[0]), sketch.wide(node.input[1])
    plain = sketch.add("LayerNormalization", x, _ones(sketch, scale), **attributes_of(node))
    total = sketch.add("Mul", sketch.rounded(plain), scale)
    if len(node.input) > 2 and node.input[2]:
        total = sketch.add("Add", total, sketch.wide(node.input[2]))
    return total


def instance_normalization(
    sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]
) -> str | None:
    """See softmax; None where the rank is unknown."""
    shape = shapes[0]
    if shape is None:
        return None
    x, scale, bias = (sketch.wide(tensor) for tensor in node.input)
    ones = _ones(sketch, scale)
    zeros = sketch.add("Sub", ones, ones)
    plain = sketch.add("InstanceNormalization", x, ones, zeros, **attributes_of(node))
    axes = sketch.ints(range(1, len(shape) - 1))
    factor, offset = (sketch.add("Unsqueeze", tensor, axes) for tensor in (scale, bias))
    return sketch.add("Add", sketch.add("Mul", sketch.rounded(plain), factor), offset)


def hard_sigmoid(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See softmax. The slope is rounded to FP16."""
    del shapes
    given = attributes_of(node)
    return _hard_sigmoid(sketch, node.input[0], given.get("alpha", 0.2), given.get("beta", 0.5))


def hard_swish(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See softmax. x · HardSigmoid(x), with a slope of 1/6."""
    del shapes
    gate = sketch.rounded(_hard_sigmoid(sketch, node.input[0], 1 / 6, 0.5))
    return sketch.add("Mul", sketch.wide(node.input[0]), gate)


def _hard_sigmoid(sketch: Sketch, x: str, slope: float, offset: float) -> str:
    half = sketch.constant(np.float32(np.float16(slope)))
    line = sketch.add("Mul", sketch.wide(x), half)
    line = sketch.add("Add", line, sketch.constant(np.float32(offset)))
    low, high = (sketch.constant(np.float32(limit)) for limit in (0, 1))
    return sketch.add("Clip", line, low, high)


def _ones(sketch: Sketch, like: str) -> str:
    one = numpy_helper.from_array(np.ones(1, np.float32))
    return sketch.add("ConstantOfShape", sketch.add("Shape", like), value=one)
