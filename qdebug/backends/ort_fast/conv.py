"""Two-dimensional convolutions on INT8 kernels, with the channels last.

To FP32: the windows are gathered as rows and multiplied as a matrix, with sums in INT32 that are
scaled to FP32 at once. To codes, where only Q/DQ pairs read the layer's output: QLinearConv, which
scales the sums and rounds them to the codes that the Q/DQ pair would make; Relu and Clip commute
with rounding and are applied to the codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from qdebug.backends.ort_fast.literal import TO_FIRST, ZERO_U8, Literal
from qdebug.backends.ort_fast.matmul import SMALLEST_STEP, KernelPart, scaled_product
from qdebug.backends.ort_fast.parts import CONTRIB, Form, Formed
from qdebug.backends.ort_fast.windows import Windows, windows_of
from qdebug.formats.base import FloatArray
from qdebug.formats.registry import INT8
from qdebug.network.graph import Node
from qdebug.plan.rewrite.edit import attributes_of, copy_node, make_node
from qdebug.plan.rewrite.qdq import QuantizedLayer, quantized_operands, weight_codes
from qdebug.types import Array

_ELEMENTWISE = frozenset(
    {"Relu", "Clip", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Softplus"}
    | {"Add", "Mul"}
)
_LARGEST_BIAS = 2.0**30
_FEWEST_CHANNELS = 8
"""Gathering the windows of an input with fewer channels costs more than the FP32 convolution."""


@dataclass(frozen=True)
class _Conv:
    """A convolution with a constant weight.

    Attributes:
        source: the tensor it reads.
        codes: of the weight, [out, in / group, height, width].
        scale: of the weight.
        steps: what one unit of a sum is worth, per output channel.
        bias: per output channel, or None.
        attributes: of the node.
    """

    node: Node
    item: QuantizedLayer
    source: str
    codes: Array
    scale: FloatArray
    steps: FloatArray
    bias: FloatArray | None
    attributes: Mapping[str, Any]


def conv_to_codes(literal: Literal, item: QuantizedLayer) -> KernelPart | None:
    """The whole layer, ending in the codes of its output; None where no kernel computes that."""
    layer = item.layer
    conv = _conv(literal, item)
    if conv is None or layer.output not in literal.scales:
        return None
    tail = [literal.graph.by_name[n] for n in layer.nodes[1:]]
    limits = [_code_limits(literal, n, literal.scales[layer.output]) for n in tail]
    bias = np.zeros(len(conv.codes)) if conv.bias is None else conv.bias / conv.steps
    if None in limits or not np.all(np.abs(bias) < _LARGEST_BIAS):
        return None
    shop, name = literal.shop, layer.name
    inputs = [
        shop.name(conv.source, Form.U8_LAST),
        *literal.grid(conv.source),
        shop.constant(conv.codes, f"{name}:codes"),
        shop.constant(conv.scale, f"{name}:scale"),
        shop.constant(np.zeros(conv.scale.shape, np.int8), f"{name}:zeros"),
        *literal.grid(layer.output),
        shop.constant(np.rint(bias).astype(np.int32), f"{name}:bias32"),
    ]
    names = [*(shop.tensor_name(name) for _ in tail), shop.name(layer.output, Form.U8_LAST)]
    node = make_node("QLinearConv", inputs, names[0], domain=CONTRIB, channels_last=1)
    node.attribute.extend(literal.protos[name].attribute)
    nodes = [node]
    for pair, start, end in zip(limits, names, names[1:], strict=False):
        operands = [shop.constant(np.uint8(v), f"code:{v}") for v in pair or ()]
        nodes.append(make_node("Clip", [start, *operands], end))
    part = shop.part(nodes, [(conv.source, Form.U8_LAST)], [(layer.output, Form.U8_LAST)])
    return KernelPart(part, frozenset(layer.nodes))


def conv_to_float(literal: Literal, item: QuantizedLayer) -> KernelPart | None:
    """The whole layer, or its anchor where what follows must see the channels in their place,
    ending in FP32; None where no kernel computes that."""
    conv = _conv(literal, item)
    if conv is None or conv.attributes.get("group", 1) != 1:
        return None
    shape = literal.graph.shapes.get(conv.source, ())
    windows = windows_of(shape, conv.codes.shape[2:], conv.attributes)
    if windows is None or np.any(conv.steps < SMALLEST_STEP):
        return None
    if windows.pixels is not None and conv.codes.shape[1] < _FEWEST_CHANNELS:
        return None
    shop, layer = literal.shop, item.layer
    whole = shop.name(layer.output, Form.PLAIN_LAST)
    summed = shop.tensor_name(layer.name) if len(layer.nodes) > 1 else whole
    nodes = _summed(literal, conv, windows, summed)
    needs = [(conv.source, Form.U8_LAST)]
    tail = _tail(literal, conv, summed, whole)
    if tail is not None:
        after, also = tail
        gives = [(layer.output, Form.PLAIN_LAST)]
        part = shop.part([*nodes, *after], [*needs, *also], gives)
        return KernelPart(part, frozenset(layer.nodes))
    output = conv.node.outputs[0]
    turn = make_node("Transpose", [summed], shop.name(output), perm=TO_FIRST)
    part = shop.part([*nodes, turn], needs, [(output, Form.PLAIN)])
    return KernelPart(part, frozenset({layer.name}))


def _conv(literal: Literal, item: QuantizedLayer) -> _Conv | None:
    graph, how = literal.graph, item.weight
    node = graph.by_name[item.layer.name]
    if how is None or item.layer.weight != node.inputs[1]:
        return None
    codes = weight_codes(graph, item.layer.weight, how)
    if codes.ndim != 4:
        return None
    bias = None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = graph.constant(node.inputs[2])
        if bias is None:
            return None
    if item.bias is not None:
        bias = item.bias if bias is None else bias + item.bias
    steps = np.broadcast_to(literal.scales[node.inputs[0]] * how.scale, (len(codes),))
    attributes = attributes_of(literal.protos[node.name])
    return _Conv(node, item, node.inputs[0], codes, how.scale, steps, bias, attributes)


def _summed(literal: Literal, conv: _Conv, windows: Windows, result: str) -> list[onnx.NodeProto]:
    """What makes `result`, the convolution in FP32: [N, out_h, out_w, out channels]."""
    shop, name = literal.shop, conv.node.name
    rows, nodes = _rows(literal, conv, windows)
    # The rows hold [kernel_h, kernel_w, in channels].
    matrix = conv.codes.transpose(2, 3, 1, 0).reshape(-1, len(conv.codes))
    scale, zero = literal.grid(conv.source)
    product_name = result if windows.pixels is None else shop.tensor_name(name)
    product = scaled_product(
        shop,
        (rows, shop.constant(matrix, f"{name}:matrix")),
        (scale, shop.constant(conv.scale, f"{name}:scale")),
        zero,
        "" if conv.bias is None else shop.constant(conv.bias, f"{name}:bias"),
        product_name,
    )
    nodes.append(product)
    if windows.pixels is not None:
        sizes = [0, *windows.out, len(conv.codes)]
        nodes.append(_reshape(literal, product_name, sizes, result))
    return nodes


def _rows(literal: Literal, conv: _Conv, windows: Windows) -> tuple[str, list[onnx.NodeProto]]:
    """The windows of the input's codes, [N, windows, values], and what makes them."""
    shop, name = literal.shop, conv.node.name
    current = shop.name(conv.source, Form.U8_LAST)
    if windows.pixels is None:
        return current, []
    nodes = []
    if any(windows.pads):
        top, left, bottom, right = windows.pads
        pads = np.array([0, top, left, 0, 0, bottom, right, 0])
        operands = [shop.constant(pads, f"pads:{windows.pads}"), literal.grid(conv.source)[1]]
        padded = shop.tensor_name(name)
        nodes.append(make_node("Pad", [current, *operands], padded))
        current = padded
    flat, gathered, rows = (shop.tensor_name(name) for _ in range(3))
    channels = conv.codes.shape[1]
    size = channels * len(windows.pixels) // (windows.out[0] * windows.out[1])
    digest = hashlib.sha256(windows.pixels.tobytes()).hexdigest()
    pixels = shop.constant(windows.pixels, f"pixels:{digest}")
    nodes += [
        _reshape(literal, current, [0, -1, channels], flat),
        make_node("Gather", [flat, pixels], gathered, axis=1),
        _reshape(literal, gathered, [0, -1, size], rows),
    ]
    return rows, nodes


