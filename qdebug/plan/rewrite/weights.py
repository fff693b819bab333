"""The constant weight of a layer, channel by channel of what the layer reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdebug.formats.base import along
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import QUANTIZABLE_OPS

Factors = npt.NDArray[np.float64]
"""One per channel, positive, [channels]."""


def input_channels(graph: Graph, node: Node) -> int | None:
    """How many channels a layer's anchor reads and multiplies by its constant FP32 weight, its
    second operand; None where that is not how it computes."""
    axis = _input_axis(graph, node)
    if axis is None:
        return None
    shape = graph.initializers[node.inputs[1]].dims
    groups = graph.attributes(node).get("group", 1) if node.op_type == "Conv" else 1
    return int(shape[axis]) * int(groups)


def channel_axis(graph: Graph, node: Node) -> int:
    """The axis of those channels in what the anchor reads, counted from the end."""
    if node.op_type in ("Conv", "ConvTranspose"):
        return 1 - len(graph.initializers[node.inputs[1]].dims)
    return -1


def divided_weight(
    graph: Graph, node: Node, weight: npt.NDArray[np.floating[Any]], factors: Factors
) -> npt.NDArray[np.float64]:
    """The weight of a node, or another of its shape, divided by factors of `input_channels`."""
    axis = _input_axis(graph, node)
    assert axis is not None
    each = along(factors, axis, weight.ndim)
    if node.op_type == "Conv":  # the channels of a group are those of its own filters
        groups = int(graph.attributes(node).get("group", 1))
        by_filter = np.repeat(factors.reshape(groups, -1), len(weight) // groups, axis=0)
        each = by_filter.reshape(*by_filter.shape, *[1] * (weight.ndim - 2))
    return np.asarray(weight / each, np.float64)


def weight_reach(graph: Graph, node: Node) -> Factors:
    """The largest magnitude of a node's weight for each of `input_channels`."""
    axis, weight = _input_axis(graph, node), graph.constant(node.inputs[1])
    assert axis is not None and weight is not None
    groups = int(graph.attributes(node).get("group", 1)) if node.op_type == "Conv" else 1
    rows = np.moveaxis(np.abs(weight.astype(np.float64)), axis, 1)  # [outputs, inputs, …]
    reach: Factors = rows.reshape(groups, -1, rows.shape[1], rows[0, 0].size).max(axis=(1, 3))
    return reach.reshape(-1)


def _input_axis(graph: Graph, node: Node) -> int | None:
    """The axis of the weight along which a node sums over what it reads."""
    if node.op_type not in QUANTIZABLE_OPS or len(node.inputs) < 2:
        return None
    weight = graph.initializers.get(node.inputs[1])
    if weight is None or node.inputs[0] in graph.initializers or len(weight.dims) < 2:
        return None
    if weight.data_type != onnx.TensorProto.FLOAT:
        return None
    if node.op_type == "Gemm":
        attributes = graph.attributes(node)
        return None if attributes.get("transA", 0) else int(attributes.get("transB", 0))
    if node.op_type == "MatMul":
        return len(weight.dims) - 2 if all(d == 1 for d in weight.dims[:-2]) else None
    return 1 if node.op_type == "Conv" else 0
