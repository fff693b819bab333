"""The values of constants, behind the nodes that only reshape, cast or quantize them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.strip import dequantized
from qdebug.types import Array

_FOLLOWED = frozenset({"Identity", "Cast", "Transpose", "Reshape", "Unsqueeze", "Squeeze"})


class ConstantValues:
    """Constants of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.is_constant = lru_cache(maxsize=None)(self._is_constant)
        self.value = lru_cache(maxsize=64)(self._value)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Of a constant."""
        value = self.value(tensor)
        return () if value is None else value.shape

    def _is_constant(self, tensor: str) -> bool:
        if tensor in self.graph.initializers:
            return True
        node = self.graph.producers.get(tensor)
        if node is None:
            return False
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", *_FOLLOWED):
            return all(self.is_constant(t) for t in node.inputs if t)
        return False

    def _value(self, tensor: str) -> Array | None:
        """The value of a constant; before rounding, where a QuantizeLinear of the model rounds
        it."""
        stored = self.graph.constant(tensor)
        if stored is not None:
            return stored
        node = self.graph.producers[tensor]
        if node.op_type == "QuantizeLinear":
            return None
        if node.op_type == "DequantizeLinear":
            maker = self.graph.producers.get(node.inputs[0])
            if maker is not None and maker.op_type == "QuantizeLinear":
                return self.value(maker.inputs[0])
            if self.graph.constant(node.inputs[0]) is None:
                return None
            return dequantized(self.graph, node)
        inner = self.value(node.inputs[0])
        return None if inner is None else self.moved(node, inner)

    def moved(self, node: Node, value: Array) -> Array | None:
        """What a node that only reshapes or casts makes of an array; None where its shape is not
        known."""
        if node.op_type == "Transpose":
            return np.transpose(value, self.graph.attributes(node).get("perm"))
        if node.op_type in ("Reshape", "Unsqueeze", "Squeeze"):
            shape = self.graph.shapes.get(node.outputs[0])
            known = shape is not None and all(isinstance(d, int) for d in shape)
            return value.reshape([int(d or 0) for d in shape]) if known and shape else None
        return value
