"""A softmax that is written out: exp(x) / Σ exp(x), with or without the largest value taken off x
before.

The operator always takes it off, so that in FP16 neither exp, which overflows from 11.1 on, nor the
sum is beyond what can be held.
"""

from __future__ import annotations

from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.fuse.matching import WrittenOut, made_by, reduced_axis

_BY_AXIS = 13
"""The first opset in which it is over one axis."""


def softmax(graph: Graph, node: Node) -> WrittenOut | None:
    """The softmax that a node completes."""
    if graph.opset < _BY_AXIS:
        return None
    for numerator, denominator, between in _quotients(graph, node):
        power = made_by(graph, numerator, "Exp")
        total = made_by(graph, denominator, "ReduceSum")
        if power is None or total is None or total.inputs[0] != numerator:
            continue
        axis = reduced_axis(graph, total)
        if axis is None:
            continue
        source, inner = power.inputs[0], {power.name, total.name, *between}
        away = made_by(graph, source, "Sub")
        most = None if away is None else made_by(graph, away.inputs[1], "ReduceMax")
        if away is None or most is None or most.inputs[0] != away.inputs[0]:
            pass  # nothing, or something else, is taken off: the softmax is the same
        elif reduced_axis(graph, most) == axis:
            source = away.inputs[0]
            inner |= {away.name, most.name}
        return WrittenOut(node.name, frozenset(inner), source, "Softmax", {"axis": axis})
    return None


def _quotients(graph: Graph, node: Node) -> list[tuple[str, str, tuple[str, ...]]]:
    """What a node divides by what, and the nodes between."""
    if node.op_type == "Div":
        return [(node.inputs[0], node.inputs[1], ())]
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for here, there in ((0, 1), (1, 0)) if node.op_type == "Mul" else ():
        inverse = made_by(graph, node.inputs[there], "Reciprocal")
        if inverse is not None:
            found.append((node.inputs[here], inverse.inputs[0], (inverse.name,)))
    return found
