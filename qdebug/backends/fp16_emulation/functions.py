"""Normalizations and pointwise functions that round intermediate results in TensorRT.

Observed on an H100 and an H200 with TensorRT for RTX 1.6.1, every element equal, except for
Softplus and Mish (99 %) and Gelu (96 %): each step of a Softmax is a layer of its own, with its sum
computed in FP32 and rounded; a normalization is rounded before it is scaled and shifted; a
BatchNormalization that stands by itself has its factor and its offset in FP16; squares and
exponentials are rounded before they are summed up. The parameters of LeakyRelu and Selu are rounded
to FP16 towards zero; an Elu of factor 1 has 1 + 2⁻¹⁰, and those of other factors were not
understood.

Each function takes the inputs and the attributes of a node, and gives what, rounded, is its output;
None where the kernel is not known to round inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import numpy_helper

from qdebug.backends.fp16_emulation.wide import Wide

_ELU = 1 + 2**-10  # what the kernels have for a factor of 1
_SELU = 1.67326319217681884765625, 1.05070102214813232421875


def as_it_is(op_type: str, x: Wide, *others: Wide | None, **given: Any) -> Wide:
    """An operator that is computed in FP32 as it stands."""
    return x.of(op_type, *others, **given)


def softmax(x: Wide, axis: int = -1) -> Wide:
    """Softmax of opset 13 and later."""
    powers = (x - x.reduced("ReduceMax", axis)).rounded().of("Exp").rounded()
    return powers / powers.reduced("ReduceSum", axis).rounded()


def log_softmax(x: Wide, axis: int = -1) -> Wide:
    """LogSoftmax of opset 13 and later."""
    return softmax(x, axis).rounded().of("Log")


def layer_normalization(x: Wide, scale: Wide, bias: Wide | None = None, **given: Any) -> Wide:
    """LayerNormalization."""
    total = x.of("LayerNormalization", _ones(scale), **given).rounded() * scale
    return total if bias is None else total + bias


def normalized(
    op_type: str, x: Wide, scale: Wide, bias: Wide, stash_type: int = 1, **given: Any
) -> Wide | None:
    """InstanceNormalization, and GroupNormalization of opset 21 and later, whose factors before are
    those of groups; None where the rank is unknown."""
    if x.shape is None or (op_type == "GroupNormalization" and x.body.opset < 21):
        return None
    ones = _ones(scale)
    plain = x.of(op_type, ones, ones - ones, **given).rounded()
    return plain * _of_channels(scale, x.shape) + _of_channels(bias, x.shape)


def batch_normalization(
    x: Wide, scale: Wide, bias: Wide, mean: Wide, variance: Wide, epsilon: float = 1e-5, **_: Any
) -> Wide | None:
    """BatchNormalization; None where the rank is unknown."""
    if x.shape is None:
        return None
    factor = (scale / (variance + epsilon).of("Sqrt")).rounded()
    offset = (bias - mean * factor).rounded()
    return x * _of_channels(factor, x.shape) + _of_channels(offset, x.shape)


def sum_of_squares(x: Wide, *axes: str, **given: Any) -> Wide:
    """ReduceSumSquare."""
    return _summed_up(x * x, axes, **given)


def log_of_sum(x: Wide, *axes: str, **given: Any) -> Wide:
    """ReduceLogSumExp."""
    return _summed_up(x.of("Exp"), axes, **given).rounded().of("Log")


def hard_sigmoid(x: Wide, alpha: float = 0.2, beta: float = 0.5) -> Wide:
    """HardSigmoid; the slope is rounded."""
    return (x * x.body.nearest(alpha) + beta).of("Clip", 0.0, 1.0)


def hard_swish(x: Wide) -> Wide:
    """HardSwish: x · HardSigmoid(x), with a slope of 1/6."""
    return x * hard_sigmoid(x, 1 / 6).rounded()


def elu(x: Wide, alpha: float = 1.0) -> Wide | None:
    """Elu; None for a factor other than 1."""
    return _bent(x, x, (x.of("Exp").rounded() - 1.0).rounded() * _ELU) if alpha == 1 else None


def selu(x: Wide, alpha: float = _SELU[0], gamma: float = _SELU[1]) -> Wide:
    """Selu."""
    factor, scale = truncated(alpha), truncated(gamma)
    return _bent(x, x * scale, (x.of("Exp").rounded() * factor - factor).rounded() * scale)


def leaky_relu(x: Wide, alpha: float = 0.01) -> Wide:
    """LeakyRelu."""
    return _bent(x, x, x * truncated(alpha))


def softplus(x: Wide) -> Wide:
    """Softplus: where the exponential overflows it is the operand."""
    power = x.of("Exp").rounded()
    # log(1 + p) = 2 artanh(p / (p + 2)), which is exact for a small p as well
    soft = (power / (power + 2.0)).of("Atanh") * 2.0
    return power.of("IsInf").of("Where", x, soft)


def mish(x: Wide) -> Wide:
    """Mish: x · tanh(Softplus(x))."""
    return x * softplus(x).rounded().of("Tanh").rounded()


def softsign(x: Wide) -> Wide:
    """Softsign."""
    return x / (x.of("Abs") + 1.0).rounded()


def gelu(x: Wide, approximate: bytes = b"none") -> Wide:
    """Gelu."""
    if approximate != b"tanh":
        share = (x * math.sqrt(0.5)).rounded().of("Erf").rounded()
        return x * (share * 0.5 + 0.5).rounded()
    nearest = x.body.nearest
    bent = (((x * x).rounded() * x).rounded() * nearest(0.044715)).rounded()
    inner = ((x + bent).rounded() * nearest(math.sqrt(2 / math.pi))).rounded()
    return (x * 0.5).rounded() * (inner.of("Tanh").rounded() + 1.0).rounded()


def added(first: Wide, *terms: Wide) -> Wide:
    """Sum: one after the other, each sum rounded."""
    return reduce(lambda total, term: total.rounded() + term, terms, first)


def truncated(value: float) -> float:
    """A parameter as the kernels have it: in FP16, rounded towards zero."""
    with np.errstate(over="ignore"):
        nearest = np.float16(value)
    if abs(float(nearest)) > abs(value):
        nearest = np.nextafter(nearest, np.float16(0))
    return float(nearest)


def _bent(x: Wide, above: Wide, below: Wide) -> Wide:
    """`above` where x is positive, `below` elsewhere."""
    return x.of("Greater", 0.0).of("Where", above, below)


def _of_channels(values: Wide, shape: Sequence[Any]) -> Wide:
    """Values of channels, as they are multiplied with a tensor of this shape."""
    return values.of("Unsqueeze", list(range(1, len(shape) - 1))) if len(shape) > 2 else values


def _summed_up(terms: Wide, axes: Sequence[str], **given: Any) -> Wide:
    """The rounded terms, summed up over axes, which before opset 18 are an attribute."""
    named = [given.pop("axes")] if "axes" in given else axes
    return terms.rounded().of("ReduceSum", *named, **given)


def _ones(like: Wide) -> Wide:
    return like.of("Shape").of(
        "ConstantOfShape", value=numpy_helper.from_array(np.ones(1, np.float32))
    )
