"""A layer normalization, or one by the root of the mean square, that is written out.

Exporters before opset 17 write (x − mean) / √(mean((x − mean)²) + ε), those before opset 23
x / √(mean(x²) + ε) or x · (1 / √ …). As one operator a runtime computes it in FP32 inside, where
the squares cannot overflow, and rounds once.
"""

from __future__ import annotations

from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.fuse.matching import WrittenOut, made_by, number, reduced_axis, squared

_LAYER_NORM, _RMS_NORM = 17, 23
"""The first opsets with these operators."""


def normalization(graph: Graph, node: Node) -> WrittenOut | None:
    """The normalization over the last axis that a node completes."""
    for source, root, inner in _quotients(graph, node):
        total = made_by(graph, root.inputs[0], "Add")
        if total is None:
            continue
        epsilon = [number(graph, t) for t in total.inputs]
        place = next((i for i, e in enumerate(epsilon) if e is not None), None)
        mean = None if place is None else _mean(graph, total.inputs[1 - place])
        if place is None or mean is None:
            continue
        nodes = (*inner, root, total, mean)
        return _of(graph, node, source, float(epsilon[place] or 0.0), nodes)
    return None


def _of(
    graph: Graph, node: Node, source: str, epsilon: float, nodes: tuple[Node, ...]
) -> WrittenOut | None:
    """Of what is divided by the root of a mean, the last of `nodes`."""
    square = _square_of(graph, nodes[-1].inputs[0], source)
    if square is None:
        return None
    away = made_by(graph, source, "Sub")
    middle = None if away is None else _mean(graph, away.inputs[1])
    inner = frozenset(n.name for n in (*nodes, square))
    kind, known = "RMSNormalization", _RMS_NORM
    if away is not None and middle is not None and middle.inputs[0] == away.inputs[0]:
        kind, known, source = "LayerNormalization", _LAYER_NORM, away.inputs[0]
        inner |= {away.name, middle.name}
    size = (graph.shapes.get(source) or (None,))[-1]
    if graph.opset < known or not isinstance(size, int):
        return None
    return WrittenOut(node.name, inner, source, kind, {"axis": -1, "epsilon": epsilon}, size)


def _quotients(graph: Graph, node: Node) -> list[tuple[str, Node, tuple[Node, ...]]]:
    """What a node divides by a root, the root, and the nodes between; of a product with the
    inverse of a root too."""
    if node.op_type == "Div":
        root = made_by(graph, node.inputs[1], "Sqrt")
        return [] if root is None else [(node.inputs[0], root, ())]
    found: list[tuple[str, Node, tuple[Node, ...]]] = []
    for here, there in ((0, 1), (1, 0)) if node.op_type == "Mul" else ():
        inverse = made_by(graph, node.inputs[there], "Reciprocal")
        if inverse is None:
            inverse = made_by(graph, node.inputs[there], "Div")
            if inverse is None or number(graph, inverse.inputs[0]) != 1.0:
                continue
        root = made_by(graph, inverse.inputs[-1], "Sqrt")
        if root is not None:
            found.append((node.inputs[here], root, (inverse,)))
    return found


def _mean(graph: Graph, tensor: str) -> Node | None:
    """The node that makes a tensor, where that is a mean over the last axis which stays."""
    node = made_by(graph, tensor, "ReduceMean")
    if node is None:
        return None
    rank = len(graph.shapes.get(node.inputs[0]) or ())
    return node if reduced_axis(graph, node) == rank - 1 else None


def _square_of(graph: Graph, tensor: str, of: str) -> Node | None:
    node = graph.producers.get(tensor)
    return node if node is not None and squared(graph, node) == of else None
