"""FP16 normalizations and activation functions that round intermediate results in TensorRT.

Observed on an H100 and an H200 with TensorRT for RTX 1.6.1, every element equal: each step of a
Softmax is an FP16 layer of its own, with its sum computed in FP32 and rounded; a normalization is
rounded before it is scaled and shifted; a BatchNormalization that stands by itself has its factor
and its offset in FP16; squares and exponentials are rounded before they are summed up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from qdebug.backends.fp16_emulation.sketch import Shape, Sketch
from qdebug.plan.rewrite.edit import attributes_of


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


def group_normalization(
    sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]
) -> str | None:
    """See softmax; None where the rank is unknown, and before opset 21, where the factors are those
    of groups."""
    shape = shapes[0]
    if shape is None or sketch.opset < 21:
        return None
    given = attributes_of(node)
    x, scale, bias = (sketch.wide(tensor) for tensor in node.input)
    ones = _ones(sketch, scale)
    zeros = sketch.add("Sub", ones, ones)
    kept = {name: given[name] for name in ("epsilon", "num_groups") if name in given}
    plain = sketch.add("GroupNormalization", x, ones, zeros, **kept)
    axes = sketch.ints(range(1, len(shape) - 1))
    factor, offset = (sketch.add("Unsqueeze", tensor, axes) for tensor in (scale, bias))
    return sketch.add("Add", sketch.add("Mul", sketch.rounded(plain), factor), offset)


def batch_normalization(
    sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]
) -> str | None:
    """See softmax; None where the rank is unknown, and in training."""
    shape = shapes[0]
    if shape is None or any(node.output[1:]):
        return None
    x, scale, bias, mean, variance = (sketch.wide(tensor) for tensor in node.input)
    epsilon = sketch.constant(np.float32(attributes_of(node).get("epsilon", 1e-5)))
    deviation = sketch.add("Sqrt", sketch.add("Add", variance, epsilon))
    factor = sketch.rounded(sketch.add("Div", scale, deviation))
    offset = sketch.rounded(sketch.add("Sub", bias, sketch.add("Mul", mean, factor)))
    if len(shape) > 2:
        axes = sketch.ints(range(1, len(shape) - 1))
        factor, offset = (sketch.add("Unsqueeze", tensor, axes) for tensor in (factor, offset))
    return sketch.add("Add", sketch.add("Mul", x, factor), offset)


def sum_of_squares(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """ReduceSumSquare; see softmax."""
    del shapes
    x = sketch.wide(node.input[0])
    return _summed_up(sketch, node, sketch.add("Mul", x, x))


def log_of_sum(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """ReduceLogSumExp; see softmax."""
    del shapes
    total = _summed_up(sketch, node, sketch.add("Exp", sketch.wide(node.input[0])))
    return sketch.add("Log", sketch.rounded(total))


def _summed_up(sketch: Sketch, node: onnx.NodeProto, terms: str) -> str:
    """The rounded terms, summed up over the axes of a reduction. Before opset 18 those are an
    attribute, which ReduceSum has as an input."""
    given = attributes_of(node)
    axes = given.pop("axes", None)
    inputs = list(node.input[1:]) if axes is None else [sketch.ints(axes)]
    return sketch.add("ReduceSum", sketch.rounded(terms), *inputs, **given)


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
    line = sketch.add("Mul", sketch.wide(x), sketch.number(slope))
    line = sketch.add("Add", line, sketch.constant(np.float32(offset)))
    low, high = (sketch.constant(np.float32(limit)) for limit in (0, 1))
    return sketch.add("Clip", line, low, high)


def _ones(sketch: Sketch, like: str) -> str:
    one = numpy_helper.from_array(np.ones(1, np.float32))
    return sketch.add("ConstantOfShape", sketch.add("Shape", like), value=one)
