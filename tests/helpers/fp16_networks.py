"""Small networks in which FP16 overflows, or loses its digits, in places of many kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from repair_networks import IMAGES, Builder

from qdebug.network.prepare import Model

TOKENS = {"x": ("N", 6, 16)}


def _linear(b: Builder, x: str, ins: int, outs: int, scale: float = 1.0, shift: float = 0.1) -> str:
    weight = scale * b.rng.normal(size=(ins, outs)) / np.sqrt(ins)
    product = b.add("MatMul", x, b.constant(weight))
    return b.add("Add", product, b.constant(shift * scale * b.rng.normal(size=outs)))


def _number(b: Builder, value: float) -> str:
    return b.constant(np.float32(value))


def _layer_norm(b: Builder, x: str, size: int = 16, squared: str = "Pow") -> str:
    """Written out."""
    away = b.add("Sub", x, b.add("ReduceMean", x, axes=[-1]))
    square = b.add("Pow", away, _number(b, 2)) if squared == "Pow" else b.add("Mul", away, away)
    variance = b.add("Add", b.add("ReduceMean", square, axes=[-1]), _number(b, 1e-5))
    plain = b.add("Div", away, b.add("Sqrt", variance))
    scaled = b.add("Mul", plain, b.constant(1 + 0.1 * b.rng.normal(size=size)))
    return b.add("Add", scaled, b.constant(0.1 * b.rng.normal(size=size)))


def _rms_norm(b: Builder, x: str, size: int = 16) -> str:
    mean = b.add("ReduceMean", b.add("Mul", x, x), axes=[-1])
    root = b.add("Sqrt", b.add("Add", mean, _number(b, 1e-6)))
    plain = b.add("Mul", x, b.add("Reciprocal", root))
    return b.add("Mul", plain, b.constant(1 + 0.1 * b.rng.normal(size=size)))


def norm() -> Model:
    """The squares of a normalization overflow."""
    b = Builder(1)
    normed = _layer_norm(b, _linear(b, "x", 16, 16, 800.0))
    return b.model(TOKENS, _linear(b, normed, 16, 5))


def norm_of_input() -> Model:
    """So where what is normalized comes from a layer that no constant scales."""
    b = Builder(2)
    raised = b.add("Exp", b.add("Mul", b.add("Tanh", "x"), _number(b, 8)))
    return b.model(TOKENS, _linear(b, _layer_norm(b, raised, squared="Mul"), 16, 5))


def chain() -> Model:
    """Activations between two convolutions overflow."""
    b = Builder(3, spread=0.1)
    first = b.conv("x", 3, 8)
    large = b.add("Relu", b.add("Mul", first, _number(b, 60000)))
    pooled = b.add("MaxPool", large, kernel_shape=[2, 2], strides=[2, 2])
    small = b.add("Mul", b.conv(pooled, 8, 8), _number(b, 1e-4))
    return b.model(IMAGES, b.add("GlobalAveragePool", small))


def logits() -> Model:
    """Scores of attention overflow before they are divided."""
    b = Builder(4)
    query, key = (_linear(b, "x", 16, 16, 200.0) for _ in range(2))
    scores = b.add("MatMul", query, b.add("Transpose", key, perm=[0, 2, 1]))
    shares = b.add("Softmax", b.add("Div", scores, _number(b, 2e4)), axis=-1)
    return b.model(TOKENS, _linear(b, b.add("MatMul", shares, _linear(b, "x", 16, 16)), 16, 5))


def stream() -> Model:
    """A residual stream of two blocks overflows in one channel, before normalizations."""
    b = Builder(5)
    x = _linear(b, "x", 16, 16)
    outlier = np.ones(16)
    outlier[3] = 5e4
    for _ in range(2):
        inner = b.add("Relu", _linear(b, _layer_norm(b, x), 16, 32))
        large = b.add("Sigmoid", _linear(b, inner, 32, 16))
        x = b.add("Add", x, b.add("Mul", large, b.constant(outlier)))
    return b.model(TOKENS, _linear(b, _layer_norm(b, x), 16, 5))


def rms() -> Model:
    """The mean square of an RMS normalization overflows."""
    b = Builder(6)
    x = b.add("Add", _linear(b, "x", 16, 16, 500.0), "x")
    return b.model(TOKENS, _linear(b, _rms_norm(b, x), 16, 5))


def rms_operator() -> Model:
    """So in a network whose opset has the operator, of an input that no constant scales."""
    b = Builder(16)
    raised = b.add("Exp", b.add("Mul", b.add("Tanh", "x"), _number(b, 8)))
    mean = b.add("ReduceMean", b.add("Mul", raised, raised), b.constant(np.array([-1])))
    root = b.add("Sqrt", b.add("Add", mean, _number(b, 1e-6)))
    return b.model(TOKENS, _linear(b, b.add("Div", raised, root), 16, 5), opset=23)


def bare_softmax() -> Model:
    """The powers of a softmax that takes no largest value off overflow."""
    b = Builder(17)
    power = b.add("Exp", _linear(b, "x", 16, 16, 6.0))
    total = b.add("ReduceSum", power, b.constant(np.array([-1])))
    return b.model(TOKENS, _linear(b, b.add("Div", power, total), 16, 5))


def softplus() -> Model:
    """The power in a logarithm overflows."""
    b = Builder(18)
    power = b.add("Exp", _linear(b, "x", 16, 16, 8.0))
    soft = b.add("Log", b.add("Add", _number(b, 1), power))
    return b.model(TOKENS, _linear(b, soft, 16, 5))


def zero_rows() -> Model:
    """Its mean squares overflow, and those of a row of zeros are ε alone."""
    b = Builder(15)
    x = b.add("MatMul", "x", b.constant(120 * b.rng.normal(size=(16, 16))))
    return b.model(TOKENS, _linear(b, _rms_norm(b, b.add("Relu", x)), 16, 5))


def gated() -> Model:
    """The product of a branch and its gate overflows."""
    b = Builder(7)
    up, gate = (_linear(b, "x", 16, 32, 300.0) for _ in range(2))
    gated_up = b.add("Mul", up, b.add("Mul", gate, b.add("Sigmoid", gate)))
    return b.model(TOKENS, b.add("Tanh", _linear(b, gated_up, 32, 5, 1e-5)))


def fused_norm() -> Model:
    """What LayerNormalization reads overflows."""
    b = Builder(8)
    x = _linear(b, "x", 16, 16, 3e4)
    scale, bias = (b.constant(b.rng.normal(size=16)) for _ in range(2))
    normed = b.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
    return b.model(TOKENS, _linear(b, normed, 16, 5))


def tiny() -> Model:
    """A branch whose values are below the normal numbers of FP16."""
    b = Builder(9)
    small = b.add("Relu", _linear(b, "x", 16, 16, 1e-6))
    return b.model(TOKENS, _linear(b, small, 16, 5, 1e6, 1e-6))


def batch_norm() -> Model:
    """What a BatchNormalization behind a sum reads overflows."""
    b = Builder(10, spread=0.1)
    branches = [b.add("Mul", b.conv("x", 3, 8), _number(b, 5e4)) for _ in range(2)]
    total = b.add("Concat", *branches, axis=1)
    parts = [
        b.constant(v) for v in (np.ones(16), np.zeros(16), np.full(16, 300.0), np.full(16, 1e7))
    ]
    normed = b.add("BatchNormalization", b.add("LeakyRelu", total, alpha=0.1), *parts)
    return b.model(IMAGES, b.add("GlobalAveragePool", b.add("Sigmoid", normed)))


def masked() -> Model:
    """Scores with a mask that FP16 has as -Inf, which Softmax takes well: nothing to do."""
    b = Builder(11)
    scores = b.add("MatMul", _linear(b, "x", 16, 16), b.add("Transpose", "x", perm=[0, 2, 1]))
    mask = np.triu(np.full((6, 6), -1e9), 1)
    shares = b.add("Softmax", b.add("Add", scores, b.constant(mask)), axis=-1)
    return b.model(TOKENS, _linear(b, b.add("MatMul", shares, "x"), 16, 5))


def saturated() -> Model:
    """A cube that overflows before Tanh, in a written out GELU: nothing to do."""
    b = Builder(12)
    x = _linear(b, "x", 16, 32, 60.0)
    cube = b.add("Mul", b.add("Pow", x, _number(b, 3)), _number(b, 0.044715))
    inner = b.add("Mul", b.add("Add", x, cube), _number(b, 0.79788))
    share = b.add("Add", b.add("Tanh", inner), _number(b, 1))
    active = b.add("Mul", b.add("Mul", x, share), _number(b, 0.5))
    return b.model(TOKENS, _linear(b, active, 32, 5))


def calm() -> Model:
    """Nothing is wrong."""
    b = Builder(13)
    inner = b.add("Relu", _linear(b, "x", 16, 16))
    return b.model(TOKENS, _linear(b, b.add("Softmax", inner, axis=-1), 16, 5))


def written_out() -> Model:
    """A normalization that has single operators, and whose squares FP16 can hold."""
    b = Builder(14)
    x = b.add("Add", _linear(b, "x", 16, 16), "x")
    return b.model(TOKENS, _linear(b, b.add("Add", _layer_norm(b, x), x), 16, 5))


OVERFLOWING: Mapping[str, Callable[[], Model]] = {
    f.__name__: f
    for f in (
        *(norm, norm_of_input, chain, logits, stream, rms, gated, fused_norm, tiny, batch_norm),
        *(rms_operator, bare_softmax, softplus),
    )
}
HEALTHY: Mapping[str, Callable[[], Model]] = {f.__name__: f for f in (masked, saturated, calm)}