def _reshape(literal: Literal, start: str, shape: list[int], end: str) -> onnx.NodeProto:
    sizes = literal.shop.constant(np.array(shape), f"shape:{shape}")
    return make_node("Reshape", [start, sizes], end)


def _tail(
    literal: Literal, conv: _Conv, summed: str, result: str
) -> tuple[list[onnx.NodeProto], list[Formed]] | None:
    """What follows the anchor in its layer, with the channels last, and what that needs; None
    where a node is not elementwise."""
    shop, graph, layer = literal.shop, literal.graph, conv.item.layer
    names = {conv.node.outputs[0]: summed}
    nodes, needs = [], []
    for name in layer.nodes[1:]:
        node = graph.by_name[name]
        proto = copy_node(literal.protos[name])
        if node.op_type not in _ELEMENTWISE:
            return None
        operands = quantized_operands(node, layer)
        for i, tensor in enumerate(node.inputs):
            if tensor in names:
                proto.input[i] = names[tensor]
            elif tensor in operands:
                needs.append((tensor, Form.FAKE_LAST))
                proto.input[i] = shop.name(tensor, Form.FAKE_LAST)
            elif tensor:
                constant = graph.constant(tensor)
                if constant is None or constant.size != 1:
                    return None
        names[node.outputs[0]] = proto.output[0] = shop.tensor_name(name)
        nodes.append(proto)
    if nodes:
        nodes[-1].output[0] = result
    return nodes, needs


def _code_limits(literal: Literal, node: Node, scale: FloatArray) -> tuple[int, int] | None:
    """The least and the largest code behind a Relu or Clip; None for another node."""
    if node.op_type not in ("Relu", "Clip"):
        return None
    limits = [0.0, np.inf] if node.op_type == "Relu" else [-np.inf, np.inf]
    for i, tensor in enumerate(node.inputs[1:]):
        value = literal.graph.constant(tensor) if tensor else np.array(limits[i])
        if value is None:
            return None  # computed
        limits[i] = float(value.reshape(()))
    low, high = INT8.encode(np.array(limits, np.float32), scale).tolist()
    return low + ZERO_U8, high + ZERO_U8
