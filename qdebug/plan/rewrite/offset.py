"""Subtract a constant from what a layer reads, and give its output back what that takes off: the
network computes what it computed, with activations that lie about 0.

A symmetric format has codes for as much below 0 as above, and what a Relu or a SiLU gives uses half
of them. A zero point would use all; TensorRT takes none. What it stands for is exact in the network
itself, since a product is linear: W x = W (x − z) + W z. Where a convolution pads, W z differs at
the borders, and is a constant of the size of the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from qdebug.formats.base import FloatArray, along
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.weights import channel_axis, input_channels

Offsets = npt.NDArray[np.float64]
"""One per channel that a layer reads, [channels]."""


@dataclass(frozen=True)
class Offset:
    """A network of the same function.

    Attributes:
        proto: the network.
        shifted: by tensor, the one that layers read in its place.
        maps: how many constants of the size of an output were added.
    """

    proto: onnx.ModelProto
    shifted: Mapping[str, str]
    maps: int


def takes_offset(graph: Graph, node: Node) -> bool:
    """Whether a constant can be subtracted from what a node reads."""
    if input_channels(graph, node) is None:
        return False
    attributes = graph.attributes(node)
    if node.op_type == "MatMul":
        return len(graph.initializers[node.inputs[1]].dims) == 2
    if node.op_type == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        plain = float(attributes.get("beta", 1.0)) == 1.0
        return not bias or (plain and bias in graph.initializers)
    if node.op_type != "Conv" or (
        len(node.inputs) > 2 and node.inputs[2] not in graph.initializers
    ):
        return False
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False
    return not pads(graph, node) or _sizes(graph, node) is not None


def pads(graph: Graph, node: Node) -> bool:
    """Whether a node reads zeros beside its input."""
    attributes = graph.attributes(node)
    notset = attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
    return node.op_type == "Conv" and notset and any(attributes.get("pads", ()))


def offset_inputs(graph: Graph, offsets: Mapping[str, Offsets]) -> Offset:
    """`graph` with offsets subtracted from what some nodes read.

    Args:
        offsets: by the name of the node, which `takes_offset`; nodes that read the same tensor have
            the same ones.

    Raises:
        PlanError: as `check`.
    """
    editor, shifted, maps = Editor(graph), dict[str, str](), 0
    for proto in graph.proto.graph.node:
        view, node = graph.by_name[proto.name], copy_node(proto)
        if view.name not in offsets:
            editor.emit(node)
            continue
        tensor = view.inputs[0]
        if tensor not in shifted:
            constant = along(offsets[view.name], 0, -channel_axis(graph, view)).astype(np.float32)
            shifted[tensor] = editor.tensor_name(f"{tensor}_shifted")
            editor.add(
                "Sub",
                tensor,
                editor.initializer(constant, f"{tensor}_offset"),
                output=shifted[tensor],
                name=editor.node_name(f"{tensor}_shift"),
            )
        node.input[0] = shifted[tensor]
        taken = _taken_off(graph, view, offsets[view.name]).astype(np.float32)
        if taken.ndim == 1 and view.op_type != "MatMul":
            known = graph.constant(view.inputs[2]) if len(view.inputs) > 2 else None
            bias = editor.initializer(
                taken if known is None else known + taken, f"{view.name}_bias"
            )
            del node.input[2:]
            node.input.append(bias)
            editor.emit(node)
            continue
        maps += taken.ndim > 1
        output = view.outputs[0]
        node.output[0] = editor.tensor_name(f"{output}_shifted")
        editor.emit(node)
        constant_name = editor.initializer(taken, f"{output}_offset")
        name = editor.node_name(f"{output}_unshift")
        editor.add("Add", node.output[0], constant_name, output=output, name=name)
    return Offset(editor.finish("the network with offsets"), shifted, maps)


def inside(graph: Graph, node: Node, weight: FloatArray, offsets: Offsets) -> Offsets:
    """What a node gives for the offsets alone, with its weight or another, where it reads no zeros
    beside its input: one for each output channel."""
    kernels = _kernels(graph, node, weight, offsets)
    return np.asarray(kernels.reshape(len(kernels), -1).sum(axis=1), np.float64)


def _taken_off(graph: Graph, node: Node, offsets: Offsets) -> npt.NDArray[np.float64]:
    """As `inside`, or, of a convolution that pads, [channels, …] of the size of its output."""
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    if not pads(graph, node):
        return inside(graph, node, weight, offsets)
    kernels, attributes = _kernels(graph, node, weight, offsets), graph.attributes(node)
    rank = weight.ndim - 2
    strides = attributes.get("strides", (1,) * rank)
    dilations = attributes.get("dilations", (1,) * rank)
    sizes = _sizes(graph, node)
    assert sizes is not None  # takes_offset
    for i, (read, given) in enumerate(zip(*sizes, strict=True)):
        taps = np.arange(weight.shape[2 + i]) * dilations[i]
        places = np.arange(given)[:, None] * strides[i] + taps - attributes["pads"][i]
        valid = ((places >= 0) & (places < read)).astype(np.float64)  # [positions, taps]
        kernels = np.moveaxis(np.tensordot(kernels, valid, (1 + i, 1)), -1, 1 + i)
    return kernels


def _kernels(
    graph: Graph, node: Node, weight: FloatArray, offsets: Offsets
) -> npt.NDArray[np.float64]:
    """What each tap of a weight gives for the offsets, [output channels, …]."""
    weight, attributes = weight.astype(np.float64), graph.attributes(node)
    if node.op_type == "MatMul":
        return np.asarray(offsets @ weight, np.float64)
    if node.op_type == "Gemm":
        matrix = weight.T if attributes.get("transB", 0) else weight
        return np.asarray(float(attributes.get("alpha", 1.0)) * (offsets @ matrix), np.float64)
    groups = int(attributes.get("group", 1))
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    each = offsets.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
    summed = (by_group * each).sum(axis=2)
    return np.asarray(summed.reshape(len(weight), *weight.shape[2:]), np.float64)


def _sizes(graph: Graph, node: Node) -> tuple[list[int], list[int]] | None:
    """Of what a convolution reads and of what it gives, along each axis that it moves along; None
    where they depend on the samples."""
    rank = len(graph.initializers[node.inputs[1]].dims)
    shapes = [graph.shapes.get(t, ())[2:] for t in (node.inputs[0], node.outputs[0])]
    known = [[n for n in shape if isinstance(n, int)] for shape in shapes]
    return (known[0], known[1]) if all(len(one) == rank - 2 for one in known) else None
