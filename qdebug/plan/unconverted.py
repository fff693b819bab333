"""Notes on what runs in another precision than the plan requests without being visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx

from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.plan.plan import BoundPlan
from qdebug.types import Precision
from qdebug.wording import counted

_MOST_OPERATORS = 5


def unconverted_notes(bound: BoundPlan, precisions: Mapping[str, Precision]) -> tuple[str, ...]:
    """Notes on FP16 in the model itself, and on layers that custom operators keep in FP32.

    Args:
        bound: the plan.
        precisions: what each layer really runs in, by name.
    """
    graph = bound.layers.graph
    own = tuple(_in_half(graph))
    if all(p is Precision.FP32 for p in bound.precisions.values()):
        return own
    stuck = [
        layer
        for layer in bound.layers
        if bound.precisions[layer.name] is Precision.FP16
        and precisions[layer.name] is Precision.FP32
    ]
    return (*own, *_foreign(graph, stuck))


def _in_half(graph: Graph) -> Iterable[str]:
    count = sum(
        any(graph.types.get(t) == onnx.TensorProto.FLOAT16 for t in node.outputs)
        for node in graph.nodes
    )
    if count:
        yield (
            f"{counted(count, 'node')} of the model {'is' if count == 1 else 'are'} in FP16 "
            "already, so the reference rounds there too, and only its sums are exact. Give the "
            "FP32 model to see the full cost of FP16."
        )


def _foreign(graph: Graph, stuck: Sequence[Layer]) -> Iterable[str]:
    nodes = [graph.by_name[layer.name] for layer in stuck]
    operators = Counter(f"{n.domain}.{n.op_type}" for n in nodes if n.domain)
    behind = sum(not n.domain and any(t not in graph.types for t in n.reads) for n in nodes)
    if operators:
        listed = _listed(operators)
        yield f"{_stay(operators.total())} in FP32: {listed}, which ONNX does not define."
    if behind:
        makers = Counter(f"{n.domain}.{n.op_type}" for n in graph.nodes if n.domain)
        yield (
            f"{_stay(behind)} in FP32: the type of "
            f"{'its' if behind == 1 else 'their'} inputs is unknown, downstream of "
            f"{_listed(makers)}. Export with standard ONNX operators to run them in FP16."
        )


def _listed(operators: Counter[str]) -> str:
    """The operators with their counts, such as "If (2), Loop"."""
    names = [n if count == 1 else f"{n} ({count})" for n, count in operators.most_common()]
    more = len(names) - _MOST_OPERATORS
    shown = ", ".join(names[:_MOST_OPERATORS])
    return f"{shown} and {more} more operators" if more > 0 else shown


def _stay(count: int) -> str:
    return f"{counted(count, 'layer')} requested in FP16 {'stays' if count == 1 else 'stay'}"
