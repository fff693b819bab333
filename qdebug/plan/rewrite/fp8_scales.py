"""Write the one scale of an FP8 weight once for each output channel, which are the same numbers.

TensorRT for RTX 1.6.1 takes a scalar scale of a convolution's FP8 weight as 1: on an H100 the
results were 1 / scale times too large (−68 dB). With a scale per channel they are right.
"""

from __future__ import annotations

import numpy as np
import onnx

from qdebug.formats.registry import FP8_E4M3, FP8_E5M2
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node

_AXES = {"Conv": 0, "ConvTranspose": 1}
"""Of the output channels in the weight of a convolution."""


def channel_axis(graph: Graph, reader: Node, weight: str) -> int | None:
    """The axis along which `reader` wants a scale for each output channel of its FP8 weight; None
    where one scale will do. Scales of a ConvTranspose in groups stand for several channels each,
    which no engine was seen to execute."""
    if reader.op_type not in _AXES or reader.inputs[1] != weight:
        return None
    grouped = reader.op_type == "ConvTranspose" and graph.attributes(reader).get("group", 1) > 1
    return None if grouped else _AXES[reader.op_type]


def with_channel_scales_of_fp8(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with a scale for each output channel of FP8 weights of convolutions; itself where
    none has a single one."""
    types = {FP8_E4M3.onnx_type, FP8_E5M2.onnx_type}
    if not any(tensor.data_type in types for tensor in proto.graph.initializer):
        return proto
    graph = Graph(proto)
    single = {n.name: k for n in graph.nodes if (k := _axis_if_single(graph, n, types)) is not None}
    if not single:
        return proto
    editor = Editor(graph)
    for original in graph.proto.graph.node:
        node = copy_node(original)
        axis = single.get(node.name)
        if axis is not None:
            channels = graph.initializers[node.input[0]].dims[axis]
            for place, tensor in enumerate(node.input[1:], start=1):
                value = graph.constant(tensor)
                assert value is not None  # a scale and a zero point by _axis_if_single
                each = np.repeat(value.reshape(1), channels)
                node.input[place] = editor.initializer(each, f"{tensor}_by_channel")
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("axis", axis))
        editor.emit(node)
    return editor.finish("the model with a scale for each channel of FP8 weights")


def _axis_if_single(graph: Graph, node: Node, types: set[int]) -> int | None:
    """The axis of the output channels of what a DequantizeLinear with one scale gives; None for any
    other node."""
    if node.op_type != "DequantizeLinear" or node.inputs[0] not in graph.initializers:
        return None
    codes = graph.initializers[node.inputs[0]]
    scale = graph.constant(node.inputs[1])
    if codes.data_type not in types or scale is None or scale.size != 1:
        return None
    if any(graph.constant(t) is None for t in node.inputs[2:]):
        return None
    readers = graph.consumers.get(node.outputs[0], ())
    axes = {channel_axis(graph, reader, node.outputs[0]) for reader in readers}
    return axes.pop() if len(axes) == 1 else None
