"""Take nodes into those before them as TensorRT would: BatchNormalization, and what changes
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import onnx

from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import all_names, free_name, prune, refill, rename_reads
from qdebug.network.weights import tensor_of, values_of
from qdebug.types import Array

_KEEPS_SHAPE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Split"})
"""Operators that give back what they read where its shape stays the same."""
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
"""The second operand with which they give back the first."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")


def fuse(graph: Graph) -> tuple[onnx.ModelProto, Mapping[str, tuple[str, ...]]]:
    """The model of `graph`, whose types and shapes are inferred, without the nodes that others take
    in; and the nodes that each node which took some in stands for, itself first.

    Raises:
        StoreError: as of `weights.tensor_of`.
    """
    fusion = _Fusion(graph)
    for node in graph.nodes:
        if not node.inputs or node.domain or not any(node.outputs):
            continue
        if fusion.is_same(node) or fusion.is_folded(node):
            fusion.drop(node)
    return fusion.finished(), {name: tuple(nodes) for name, nodes in fusion.stands_for.items()}


class _Fusion:
    """A model while nodes are dropped from it, in execution order.

    Attributes:
        writers: the node that writes each tensor.
        readers: how many read each tensor; an output is read once more.
        names: tensor that is there no more -> one that holds the same.
        made: constants that were made here.
        stands_for: node -> those that it stands for.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.proto = deepcopy(graph.proto)
        self.nodes = {node.name: node for node in self.proto.graph.node}
        self.writers = {t: n.name for n in graph.nodes for t in n.outputs if t}
        self.readers = Counter(t for n in graph.nodes for t in n.reads) + Counter(graph.outputs)
        self.taken = all_names(graph.proto.graph)[0]
        self.names: dict[str, str] = {}
        self.made: dict[str, onnx.TensorProto] = {}
        self.stands_for: dict[str, list[str]] = {}

    def now(self, tensor: str) -> str:
        """The name by which a tensor goes."""
        while tensor in self.names:
            tensor = self.names[tensor]
        return tensor

    def is_same(self, node: Node) -> bool:
        """Whether a node gives back what it reads."""
        graph, read, attributes = self.graph, node.inputs[0], self.graph.attributes(node)
        if any(self.readers[t] for t in node.outputs[1:]):
            return False
        if node.op_type == "Identity":
            return True
        if node.op_type == "Dropout":
            trains = graph.constant(node.inputs[2]) if node.inputs[2:] else np.False_
            return trains is not None and not trains.any()
        if node.op_type == "Cast":
            return bool(graph.types.get(read) == attributes["to"])
        shape = graph.shapes.get(read)
        if shape is None or None in shape or shape != graph.shapes.get(node.outputs[0]):
            return False
        if node.op_type in _NEUTRAL:
            operand = graph.constant(node.inputs[1])
            return operand is not None and bool((operand == _NEUTRAL[node.op_type]).all())
        return node.op_type in _KEEPS_SHAPE

    def is_folded(self, node: Node) -> bool:
        """Whether a node is a BatchNormalization, and is folded into the convolution before it,
        which has other weights then."""
        if node.op_type != "BatchNormalization":
            return False
        read, settings = self.now(node.inputs[0]), self.graph.attributes(node)
        before = self.graph.by_name.get(self.writers.get(read, ""))
        if (
            before is None
            or before.op_type not in _CONVOLUTIONS
            or before.domain
            or self.readers[read] > 1
            or any(node.outputs[1:])
            or settings.get("training_mode")
        ):
            return False
        conv = self.nodes[before.name]
        norm = [self._value(t) for t in node.inputs[1:]]
        weights = [self._value(t) for t in conv.input[1:] if t]
        constants = [values for values in (*norm, *weights) if values is not None]
        if len(constants) < len(norm) + len(weights):
            return False
        scale, shift, mean, variance, weight, *bias = constants
        with np.errstate(all="ignore"):  # what comes out is the user's to judge
            factor = scale / np.sqrt(variance + settings.get("epsilon", 1e-5))
            moved = ((bias[0] if bias else np.zeros_like(mean)) - mean) * factor + shift
            groups = self.graph.attributes(before).get("group", 1)
            scaled = _scaled(weight, factor, groups if before.op_type == "ConvTranspose" else None)
        names = [self._keep(scaled, f"{node.outputs[0]}_weight")]
        names.append(self._keep(moved, f"{node.outputs[0]}_bias"))
        conv.input[:] = [conv.input[0], *names]
        return True

    def _value(self, tensor: str) -> Array | None:
        made = self.made.get(tensor)
        return self.graph.constant(tensor) if made is None else values_of(made)

    def _keep(self, values: Array, wanted: str) -> str:
        name = free_name(wanted, self.taken)
        self.made[name] = tensor_of(values, name)
        return name

    def drop(self, node: Node) -> None:
        """Leave out a node whose first output is what the node before it gives now, under the name
        of that output; the names of inputs, constants and outputs stay."""
        read, written = self.now(node.inputs[0]), node.outputs[0]
        fixed = read not in self.writers or read in self.graph.outputs
        if fixed and written in self.graph.outputs:
            return
        gone, left = (written, read) if fixed else (read, written)
        self.names[gone] = left
        self.readers[left] = self.readers[read] + self.readers[written] - 1
        self.nodes.pop(node.name)
        if read in self.writers:
            writer = self.writers[left] = self.writers[read]
            outputs = self.nodes[writer].output
            outputs[:] = [left if t == read else t for t in outputs]
            nodes = self.stands_for.setdefault(writer, [writer])
            nodes += self.stands_for.pop(node.name, [node.name])

    def finished(self) -> onnx.ModelProto:
        """The model, in which every node reads what there is now."""
        graph, names = self.proto.graph, {t: self.now(t) for t in self.names}
        refill(graph.node, [n for n in graph.node if n.name in self.nodes])
        for node in graph.node:
            rename_reads(node, names)
        graph.initializer.extend(self.made.values())
        prune(graph)
        return self.proto


def _scaled(weight: Array, factor: Array, groups: int | None) -> Array:
    """The weight of a convolution with its output channels scaled, which lie on the first axis, or
    where `groups` says how many groups there are, as in ConvTranspose, on the second."""
    if groups is None:
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    scaled = grouped * factor.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    return scaled.reshape(weight.shape)
