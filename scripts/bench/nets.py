"""Synthetic networks for the benchmarks: the shapes of known ones, random weights, no downloads."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes and weights; every method returns the name of the tensor it made."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, shape: tuple[int, ...], fan_in: int) -> str:
        name = f"w{len(self.weights)}"
        values = self.rng.standard_normal(shape).astype(np.float32) * np.sqrt(2.0 / fan_in)
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op_type: str, inputs: list[str], **attributes: object) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes)
        )
        return f"{name}_out"

    def conv(
        self, x: str, cin: int, cout: int, kernel: int, stride: int = 1, group: int = 1
    ) -> str:
        pad = kernel // 2
        fan_in = cin // group * kernel * kernel
        weight = self.weight((cout, cin // group, kernel, kernel), fan_in)
        bias = self.constant(np.zeros(cout, np.float32))
        return self.node(
            "Conv", [x, weight, bias], strides=[stride] * 2, pads=[pad] * 4, group=group
        )

    def linear(self, x: str, cin: int, cout: int) -> str:
        product = self.node("MatMul", [x, self.weight((cin, cout), cin)])
        return self.node("Add", [product, self.constant(np.zeros(cout, np.float32))])

    def layer_norm(self, x: str, width: int) -> str:
        scale = self.constant(np.ones(width, np.float32))
        shift = self.constant(np.zeros(width, np.float32))
        return self.node("LayerNormalization", [x, scale, shift], axis=-1)

    def model(self, shape: list[int], output: str, out_shape: list[int] | None) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "bench",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, out_shape)],
            self.weights,
        )
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)


def resnet18_like(seed: int = 0) -> onnx.ModelProto:
    """A ResNet-18 (BatchNorm folded), input 1×3×224×224."""
    b = Builder(seed)
    x = b.node("Relu", [b.conv("input", 3, 64, 7, 2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    cin = 64
    for stage, cout in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = b.node("Relu", [b.conv(x, cin, cout, 3, stride)])
            y = b.conv(y, cout, cout, 3)
            shortcut = b.conv(x, cin, cout, 1, stride) if stride == 2 else x
            x = b.node("Relu", [b.node("Add", [y, shortcut])])
            cin = cout
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    bias = b.constant(np.zeros(1000, np.float32))
    x = b.node("Gemm", [x, b.weight((1000, 512), 512), bias], transB=1)
    return b.model([1, 3, 224, 224], x, [1, 1000])


def resnet50_like(seed: int = 0, wider: int = 1) -> onnx.ModelProto:
    """A ResNet-50 (BatchNorm folded), input 1×3×224×224; its bottlenecks `wider` times as wide."""
    b = Builder(seed)
    x = b.node("Relu", [b.conv("input", 3, 64, 7, 2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    cin = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        inner, outer = wider * width, 4 * width
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = b.node("Relu", [b.conv(x, cin, inner, 1)])
            y = b.node("Relu", [b.conv(y, inner, inner, 3, stride)])
            y = b.conv(y, inner, outer, 1)
            shortcut = x if block else b.conv(x, cin, outer, 1, stride)
            x = b.node("Relu", [b.node("Add", [y, shortcut])])
            cin = outer
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    bias = b.constant(np.zeros(1000, np.float32))
    x = b.node("Gemm", [x, b.weight((1000, 2048), 2048), bias], transB=1)
    return b.model([1, 3, 224, 224], x, [1, 1000])


def mobilenet_v2_like(seed: int = 0) -> onnx.ModelProto:
    """A MobileNetV2 (BatchNorm folded), input 1×3×224×224."""
    b = Builder(seed)
    low, high = b.constant(np.float32(0.0)), b.constant(np.float32(6.0))

    def relu6(t: str) -> str:
        return b.node("Clip", [t, low, high])

    x = relu6(b.conv("input", 3, 32, 3, 2))
    cin = 32
    settings = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    settings += [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, cout, repeat, first_stride in settings:
        for i in range(repeat):
            stride = first_stride if i == 0 else 1
            hidden = cin * expand
            y = x if expand == 1 else relu6(b.conv(x, cin, hidden, 1))
            y = relu6(b.conv(y, hidden, hidden, 3, stride, group=hidden))
            y = b.conv(y, hidden, cout, 1)
            x = b.node("Add", [x, y]) if stride == 1 and cin == cout else y
            cin = cout
    x = relu6(b.conv(x, cin, 1280, 1))
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    bias = b.constant(np.zeros(1000, np.float32))
    x = b.node("Gemm", [x, b.weight((1000, 1280), 1280), bias], transB=1)
    return b.model([1, 3, 224, 224], x, [1, 1000])


def encoder_like(
    seed: int = 0, depth: int = 6, width: int = 384, tokens: int = 128
) -> onnx.ModelProto:
    """A pre-norm transformer encoder, input 1×128×384."""
    b = Builder(seed)
    heads = 6
    split = b.constant(np.array([1, tokens, heads, width // heads], np.int64))
    join = b.constant(np.array([1, tokens, width], np.int64))
    scale = b.constant(np.float32((width // heads) ** -0.5))
    half, one, root2 = (b.constant(np.float32(v)) for v in (0.5, 1.0, 2**0.5))

    def heads_of(t: str, perm: list[int]) -> str:
        return b.node("Transpose", [b.node("Reshape", [t, split])], perm=perm)

    x = "input"
    for _ in range(depth):
        n = b.layer_norm(x, width)
        q, k, v = (b.linear(n, width, width) for _ in range(3))
        scores = b.node("MatMul", [heads_of(q, [0, 2, 1, 3]), heads_of(k, [0, 2, 3, 1])])
        weights = b.node("Softmax", [b.node("Mul", [scores, scale])], axis=-1)
        mixed = b.node("MatMul", [weights, heads_of(v, [0, 2, 1, 3])])
        mixed = b.node("Reshape", [b.node("Transpose", [mixed], perm=[0, 2, 1, 3]), join])
        x = b.node("Add", [x, b.linear(mixed, width, width)])
        h = b.linear(b.layer_norm(x, width), width, 4 * width)
        erf = b.node("Add", [b.node("Erf", [b.node("Div", [h, root2])]), one])
        h = b.node("Mul", [b.node("Mul", [h, erf]), half])
        x = b.node("Add", [x, b.linear(h, 4 * width, width)])
    return b.model([1, tokens, width], b.layer_norm(x, width), [1, tokens, width])


NETS = {
    "W1": resnet18_like,
    "W2": mobilenet_v2_like,
    "W3": encoder_like,
    "resnet50": resnet50_like,
    "wide_resnet50": partial(resnet50_like, wider=2),
}
USUAL = ("W1", "W2", "W3")
