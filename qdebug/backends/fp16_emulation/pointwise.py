"""FP16 activation functions, sums and powers that round intermediate results in TensorRT.

Observed on an H200 with TensorRT for RTX 1.6.1: every element is equal, except for Softplus and
Mish (99 %) and Gelu (96 %). The parameters of LeakyRelu and Selu are rounded to FP16 towards zero;
an Elu of factor 1 has 1 + 2⁻¹⁰, and those of other factors were not understood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from qdebug.backends.fp16_emulation.sketch import Shape, Sketch
from qdebug.plan.rewrite.edit import attributes_of

_ELU = 1 + 2**-10  # what the kernels have for a factor of 1
_SELU = 1.67326319217681884765625, 1.05070102214813232421875


def truncated(value: float) -> np.float32:
    """A parameter of an activation function as the kernels have it: FP16, rounded towards zero."""
    with np.errstate(over="ignore"):
        nearest = np.float16(value)
    if abs(float(nearest)) > abs(value):
        nearest = np.nextafter(nearest, np.float16(0))
    return np.float32(nearest)


def elu(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """The FP32 tensor that, rounded, is the node's output; None for a factor other than 1, which
    the kernels do not have as it is."""
    del shapes
    if attributes_of(node).get("alpha", 1.0) != 1:
        return None
    x = sketch.wide(node.input[0])
    less = sketch.rounded(sketch.add("Sub", _exp(sketch, x), _number(sketch, 1)))
    below = sketch.add("Mul", _number(sketch, _ELU), less)
    return _where_positive(sketch, x, x, below)


def selu(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See elu."""
    del shapes
    given, x = attributes_of(node), sketch.wide(node.input[0])
    named = given.get("alpha", _SELU[0]), given.get("gamma", _SELU[1])
    alpha, gamma = (sketch.constant(truncated(value)) for value in named)
    scaled = sketch.add("Sub", sketch.add("Mul", alpha, _exp(sketch, x)), alpha)
    below = sketch.add("Mul", gamma, sketch.rounded(scaled))
    return _where_positive(sketch, x, sketch.add("Mul", gamma, x), below)


def leaky_relu(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See elu."""
    del shapes
    x = sketch.wide(node.input[0])
    alpha = sketch.constant(truncated(attributes_of(node).get("alpha", 0.01)))
    return _where_positive(sketch, x, x, sketch.add("Mul", alpha, x))


def softplus(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See elu. Where the exponential overflows it is the operand."""
    del shapes
    return _softplus(sketch, sketch.wide(node.input[0]))


def mish(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See elu. x · tanh(Softplus(x))."""
    del shapes
    x = sketch.wide(node.input[0])
    gate = sketch.add("Tanh", sketch.rounded(_softplus(sketch, x)))
    return sketch.add("Mul", x, sketch.rounded(gate))


def softsign(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See elu."""
    del shapes
    x = sketch.wide(node.input[0])
    below = sketch.add("Add", sketch.add("Abs", x), _number(sketch, 1))
    return sketch.add("Div", x, sketch.rounded(below))


def gelu(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See elu."""
    del shapes
    x = sketch.wide(node.input[0])
    half, one = _number(sketch, 0.5), _number(sketch, 1)
    if attributes_of(node).get("approximate", b"none") != b"tanh":
        inner = sketch.rounded(sketch.add("Mul", x, _number(sketch, math.sqrt(0.5))))
        share = sketch.rounded(sketch.add("Erf", inner))
        share = sketch.rounded(sketch.add("Add", sketch.add("Mul", half, share), half))
        return sketch.add("Mul", x, share)
    bent = sketch.add("Mul", _half_number(sketch, 0.044715), sketch.rounded(_cube(sketch, x)))
    bent = sketch.rounded(sketch.add("Add", x, sketch.rounded(bent)))
    inner = sketch.add("Mul", _half_number(sketch, math.sqrt(2 / math.pi)), bent)
    share = sketch.rounded(sketch.add("Tanh", sketch.rounded(inner)))
    share = sketch.rounded(sketch.add("Add", one, share))
    return sketch.add("Mul", sketch.rounded(sketch.add("Mul", half, x)), share)


def added(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """Sum: see elu. One after the other, each sum rounded."""
    del shapes
    first, *rest = (sketch.wide(tensor) for tensor in node.input)
    total = first
    for k, term in enumerate(rest):
        total = sketch.add("Add", sketch.rounded(total) if k else total, term)
    return total


def _cube(sketch: Sketch, x: str) -> str:
    return sketch.add("Mul", sketch.rounded(sketch.add("Mul", x, x)), x)


def _softplus(sketch: Sketch, x: str) -> str:
    power = _exp(sketch, x)
    # log(1 + p) = 2 artanh(p / (p + 2)), which is exact for a small p as well
    share = sketch.add("Div", power, sketch.add("Add", power, _number(sketch, 2)))
    soft = sketch.add("Mul", _number(sketch, 2), sketch.add("Atanh", share))
    return sketch.add("Where", sketch.add("IsInf", power), x, soft)


def _exp(sketch: Sketch, x: str) -> str:
    return sketch.rounded(sketch.add("Exp", x))


def _where_positive(sketch: Sketch, x: str, above: str, below: str) -> str:
    return sketch.add("Where", sketch.add("Greater", x, _number(sketch, 0)), above, below)


def _number(sketch: Sketch, value: float) -> str:
    return sketch.constant(np.float32(value))


def _half_number(sketch: Sketch, value: float) -> str:
    return sketch.constant(np.float32(np.float16(value)))
