"""The values of constants, behind the nodes that only reshape, cast or quantize them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from qdebug.errors import ModelError
from qdebug.formats.base import along
from qdebug.network.graph import Graph, Node
from qdebug.plan.quantize import quantizer_of
from qdebug.types import Array
from qdebug.wording import option

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
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", *_FOLLOWED) or (
            node.op_type == "Clip" and not self.graph.is_float(tensor)
        ):
            return all(self.is_constant(t) for t in node.inputs if t)
        return False

    def _value(self, tensor: str) -> Array | None:
        """The value of a constant; before rounding, where a QuantizeLinear of the model rounds
        it."""
        stored = self.graph.constant(tensor)
        if stored is not None:
            return stored
        node = self.graph.producers[tensor]
        if not self.graph.is_float(tensor):
            return None
        if node.op_type == "DequantizeLinear":
            maker = quantizer_of(self.graph, node)
            if maker is not None:
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


def dequantized(graph: Graph, dq: Node) -> Array:
    """The values that a DequantizeLinear makes of constant codes.

    Raises:
        ModelError: the codes or the scale are computed, or do not fit each other.
    """
    operands = [graph.constant(t) if t else None for t in dq.inputs]
    codes, scale = operands[0], operands[1]
    if codes is None or scale is None:
        raise ModelError(
            f"node '{dq.name}' dequantizes values that no QuantizeLinear produced",
            f"Give the FP32 model as well: {option('reference', 'fp32.onnx')}.",
            code="QD-MODEL-NO-FP32-FORM",
        )
    zero = operands[2] if len(operands) > 2 and operands[2] is not None else np.zeros_like(scale)
    attributes = graph.attributes(dq)
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    try:
        steps = codes.astype(np.float32) - spread(zero.astype(np.float32), codes, axis, block)
        values = steps * spread(scale.astype(np.float32), codes, axis, block)
    except (ValueError, IndexError) as error:
        raise ModelError(
            f"node '{dq.name}': its scale {list(scale.shape)} or zero point does not fit its codes "
            f"{list(codes.shape)} on axis {axis}",
            "Export the model again.",
            code="QD-MODEL-INVALID",
        ) from error
    return np.asarray(values.astype(scale.dtype))


def spread(values: Array, codes: Array, axis: int, block: int) -> Array:
    """Scales or zero points in a shape that broadcasts over `codes`."""
    if block:  # one for every `block` neighbours along the axis
        return np.repeat(values, block, axis).take(np.arange(codes.shape[axis]), axis)
    if values.size == 1:
        return values.reshape((1,) * codes.ndim)
    return along(values, axis, codes.ndim)
