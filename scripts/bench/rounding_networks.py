"""Small networks whose engines show how a kernel rounds; random weights, a few layers each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))
from half_networks import Builder

from qdebug.plan.plan import Granularity
from qdebug.types import Array, Precision


@dataclass(frozen=True)
class Case:
    """A network to record.

    Attributes:
        make: gives it, in FP32.
        feeds: by input; None feeds values of the normal distribution.
        weights: how many scales a weight has.
        raw: FP8 weights with one scale have that one, and not the same once per channel.
        corner: of what is recorded, the first rows and columns only.
    """

    name: str
    make: Callable[[], onnx.ModelProto]
    precision: Precision = Precision.FP16
    feeds: Mapping[str, Array] | None = None
    weights: Granularity = Granularity.PER_CHANNEL
    raw: bool = False
    corner: bool = False


def small_cases() -> Iterator[Case]:
    """The networks that every run records, the most wanted first."""
    narrow = (_narrow(precision) for precision in (Precision.BF16, Precision.FP8))
    return chain(
        _pools_of_words(), _scalar_scales(), _masks(), _long_kernels(), _few_terms(), _steps(),
        _pixels(), _long_sums(),
        _convolutions(), _depthwise_ones(), _gated(), _activations(), _sequences(), *narrow,
    )  # fmt: skip


def _scalar_scales() -> Iterator[Case]:
    """FP8 weights with one scale: as other tools write it, and once per channel."""
    networks: dict[str, Callable[[], onnx.ModelProto]] = {
        "Conv": partial(_conv2d, 16, 16, 3),
        "Conv without bias": partial(_conv1d, 16, 16, 256, 8),
        "depthwise": partial(_depthwise, 32, 3, 1, 16),
        "MatMul": partial(_matmul, 48, 64, 96),
        "Gemm": partial(_gemm_row, 256, 64),
    }
    for name, make in networks.items():
        for raw in (True, False):
            kind = "raw" if raw else "rewritten"
            yield Case(
                f"fp8 scalar scale, {name}, {kind}",
                make, Precision.FP8, weights=Granularity.PER_TENSOR, raw=raw,
            )  # fmt: skip


def _pools_of_words() -> Iterator[Case]:
    """The mean over the words of a sentence, whose number is kept from 0 by a Clip."""
    rng = np.random.default_rng(8)
    words = (np.arange(16) < np.array([16, 9])[:, None]).astype(np.float32)
    feeds = {"x": rng.normal(size=(2, 16, 64)).astype(np.float32), "words": words}
    for precision in (Precision.BF16, Precision.FP16):
        for least in (1e-9, 1e-3, 0.0):
            name = f"{precision} mean of words, at least {least:g}"
            yield Case(name, partial(_mean_of_words, least), precision, feeds)


def _masks() -> Iterator[Case]:
    """Attention whose masked scores get a very negative number."""
    for precision in (Precision.BF16, Precision.FP16):
        for low in (-3.4028235e38, -3.3e38, -1e30, -1e4):
            make = partial(_masked, low)
            yield Case(f"{precision} attention, mask {low:.3g}", make, precision)


def _long_kernels() -> Iterator[Case]:
    for length in (66, 72, 80, 96, 112, 128, 160, 192):
        yield Case(f"conv1d 1->64, length {length}", partial(_conv1d, 1, 64, length, 8))
    for channels, outputs, size in (
        (3, 64, 7), (3, 64, 8), (3, 64, 9), (3, 64, 11), (3, 96, 14), (3, 192, 16), (3, 32, 16),
        (1, 64, 9), (8, 64, 9), (16, 64, 9), (20, 64, 9), (32, 64, 9),
    ):  # fmt: skip
        name = f"conv2d {channels}->{outputs}, {size}x{size}"
        yield Case(name, partial(_patches, channels, outputs, size))
    for channels, length in ((1, 2), (1, 4), (1, 5), (2, 1), (2, 2), (3, 1), (4, 1), (5, 1)):
        name = f"conv1d {channels}->64, length {length}, few terms"
        yield Case(name, partial(_conv1d, channels, 64, length, 1))


def _few_terms() -> Iterator[Case]:
    """Short sums over the positions of a kernel in two dimensions."""
    for channels, high, wide, stride in (
        (1, 2, 2, 2), (1, 2, 2, 1), (1, 1, 2, 1), (1, 1, 3, 1), (1, 1, 4, 1), (1, 1, 5, 1),
        (1, 5, 1, 1), (2, 1, 2, 1), (1, 2, 3, 1), (2, 2, 2, 2), (1, 3, 3, 1), (3, 2, 2, 2),
        (4, 2, 2, 2), (1, 4, 4, 4), (2, 1, 1, 1), (4, 1, 1, 1), (5, 1, 1, 1),
    ):  # fmt: skip
        for outputs in (16, 64):
            name = f"conv2d {channels}->{outputs}, {high}x{wide} by {stride}, few terms"
            yield Case(name, partial(_small_kernel, channels, outputs, high, wide, stride))


def _steps() -> Iterator[Case]:
    for steps in (12, 13, 14, 15, 16, 17, 18, 24, 40):
        yield Case(f"LSTM of {steps} steps", partial(_lstm, 1, steps=steps))
    for steps in (8, 40):
        yield Case(f"LSTM both ways of {steps} steps", partial(_lstm, 1, both=True, steps=steps))
    for steps in (12, 20):
        yield Case(f"GRU of {steps} steps", partial(_lstm, 1, steps=steps, op_type="GRU"))


def _pixels() -> Iterator[Case]:
    for channels, outputs in (
        (64, 512), (64, 1024), (256, 384), (256, 512), (512, 256), (512, 512), (1024, 128),
        (1024, 256), (1280, 64),
    ):  # fmt: skip
        yield Case(f"pixel {channels}->{outputs}", partial(_pixel, channels, outputs))


def _long_sums() -> Iterator[Case]:
    """Which sums are split, by shape."""
    for terms in (768, 1024, 1536, 2048, 3072, 4096):
        for rows in (16, 40, 64, 128, 256, 512):
            for columns in (64, 96, 256, 384, 768, 1536):
                name = f"split? {rows}x{terms}x{columns}"
                yield Case(name, partial(_matmul, rows, terms, columns), corner=True)
    for channels, outputs, kernel, size in (
        (128, 128, 3, 14), (256, 256, 3, 7), (256, 256, 3, 14), (512, 512, 3, 7), (512, 512, 3, 4),
        (512, 128, 1, 14), (1024, 256, 1, 7), (1024, 256, 1, 14), (2048, 512, 1, 7),
    ):  # fmt: skip
        name = f"split? conv {channels}->{outputs}, {kernel}x{kernel} on {size}x{size}"
        make = partial(_conv2d, channels, outputs, kernel, size=size)
        yield Case(name, make, corner=True)


def _convolutions() -> Iterator[Case]:
    for channels, outputs, length, stride in (
        (1, 258, 256, 128), (1, 258, 256, 64), (1, 64, 256, 1), (1, 258, 64, 16), (1, 32, 16, 1),
        (1, 64, 8, 1), (1, 64, 3, 1), (2, 64, 256, 64), (16, 64, 64, 4), (32, 32, 128, 2),
        (129, 128, 3, 1), (128, 64, 3, 2), (64, 64, 3, 2), (64, 128, 3, 1), (20, 24, 5, 1),
        (128, 1, 1, 1), (48, 48, 1, 1),
    ):  # fmt: skip
        name = f"conv1d {channels}->{outputs}, length {length}, stride {stride}"
        yield Case(name, partial(_conv1d, channels, outputs, length, stride))
    for shape in ((1, 64, 3, 40), (1, 64, 1, 40), (1, 480, 1, 40), (1, 96, 6, 80)):
        yield Case(f"1x1 on {shape}", partial(_pointwise, shape))
        yield Case(f"1x3 on {shape}", partial(_pointwise, shape, kernel=(1, 3)))


def _depthwise_ones() -> Iterator[Case]:
    for channels, kernel, stride, size in (
        (16, 3, 1, 16), (64, 3, 2, 16), (32, 5, 1, 16), (64, 5, 1, 8), (128, 5, 1, 6),
        (256, 5, 1, 7), (48, 5, 2, 16), (32, 7, 1, 12), (120, 5, 1, 12), (33, 5, 1, 9),
    ):  # fmt: skip
        name = f"depthwise {channels}, {kernel}x{kernel}, stride {stride}"
        yield Case(name, partial(_depthwise, channels, kernel, stride, size))
    for after in ("Relu", "HardSwish", "written HardSwish", "Add", "Conv", "pooled"):
        for kernel in (3, 5):
            name = f"depthwise {kernel}x{kernel}, then {after}"
            yield Case(name, partial(_depthwise_then, kernel, after))


def _gated() -> Iterator[Case]:
    for channels in (32, 96, 240):
        yield Case(f"SE {channels}", partial(_squeeze, channels))
    yield Case("SE behind 5x5", partial(_squeeze, 64, before="depthwise"))
    yield Case("SE, then 1x1", partial(_squeeze, 64, after="pointwise"))
    yield Case("SE, then 5x5", partial(_squeeze, 64, after="depthwise"))
    yield Case("SE, then 5x5, 1x1, Add", partial(_squeeze, 64, after="block"))
    yield Case("5x5, SE, 1x1", partial(_squeeze, 64, before="depthwise", after="pointwise"))
    for channels, outputs in ((64, 16), (16, 64), (240, 60), (60, 240), (512, 1280), (24, 96)):
        yield Case(f"pixel {channels}->{outputs}", partial(_pixel, channels, outputs))


def _activations() -> Iterator[Case]:
    for kind in ("HardSwish", "HardSigmoid", "Sigmoid", "SiLU", "written HardSwish", "Clip"):
        yield Case(f"activation {kind}", partial(_activation, kind, conv=False))
        yield Case(f"Conv, then {kind}", partial(_activation, kind, conv=True))


def _sequences() -> Iterator[Case]:
    for kind in ("operator", "written", "squares"):
        yield Case(f"LayerNorm, {kind}", partial(_layer_norm, kind, linear=False))
        yield Case(f"LayerNorm, {kind}, MatMul", partial(_layer_norm, kind, linear=True))
    for width, heads, steps in ((120, 8, 40), (64, 4, 16), (384, 12, 24)):
        yield Case(f"attention {width}/{heads}", partial(_attention, width, heads, steps))
    yield Case("attention by Gather", partial(_attention, 120, 8, 40, packed=True))
    for batch in (1, 4):
        yield Case(f"LSTM, batch {batch}", partial(_lstm, batch))
        yield Case(f"LSTM both ways, batch {batch}", partial(_lstm, batch, both=True))
    for terms in (1024, 1536, 2048):
        for rows, columns in ((40, 96), (128, 384), (1, 256)):
            name = f"MatMul {rows}x{terms}x{columns}"
            yield Case(name, partial(_matmul, rows, terms, columns))


def _narrow(precision: Precision) -> Iterator[Case]:
    """What BF16 and FP8 are asked about."""
    for channels, outputs, kernel in (
        (3, 16, 3), (16, 16, 3), (16, 32, 1), (32, 64, 3), (64, 64, 3), (128, 128, 3),
        (256, 64, 1),
    ):  # fmt: skip
        name = f"{precision} Conv {channels}->{outputs}, {kernel}x{kernel}"
        yield Case(name, partial(_conv2d, channels, outputs, kernel), precision)
    networks: dict[str, Callable[[], onnx.ModelProto]] = {
        "Conv, Relu, Conv": _two_convs,
        "residual": _residual,
        "depthwise": partial(_depthwise, 32, 3, 1, 16),
        "Gemm of one row": partial(_gemm_row, 256, 64),
        "Softmax": _softmax,
        "LayerNorm": partial(_layer_norm, "operator", linear=False),
        "written LayerNorm": partial(_layer_norm, "written", linear=False),
        "attention": partial(_attention, 64, 4, 16),
        "pools": _pools,
    }
    for terms in (64, 384, 1536):
        networks[f"MatMul of {terms}"] = partial(_matmul, 48, terms, 96)
    for kind in ("Sigmoid", "HardSigmoid", "SiLU", "Gelu"):
        networks[kind] = partial(_activation, kind, conv=False)
    for name, make in networks.items():
        yield Case(f"{precision} {name}", make, precision)


def _conv(b: Builder, x: str, outputs: int, *window: int, bias: bool = True, **given: Any) -> str:
    """A convolution whose weights are [outputs, *window]."""
    tensors = [b.weight(outputs, *window)]
    if bias:
        tensors.append(b.constant(b.rng.normal(size=outputs) / 4))
    return b.add("Conv", x, *tensors, **given)


def _each(b: Builder, x: str, channels: int, kernel: int = 5, stride: int = 1) -> str:
    return _conv(
        b, x, channels, 1, kernel, kernel,
        group=channels, pads=[kernel // 2] * 4, strides=[stride] * 2,
    )  # fmt: skip


def _conv1d(channels: int, outputs: int, length: int, stride: int) -> onnx.ModelProto:
    b = Builder(11)
    y = _conv(b, "x", outputs, channels, length, strides=[stride], bias=length != 256)
    return b.model({"x": [1, channels, length + 15 * stride]}, [y])


def _depthwise(channels: int, kernel: int, stride: int, size: int) -> onnx.ModelProto:
    b = Builder(12)
    return b.model({"x": [1, channels, size, size]}, [_each(b, "x", channels, kernel, stride)])


def _depthwise_then(kernel: int, after: str) -> onnx.ModelProto:
    b = Builder(13)
    x = _conv(b, "x", 48, 24, 1, 1)
    y = _each(b, x, 48, kernel)
    if after == "Add":
        y = b.add("Add", y, x)
    elif after == "Conv":
        y = b.add("Add", _conv(b, b.add("Relu", y), 24, 48, 1, 1), "x")
    elif after == "pooled":
        y = b.add("GlobalAveragePool", y)
    else:
        y = _activated(b, y, after)
    return b.model({"x": [1, 24, 14, 14]}, [y])


def _activated(b: Builder, x: str, kind: str) -> str:
    if kind == "written HardSwish":
        up = b.add("Add", x, b.constant(3.0))
        up = b.add("Clip", up, b.constant(0.0), b.constant(6.0))
        return b.add("Div", b.add("Mul", x, up), b.constant(6.0))
    if kind == "SiLU":
        return b.add("Mul", x, b.add("Sigmoid", x))
    if kind == "Clip":
        return b.add("Clip", x, b.constant(0.0), b.constant(6.0))
    if kind == "HardSigmoid":
        return b.add("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    return b.add(kind, x)


def _activation(kind: str, *, conv: bool) -> onnx.ModelProto:
    b = Builder(14)
    x = _conv(b, "x", 32, 16, 3, 3, pads=[1] * 4) if conv else "x"
    return b.model({"x": [1, 16, 16, 16]}, [_activated(b, x, kind)], opset=20)


def _squeeze(channels: int, before: str = "", after: str = "") -> onnx.ModelProto:
    """Squeeze and excitation; the gate scales the channels."""
    b = Builder(15)
    x = _each(b, "x", channels) if before else "x"
    x = b.add("HardSwish", x) if before else x
    gate = _conv(b, b.add("GlobalAveragePool", x), channels // 4, channels, 1, 1)
    gate = _conv(b, b.add("Relu", gate), channels, channels // 4, 1, 1)
    y = b.add("Mul", x, b.add("HardSigmoid", gate))
    if after in ("depthwise", "block"):
        y = _each(b, y, channels)
    if after in ("pointwise", "block"):
        y = _conv(b, y, channels, channels, 1, 1)
    if after == "block":
        y = b.add("Add", y, "x")
    return b.model({"x": [1, channels, 12, 12]}, [y], opset=20)


def _patches(channels: int, outputs: int, size: int) -> onnx.ModelProto:
    b = Builder(30)
    y = _conv(b, "x", outputs, channels, size, size, strides=[size, size])
    return b.model({"x": [1, channels, 4 * size, 4 * size]}, [y])


def _small_kernel(
    channels: int, outputs: int, high: int, wide: int, stride: int
) -> onnx.ModelProto:
    b = Builder(30)
    y = _conv(b, "x", outputs, channels, high, wide, strides=[stride, stride])
    return b.model({"x": [2, channels, 20, 20]}, [y])


def _mean_of_words(least: float) -> onnx.ModelProto:
    b = Builder(32)
    words = b.add("Unsqueeze", "words", b.constant([-1], np.int64))
    one = b.constant([1], np.int64)
    total = b.add("ReduceSum", b.add("Mul", "x", words), one, keepdims=0)
    count = b.add("ReduceSum", words, one, keepdims=0)
    count = b.add("Clip", count, b.constant(least)) if least else count
    return b.model({"x": [2, 16, 64], "words": [2, 16]}, [b.add("Div", total, count)])


def _masked(low: float) -> onnx.ModelProto:
    """Scores of two sentences, of which the second has fewer words."""
    b = Builder(31)
    x = b.linear("x", 64, 64)
    scores = b.add("MatMul", x, b.add("Transpose", x, perm=[0, 2, 1]))
    words = np.arange(16) < np.array([16, 9])[:, None]
    mask = b.add("Where", b.constant(words[:, None], np.bool_), b.constant(0.0), b.constant(low))
    shares = b.add("Softmax", b.add("Add", scores, mask), axis=-1)
    return b.model({"x": [2, 16, 64]}, [b.linear(b.add("MatMul", shares, x), 64, 64)])


def _pixel(channels: int, outputs: int) -> onnx.ModelProto:
    b = Builder(16)
    return b.model({"x": [1, channels, 1, 1]}, [_conv(b, "x", outputs, channels, 1, 1)])


def _layer_norm(kind: str, *, linear: bool) -> onnx.ModelProto:
    b = Builder(17)
    if kind == "operator":
        factor = b.constant(1 + b.rng.normal(size=120) / 4)
        x = b.add("LayerNormalization", "x", factor, b.weight(120), axis=-1, epsilon=1e-6)
    elif kind == "written":
        x = b.normalized("x", 120)
    else:
        centred = b.add("Sub", "x", b.reduced("ReduceMean", "x"))
        square = b.reduced("ReduceMean", b.add("Mul", centred, centred))
        root = b.add("Sqrt", b.add("Add", square, b.constant(1e-5)))
        x = b.add("Mul", b.add("Div", centred, root), b.weight(120))
    return b.model({"x": [1, 40, 120]}, [b.linear(x, 120, 240) if linear else x])


def _attention(width: int, heads: int, steps: int, *, packed: bool = False) -> onnx.ModelProto:
    b = Builder(18)
    each = width // heads

    def split(x: str) -> str:
        return b.add("Transpose", b.shaped(x, 1, steps, heads, each), perm=[0, 2, 1, 3])

    if packed:
        whole = b.shaped(b.linear("x", width, 3 * width), 1, steps, 3, heads, each)
        whole = b.add("Transpose", whole, perm=[2, 0, 3, 1, 4])
        index = [b.constant(i, np.int64) for i in range(3)]
        q, k, v = (b.add("Gather", whole, i, axis=0) for i in index)
    else:
        q, k, v = (split(b.linear("x", width, width)) for _ in range(3))
    q = b.add("Mul", q, b.constant(each**-0.5))
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2]))
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), v)
    mixed = b.shaped(b.add("Transpose", mixed, perm=[0, 2, 1, 3]), 1, steps, width)
    return b.model({"x": [1, steps, width]}, [b.linear(mixed, width, width)])


def _lstm(
    batch: int, *, both: bool = False, steps: int = 20, op_type: str = "LSTM"
) -> onnx.ModelProto:
    b = Builder(19)
    x = b.recurrent(op_type, "x", 96, 48, both=both)
    x = b.shaped(b.add("Transpose", x, perm=[0, 2, 1, 3]), steps, batch, 48 * (1 + both))
    return b.model({"x": [steps, batch, 96]}, [b.linear(x, 48 * (1 + both), 40)])


def _pointwise(shape: tuple[int, ...], kernel: tuple[int, int] = (1, 1)) -> onnx.ModelProto:
    b = Builder(20)
    pads = [kernel[0] // 2, kernel[1] // 2] * 2
    return b.model({"x": shape}, [_conv(b, "x", 64, shape[1], *kernel, pads=pads)])


def _matmul(rows: int, terms: int, columns: int) -> onnx.ModelProto:
    b = Builder(21)
    return b.model({"x": [1, rows, terms]}, [b.linear("x", terms, columns)])


def _gemm_row(terms: int, columns: int) -> onnx.ModelProto:
    b = Builder(22)
    y = b.add("Gemm", "x", b.weight(columns, terms), b.weight(columns), transB=1)
    return b.model({"x": [1, terms]}, [b.add("Relu", y)])


def _conv2d(channels: int, outputs: int, kernel: int, *, size: int = 14) -> onnx.ModelProto:
    b = Builder(23)
    y = _conv(b, "x", outputs, channels, kernel, kernel, pads=[kernel // 2] * 4)
    return b.model({"x": [1, channels, size, size]}, [y])


def _two_convs() -> onnx.ModelProto:
    b = Builder(24)
    x = b.add("Relu", _conv(b, "x", 32, 16, 3, 3, pads=[1] * 4))
    return b.model({"x": [1, 16, 14, 14]}, [_conv(b, x, 32, 32, 3, 3, pads=[1] * 4)])


def _residual() -> onnx.ModelProto:
    b = Builder(25)
    x = b.add("Relu", _conv(b, "x", 32, 32, 3, 3, pads=[1] * 4))
    x = b.add("Relu", b.add("Add", _conv(b, x, 32, 32, 3, 3, pads=[1] * 4), "x"))
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    y = b.add("Gemm", x, b.weight(10, 32), b.weight(10), transB=1)
    return b.model({"x": [2, 32, 14, 14]}, [y])


def _softmax() -> onnx.ModelProto:
    b = Builder(26)
    return b.model({"x": [4, 8, 40]}, [b.add("Softmax", "x", axis=-1)])


def _pools() -> onnx.ModelProto:
    b = Builder(27)
    mean = b.add("AveragePool", "x", kernel_shape=[3, 3], pads=[1] * 4)
    both = b.add("Concat", b.add("Mul", mean, "x"), b.add("Sub", "x", mean), axis=1)
    return b.model({"x": [1, 16, 16, 16]}, [b.add("GlobalAveragePool", both)])
