"""Small networks of unusual shapes, to see what TensorRT makes of their matrix products.

Odd numbers of channels, large and tiny kernels, groups, dilation, strides, transposed convolutions,
one and three dimensions, vectors, products of two activations; and chains of such layers, drawn at
random. All weights are random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from nets import Builder

Net = Callable[[], onnx.ModelProto]


def held_out(net: str) -> bool:
    """Whether a network was only counted at the end, and not looked at while the audit was made:
    half of them by a hash of the name, and those that were added when it was finished."""
    return net.startswith("late-") or hashlib.sha256(net.encode()).digest()[0] % 2 == 1


def _model(b: Builder, shape: list[int], output: str) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(b.model(shape, output, None), strict_mode=True)


def _conv(cin: int, cout: int, kernel: int, size: int, options: str = "") -> onnx.ModelProto:
    """One convolution. Options: g groups, s stride, d dilation, n number of axes, t transposed,
    r with a Relu, b without a bias."""
    b = Builder(0)
    chosen = _options(options)
    out = _add_conv(b, "input", (cin, cout, kernel), chosen)
    out = b.node("Relu", [out]) if "r" in chosen else out
    return _model(b, [1, cin, *[size] * chosen.get("n", 2)], out)


def _options(text: str) -> dict[str, int]:
    """ "s2,r" as {"s": 2, "r": 1}."""
    return {word[0]: int(word[1:] or 1) for word in text.split(",") if word}


def _add_conv(b: Builder, x: str, sizes: tuple[int, int, int], chosen: dict[str, int]) -> str:
    cin, cout, kernel = sizes
    axes, group, dilation = chosen.get("n", 2), chosen.get("g", 1), chosen.get("d", 1)
    transposed = "t" in chosen
    first = (cin, cout // group) if transposed else (cout, cin // group)
    inputs = [x, b.weight((*first, *[kernel] * axes), first[1] * kernel**axes)]
    if "b" not in chosen:
        inputs.append(b.constant(b.rng.standard_normal(cout).astype(np.float32)))
    return b.node(
        "ConvTranspose" if transposed else "Conv",
        inputs,
        strides=[chosen.get("s", 1)] * axes,
        dilations=[dilation] * axes,
        pads=[dilation * (kernel - 1) // 2] * 2 * axes,
        group=group,
    )


def _gemm(rows: int, cin: int, cout: int, bias: bool = True) -> onnx.ModelProto:
    b = Builder(0)
    added = [b.constant(b.rng.standard_normal(cout).astype(np.float32))] if bias else []
    out = b.node("Gemm", ["input", b.weight((cout, cin), cin), *added], transB=1)
    return _model(b, [rows, cin], out)


def _matmul(shape: tuple[int, ...], cout: int) -> onnx.ModelProto:
    """A tensor times a matrix of weights."""
    b = Builder(0)
    out = b.node("MatMul", ["input", b.weight((shape[-1], cout), shape[-1])])
    return _model(b, [*shape], out)


def _two_activations(batch: int, rows: int, inner: int, columns: int) -> onnx.ModelProto:
    """Relu(x) times Tanh(x), of one input that holds both factors."""
    b = Builder(0)
    ints = partial(np.array, dtype=np.int64)
    parts = b.constant(ints([rows * inner, inner * columns]))
    names = ["left_flat", "right_flat"]
    b.nodes.append(onnx.helper.make_node("Split", ["input", parts], names, name="Split", axis=1))
    left = b.node("Reshape", [names[0], b.constant(ints([batch, rows, inner]))])
    right = b.node("Reshape", [names[1], b.constant(ints([batch, inner, columns]))])
    out = b.node("MatMul", [b.node("Relu", [left]), b.node("Tanh", [right])])
    return _model(b, [batch, rows * inner + inner * columns], out)


def _attention(tokens: int, width: int) -> onnx.ModelProto:
    """One head: three products with weights, two of activations."""
    b = Builder(0)
    q, k, v = (b.node("MatMul", ["input", b.weight((width, width), width)]) for _ in range(3))
    scores = b.node("MatMul", [q, b.node("Transpose", [k], perm=[0, 2, 1])])
    weights = b.node("Softmax", [scores], axis=-1)
    mixed = b.node("MatMul", [weights, v])
    return _model(b, [1, tokens, width], b.linear(mixed, width, width))


def _squeeze(channels: int, size: int) -> onnx.ModelProto:
    """Squeeze and excitation: convolutions of one pixel beside one of many."""
    b = Builder(0)
    x = b.node("Relu", [_add_conv(b, "input", (3, channels, 3), {})])
    pooled = b.node("GlobalAveragePool", [x])
    small = b.node("Relu", [_add_conv(b, pooled, (channels, max(1, channels // 4), 1), {})])
    gate = b.node("Sigmoid", [_add_conv(b, small, (max(1, channels // 4), channels, 1), {})])
    out = _add_conv(b, b.node("Mul", [x, gate]), (channels, 5, 1), {})
    return _model(b, [1, 3, size, size], out)


def _head(channels: int, classes: int) -> onnx.ModelProto:
    """A convolution, pooling and a Gemm with one row."""
    b = Builder(0)
    x = b.node("Relu", [_add_conv(b, "input", (1, channels, 3), {})])
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    x = b.node("Gemm", [x, b.weight((classes, channels), channels)], transB=1)
    return _model(b, [1, 1, 12, 12], b.node("Softmax", [x], axis=1))


def _random(seed: int, sizes: tuple[int, ...]) -> onnx.ModelProto:
    """A chain of three to seven layers, all of it drawn."""
    b = Builder(seed)
    channels, size = int(b.rng.integers(1, 10)), int(b.rng.choice(sizes))
    shape, x = [1, channels, size, size], "input"
    for _ in range(int(b.rng.integers(3, 8))):
        x, channels, size = _random_layer(b, x, channels, size)
    x = b.node("Flatten", [x])
    if b.rng.random() < 0.6:
        width = channels * size * size
        x = b.node("Gemm", [x, b.weight((width, 7), width)])
    return _model(b, shape, x)


def _random_layer(b: Builder, x: str, channels: int, size: int) -> tuple[str, int, int]:
    kind = b.rng.choice(["conv", "conv", "depthwise", "residual", "up", "pool", "gate", "product"])
    cout = int(b.rng.integers(1, 10)) if b.rng.random() < 0.8 else int(b.rng.choice([16, 32, 64]))
    kernel = int(b.rng.choice([1, 1, 2, 3, 5, 7]))
    kernel = kernel if kernel <= size else 1
    padded = kernel if kernel % 2 else 1
    if kind == "depthwise":
        x = _add_conv(b, x, (channels, channels, padded), {"g": channels})
    elif kind == "residual":
        x = b.node("Add", [x, _add_conv(b, x, (channels, channels, padded), {})])
    elif kind == "up" and size <= 8:
        x = _add_conv(b, x, (channels, cout, 2), {"t": 1, "s": 2})
        return x, cout, 2 * size
    elif kind == "pool" and size > 1:
        x = b.node(
            str(b.rng.choice(["MaxPool", "AveragePool"])), [x], kernel_shape=[2, 2], strides=[2, 2]
        )
        return x, channels, size // 2
    elif kind == "gate":
        x = b.node("Mul", [x, b.node("Sigmoid", [_add_conv(b, x, (channels, channels, 1), {})])])
    elif kind == "product":
        x = b.node("MatMul", [x, b.weight((size, size), size)])
    else:
        x = _add_conv(b, x, (channels, cout, padded), {})
        channels = cout
    after = str(b.rng.choice(["Relu", "Relu", "Sigmoid", "LeakyRelu", ""]))
    return (b.node(after, [x]) if after else x), channels, size


# channels in, out, kernel, size, options
_CONVS = (
    *((1, 1, 1, 1), (2, 8, 1, 1), (1, 9, 1, 1), (3, 2, 1, 1), (5, 7, 1, 1), (9, 1, 1, 1)),
    *((4, 4, 1, 1), (16, 8, 1, 1), (64, 16, 1, 1), (256, 64, 1, 1), (1, 4, 1, 8), (2, 8, 1, 8)),
    *((2, 6, 1, 4, "r"), (3, 3, 1, 16), (7, 5, 1, 7), (8, 8, 1, 16), (9, 9, 1, 5)),
    *((64, 64, 1, 14, "r"), (1, 1, 3, 3), (1, 8, 3, 28, "r"), (2, 3, 3, 8), (3, 5, 3, 16)),
    *((4, 9, 3, 9), (5, 4, 3, 2), (6, 7, 3, 1), (3, 16, 3, 32, "s2,r"), (32, 32, 3, 14, "r")),
    *((256, 256, 3, 7), (3, 8, 5, 16), (7, 7, 5, 11, "s3"), (1, 6, 5, 28, "b")),
    *((3, 12, 7, 32, "s2"), (5, 3, 7, 9), (9, 2, 7, 7, "r"), (4, 6, 2, 10, "s2")),
    *((1, 3, 3, 12, "d2"), (6, 6, 3, 16, "d3"), (8, 5, 5, 20, "d2,s2"), (4, 4, 3, 8, "g4")),
    *((9, 9, 3, 9, "g9"), (32, 32, 3, 14, "g32,r"), (5, 5, 5, 10, "g5,s2"), (3, 3, 1, 6, "g3")),
    *((3, 3, 1, 1, "g3"), (6, 4, 3, 8, "g2"), (9, 6, 3, 8, "g3"), (8, 16, 1, 8, "g4")),
    *((64, 64, 3, 8, "g4"), (5, 5, 3, 1, "g5"), (4, 8, 3, 6, "g4"), (3, 5, 2, 8, "t,s2")),
    *((4, 4, 3, 5, "t"), (8, 8, 2, 4, "t,s2,g8"), (16, 8, 4, 8, "t,s2"), (1, 1, 2, 1, "t,s2")),
    *((6, 4, 3, 7, "t,s2,g2"), (32, 32, 2, 16, "t,s2,r"), (1, 4, 3, 16, "n1"), (2, 8, 1, 1, "n1")),
    *((5, 3, 7, 40, "n1"), (9, 9, 3, 20, "n1,g9"), (16, 32, 3, 64, "n1,r")),
    *((3, 6, 5, 33, "n1,d2"), (4, 2, 2, 9, "n1,t,s2"), (1, 3, 3, 6, "n3"), (2, 4, 1, 3, "n3")),
    (8, 8, 3, 8, "n3,r"),
)
_GEMMS = (
    *((1, 1, 1), (1, 5, 3), (1, 64, 10), (1, 256, 256), (1, 7, 9), (1, 512, 1, False)),
    *((3, 5, 7), (16, 64, 32), (9, 33, 10, False), (64, 256, 128)),
)
_MATMULS = (
    *(((1, 4, 6), 5), ((2, 7, 9), 3), ((1, 1, 16), 8), ((1, 128, 64), 64), ((2, 3, 5, 7), 4)),
    *(((1, 1), 1), ((5,), 3), ((1, 3), 2)),
)
_PRODUCTS = (
    *((1, 1, 1, 1), (1, 3, 5, 7), (2, 4, 8, 4), (1, 1, 64, 9), (4, 32, 16, 32)),
    *((1, 64, 64, 64), (3, 9, 2, 1)),
)


def _named() -> dict[str, Net]:
    found: dict[str, Net] = {}
    for row in _CONVS:
        cin, cout, kernel, size, *rest = row
        options = str(rest[0]) if rest else ""
        name = "-".join(["conv", f"{cin}to{cout}", f"k{kernel}", f"on{size}", *options.split(",")])
        found[name.rstrip("-")] = partial(_conv, *row)  # type: ignore[arg-type]
    found |= {f"gemm-{'-'.join(map(str, row[:3]))}": partial(_gemm, *row) for row in _GEMMS}
    for shape, cout in _MATMULS:
        found[f"matmul-{'x'.join(map(str, shape))}-{cout}"] = partial(_matmul, shape, cout)
    found |= {f"product-{'-'.join(map(str, p))}": partial(_two_activations, *p) for p in _PRODUCTS}
    for tokens, width in ((1, 8), (5, 7), (16, 32), (64, 64)):
        found[f"attention-{tokens}-{width}"] = partial(_attention, tokens, width)
    for channels, size in ((3, 9), (8, 16), (32, 20)):
        found[f"squeeze-{channels}-{size}"] = partial(_squeeze, channels, size)
    found |= {f"head-{c}-{n}": partial(_head, c, n) for c, n in ((3, 2), (8, 10), (64, 10))}
    for channels in (1, 2, 4, 5, 7, 9, 12, 16):
        found[f"squeeze-{channels}-6"] = partial(_squeeze, channels, 6)
    found |= {f"random-{k:02}": partial(_random, k, (1, 2, 5, 8, 16, 33)) for k in range(40)}
    found |= {f"tiny-{k:02}": partial(_random, 100 + k, (1, 1, 2, 3)) for k in range(60)}
    return found | {f"late-{k:02}": partial(_random, 200 + k, (1, 2, 4, 7)) for k in range(40)}


AUDIT_NETS = _named()
"""By name; each call makes the model anew, always the same."""
