"""A layer normalization that is written out in single operators, as ONNX's own operator.

Exporters before opset 17 write (x − mean) / √(mean((x − mean)²) + ε). As one operator a runtime
computes it in FP32 inside, where the squares cannot overflow, and rounds once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.model.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node

_FIRST_OPSET = 17
"""The first with LayerNormalization."""


@dataclass(frozen=True)
class WrittenOut:
    """A normalization in single operators.

    Attributes:
        quotient: the node that computes its result.
        source: the tensor that is normalized.
        size: of its last axis, over which the means are taken.
        epsilon: added to the variance.
        inner: the other nodes, which nothing else reads.
    """

    quotient: str
    source: str
    size: int
    epsilon: float
    inner: frozenset[str]


def written_out_norms(graph: Graph) -> list[WrittenOut]:
    """Those of a network over the last axis, in execution order; none before opset 17."""
    if graph.opset < _FIRST_OPSET:
        return []
    found = (_match(graph, node) for node in graph.nodes if node.op_type == "Div")
    return [norm for norm in found if norm is not None]


def fuse_norms(graph: Graph, norms: Collection[WrittenOut]) -> onnx.ModelProto:
    """`graph` with LayerNormalization, of factor 1, in place of these, under the name of the
    quotient.

    Raises:
        PlanError: as `check`.
    """
    by_quotient = {norm.quotient: norm for norm in norms}
    inner = {name for norm in norms for name in norm.inner}
    editor = Editor(graph)
    for proto in graph.proto.graph.node:
        norm = by_quotient.get(proto.name)
        if proto.name in inner:
            continue
        node = copy_node(proto)
        if norm is not None:
            ones = editor.initializer(np.ones(norm.size, np.float32), f"{proto.output[0]}_ones")
            node.op_type = "LayerNormalization"
            del node.input[:], node.attribute[:]
            node.input.extend([norm.source, ones])
            node.attribute.extend(
                [
                    onnx.helper.make_attribute("axis", -1),
                    onnx.helper.make_attribute("epsilon", norm.epsilon),
                ]
            )
        editor.emit(node)
    return editor.finish("the network with layer normalizations")


def _match(graph: Graph, quotient: Node) -> WrittenOut | None:
    away = _made_by(graph, quotient.inputs[0], "Sub")
    root = _made_by(graph, quotient.inputs[1], "Sqrt")
    total = _made_by(graph, root.inputs[0], "Add") if root else None
    if away is None or root is None or total is None:
        return None
    constants = [graph.constant(t) for t in total.inputs]
    place = next((i for i, c in enumerate(constants) if c is not None and c.size == 1), None)
    if place is None:
        return None
    epsilon = float(np.asarray(constants[place]).reshape(-1)[0])
    variance = _mean(graph, total.inputs[1 - place])
    mean = _mean(graph, away.inputs[1])
    if variance is None or mean is None or mean.inputs[0] != away.inputs[0]:
        return None
    square = _square_of(graph, variance.inputs[0], away.outputs[0])
    size = (graph.shapes.get(away.inputs[0]) or (None,))[-1]
    if square is None or not isinstance(size, int):
        return None
    inner = frozenset(node.name for node in (away, root, total, variance, mean, square))
    whole = WrittenOut(quotient.name, away.inputs[0], size, epsilon, inner)
    return whole if _only_read_inside(graph, whole) else None


def _made_by(graph: Graph, tensor: str, op_type: str) -> Node | None:
    node = graph.producers.get(tensor)
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _mean(graph: Graph, tensor: str) -> Node | None:
    """The node that makes a tensor, where that is a mean over the last axis which stays."""
    node = _made_by(graph, tensor, "ReduceMean")
    if node is None:
        return None
    attributes = graph.attributes(node)
    axes = attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        given = graph.constant(node.inputs[1])
        axes = None if given is None else given.reshape(-1).tolist()
    rank = len(graph.shapes.get(node.inputs[0]) or ())
    last = axes is not None and rank and list(axes) in ([-1], [rank - 1])
    return node if last and attributes.get("keepdims", 1) else None


def _square_of(graph: Graph, tensor: str, of: str) -> Node | None:
    node = graph.producers.get(tensor)
    if node is None:
        return None
    if node.op_type == "Mul" and node.inputs == (of, of):
        return node
    exponent = graph.constant(node.inputs[1]) if node.op_type == "Pow" else None
    is_square = exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2
    return node if is_square and node.inputs[0] == of else None


def _only_read_inside(graph: Graph, norm: WrittenOut) -> bool:
    own = {*norm.inner, norm.quotient}
    tensors = [t for name in norm.inner for t in graph.by_name[name].outputs]
    return all(
        t not in graph.outputs and all(r.name in own for r in graph.consumers.get(t, ()))
        for t in tensors
    )
