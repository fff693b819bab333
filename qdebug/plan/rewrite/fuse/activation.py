"""An activation function that is written out: GELU, in both forms, Softplus, Mish.

Exporters write them in many ways. So a function is recognized by its values: operators of one
tensor and of numbers, evaluated in float64 at many points, that give the values of an operator
compute it. As one operator it is rounded once, and what overflows on the way does not show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.fuse.matching import WrittenOut, number

Float64 = npt.NDArray[np.float64]

_MOST = 12
"""Operators in which a function is written out, at most."""
_POINTS = np.concatenate([np.linspace(-12, 12, 961), np.geomspace(1e-4, 12, 97)])
_SAME = 1e-5
"""By what share of max(1, |x|) a value may differ: constants are often given in six digits."""

_erf = np.vectorize(math.erf, otypes=[np.float64])
_OPERATORS: Mapping[str, Callable[..., Float64]] = {
    "Add": np.add,
    "Div": np.divide,
    "Erf": _erf,
    "Exp": np.exp,
    "Log": np.log,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}
_BENT = frozenset({"Erf", "Exp", "Log", "Sigmoid", "Softplus", "Tanh"})
"""Without one of these it is no such function."""

_TANH_FACTOR = np.sqrt(2 / np.pi)
_KNOWN: tuple[tuple[str, Mapping[str, Any], int, Callable[[Float64], Float64]], ...] = (
    ("Gelu", {}, 20, lambda x: x * 0.5 * (1 + _erf(x / np.sqrt(2)))),
    (
        "Gelu",
        {"approximate": "tanh"},
        20,
        lambda x: x * 0.5 * (1 + np.tanh(_TANH_FACTOR * (x + 0.044715 * x**3))),
    ),
    ("Mish", {}, 18, lambda x: x * np.tanh(np.logaddexp(0, x))),
    ("Softplus", {}, 1, lambda x: np.logaddexp(0, x)),
)
"""Operator, attributes, first opset, and values."""


def activation(graph: Graph, node: Node, places: Mapping[str, int]) -> WrittenOut | None:
    """The activation that a node completes; `places` are the nodes' in the order of execution."""
    if node.op_type not in ("Mul", "Div", "Log"):
        return None
    cone = {node.name: node}
    while len(cone) <= _MOST:
        open_ends = _open_ends(graph, cone)
        if len(open_ends) == 1 and any(n.op_type in _BENT for n in cone.values()):
            nodes = sorted(cone.values(), key=lambda n: places[n.name])
            found = _recognized(graph, nodes, open_ends[0])
            if found is not None:
                return found
        makers = [m for t in open_ends if (m := graph.producers.get(t)) is not None]
        latest = max(makers, key=lambda n: places[n.name], default=None)
        if latest is None or not _elementwise(graph, latest):
            return None
        cone[latest.name] = latest
    return None


def _open_ends(graph: Graph, cone: Mapping[str, Node]) -> list[str]:
    """What the nodes read that none of them computes, constants left out."""
    own = {n.outputs[0] for n in cone.values()}
    reads = dict.fromkeys(t for n in cone.values() for t in n.reads)
    return [t for t in reads if t not in own and graph.constant(t) is None]


def _elementwise(graph: Graph, node: Node) -> bool:
    constants = [t for t in node.reads if graph.constant(t) is not None]
    numbers = all(number(graph, t) is not None for t in constants)
    return node.op_type in _OPERATORS and not node.domain and numbers


def _recognized(graph: Graph, nodes: Sequence[Node], source: str) -> WrittenOut | None:
    """The operator whose values nodes, in execution order, give, if there is one."""
    shapes, last = graph.shapes, nodes[-1]
    if not _elementwise(graph, last) or len(shapes.get(source) or ()) != len(
        shapes.get(last.outputs[0]) or ()
    ):
        return None
    values = _values(graph, nodes, source)
    for op_type, attributes, opset, function in _KNOWN:
        apart = np.abs(values - function(_POINTS)) / np.maximum(1, np.abs(_POINTS))
        if graph.opset >= opset and np.all(apart < _SAME):
            inner = frozenset(n.name for n in nodes[:-1])
            return WrittenOut(last.name, inner, source, op_type, attributes) if inner else None
    return None


def _values(graph: Graph, nodes: Sequence[Node], source: str) -> Float64:
    known: dict[str, Any] = {source: _POINTS}
    with np.errstate(all="ignore"):
        for node in nodes:
            reads = [known[t] if t in known else number(graph, t) for t in node.reads]
            known[node.outputs[0]] = _OPERATORS[node.op_type](*reads)
    return np.asarray(known[nodes[-1].outputs[0]], np.float64)
