"""Small networks of many structures, with channels of very different ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.load import ModelFile
from qdebug.network.prepare import Model, prepare_model


class Builder:
    """Adds layers with random weights, one after the other; each method returns the tensor."""

    def __init__(self, seed: int = 0, spread: float = 2.0) -> None:
        """`spread` is the standard deviation of the logarithm of the channels' magnitudes."""
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}
        self._spread = spread

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        array = np.asarray(values)
        self.constants[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
        return name

    def magnitudes(self, count: int) -> Any:
        """One for each channel."""
        return np.exp(self._spread * self.rng.normal(size=count) / 2)

    def conv(
        self, x: str, ins: int, outs: int, *, groups: int = 1, size: int = 3, bias: bool = True
    ) -> str:
        shape = (outs, ins // groups, size, size)
        weight = self.rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        weight *= self.magnitudes(outs).reshape(-1, 1, 1, 1)
        operands = [self.constant(weight)]
        if bias:
            operands.append(self.constant(self.rng.normal(size=outs)))
        return self.add("Conv", x, *operands, group=groups, pads=[size // 2] * 4)

    def linear(self, x: str, ins: int, outs: int) -> str:
        """MatMul and a bias."""
        weight = self.rng.normal(size=(ins, outs)) / np.sqrt(ins) * self.magnitudes(outs)
        product = self.add("MatMul", x, self.constant(weight))
        return self.add("Add", product, self.constant(self.rng.normal(size=outs)))

    def gemm(self, x: str, ins: int, outs: int) -> str:
        weight = self.rng.normal(size=(outs, ins)) / np.sqrt(ins)
        bias = self.constant(self.rng.normal(size=outs))
        return self.add("Gemm", x, self.constant(weight), bias, transB=1)

    def norm(self, x: str, size: int, *, written_out: bool = False) -> str:
        gamma, beta = self.magnitudes(size), self.rng.normal(size=size)
        if not written_out:
            return self.add(
                "LayerNormalization", x, self.constant(gamma), self.constant(beta), axis=-1
            )
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        square = self.add("Pow", centred, self.constant(np.float32(2)))
        variance = self.add("ReduceMean", square, axes=[-1])
        root = self.add("Sqrt", self.add("Add", variance, self.constant(np.float32(1e-5))))
        scaled = self.add("Mul", self.add("Div", centred, root), self.constant(gamma))
        return self.add("Add", scaled, self.constant(beta))

    def silu(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))

    def head(self, x: str, channels: int, classes: int = 5) -> str:
        """Pooled, and a Gemm."""
        return self.gemm(self.add("Flatten", self.add("GlobalAveragePool", x)), channels, classes)

    def model(
        self, inputs: Mapping[str, Sequence[int | str]], *outputs: str, opset: int = 17
    ) -> Model:
        """Prepared as a user's."""
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "g",
            [value(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [value(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(v, n) for n, v in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", opset)]
        proto = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset < 21 else 11)
        )
        return prepare_model(ModelFile(Path("m.onnx"), proto, "sha", "digest"))


IMAGES = {"x": ("N", 3, 8, 8)}
TOKENS = {"x": ("N", 6, 8)}


def _depthwise(activation: str) -> Callable[[], Model]:
    """A block of expansion, depthwise convolution and projection, with a residual."""

    def make() -> Model:
        b = Builder(1)
        act = b.silu if activation == "silu" else lambda x: b.add("Relu", x)
        stem = act(b.conv("x", 3, 8))
        wide = act(b.conv(stem, 8, 16, size=1))
        spatial = act(b.conv(wide, 16, 16, groups=16))
        back = b.add("Add", b.conv(spatial, 16, 8, size=1), stem)
        return b.model(IMAGES, b.head(b.add("Relu", back), 8))

    return make


def _grouped() -> Model:
    """Two readers of one tensor, groups of several channels, and a multiplier."""
    b = Builder(2)
    stem = b.add("LeakyRelu", b.conv("x", 3, 8), alpha=0.2)
    left = b.add("Relu", b.conv(stem, 8, 16, groups=4))
    right = b.add("Relu", b.conv(stem, 8, 16, groups=8))
    return b.model(IMAGES, b.head(b.add("Add", left, right), 16))


def _residual() -> Model:
    """Two residual blocks and a pool."""
    b = Builder(3)
    x = b.add("Relu", b.conv("x", 3, 8))
    for _ in range(2):
        slope = b.constant(b.rng.uniform(0.05, 0.3, size=(8, 1, 1)))
        inner = b.add("PRelu", b.conv(x, 8, 8), slope)
        x = b.add("Relu", b.add("Add", b.conv(inner, 8, 8), x))
    pooled = b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return b.model(IMAGES, b.head(b.add("Relu", b.conv(pooled, 8, 12)), 12))


def _encoder(*, pre_norm: bool, written_out: bool) -> Callable[[], Model]:
    """An attention block of one head, and a network of two layers behind it."""

    def make() -> Model:
        b = Builder(4)

        def norm(x: str) -> str:
            return b.norm(x, 8, written_out=written_out)

        entry = norm("x") if pre_norm else "x"
        q, k, v = (b.linear(entry, 8, 8) for _ in range(3))
        scores = b.add("Softmax", b.add("MatMul", q, b.add("Transpose", k, perm=[0, 2, 1])))
        x = b.add("Add", b.linear(b.add("MatMul", scores, v), 8, 8), "x")
        x = x if pre_norm else norm(x)
        inner = b.add("Relu", b.linear(norm(x) if pre_norm else x, 8, 16))
        x = b.add("Add", b.linear(inner, 16, 8), x)
        x = norm(x)
        return b.model(TOKENS, b.linear(x, 8, 4))

    return make


def _shared_weight() -> Model:
    """Two layers with one weight, and a layer whose output is the network's too."""
    b = Builder(5)
    weight = b.constant(b.rng.normal(size=(8, 8)) / 3)
    first = b.add("Relu", b.add("MatMul", "x", weight))
    second = b.add("Relu", b.add("MatMul", first, weight))
    return b.model(TOKENS, b.linear(second, 8, 4), first)


NETWORKS: Mapping[str, Callable[[], Model]] = {
    "depthwise-relu": _depthwise("relu"),
    "depthwise-silu": _depthwise("silu"),
    "grouped": _grouped,
    "residual": _residual,
    "pre-norm": _encoder(pre_norm=True, written_out=False),
    "post-norm": _encoder(pre_norm=False, written_out=False),
    "written-out-norm": _encoder(pre_norm=True, written_out=True),
    "shared-weight": _shared_weight,
}
