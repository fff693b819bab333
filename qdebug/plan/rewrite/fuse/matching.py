"""A function that is written out in single operators, and what its matchers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdebug.network.graph import Graph, Node


@dataclass(frozen=True)
class WrittenOut:
    """A function in single operators.

    Attributes:
        last: the node that computes its result.
        inner: the other nodes, which nothing else reads.
        source: the tensor that it is a function of.
        op_type: the operator that computes it.
        attributes: of that operator.
        ones: how many ones the operator reads as its scale; 0 for one without.
    """

    last: str
    inner: frozenset[str]
    source: str
    op_type: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    ones: int = 0


def made_by(graph: Graph, tensor: str, op_type: str) -> Node | None:
    """The node that makes a tensor, where it is such an operator of ONNX."""
    node = graph.producers.get(tensor)
    return node if node is not None and node.op_type == op_type and not node.domain else None


def number(graph: Graph, tensor: str) -> float | None:
    """The value of a constant that is one number."""
    value = graph.constant(tensor)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def squared(graph: Graph, node: Node) -> str | None:
    """The tensor whose square a node computes; None for another node."""
    if node.op_type == "Mul" and node.inputs[0] == node.inputs[1]:
        return node.inputs[0]
    is_square = node.op_type == "Pow" and number(graph, node.inputs[1]) == 2
    return node.inputs[0] if is_square else None


def reduced_axis(graph: Graph, node: Node) -> int | None:
    """The one axis, counted from the front, over which a node reduces, where that axis stays."""
    attributes = graph.attributes(node)
    axes = attributes.get("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1]:
        given = graph.constant(node.inputs[1])
        axes = None if given is None else given.reshape(-1).tolist()
    rank = len(graph.shapes.get(node.inputs[0]) or ())
    if axes is None or len(axes) != 1 or not rank or not attributes.get("keepdims", 1):
        return None
    return int(axes[0]) % rank


def only_read_inside(graph: Graph, found: WrittenOut) -> bool:
    """Whether nothing else reads what the inner nodes compute."""
    own = {*found.inner, found.last}
    tensors = [t for name in found.inner for t in graph.by_name[name].outputs]
    return all(
        t not in graph.outputs and all(r.name in own for r in graph.consumers.get(t, ()))
        for t in tensors
    )
