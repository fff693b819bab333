"""Notes on what runs in another precision than the plan requests without being visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from qdebug.formats.base import Format
from qdebug.formats.registry import BF16, CAST, FP16
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.plan.plan import BoundPlan
from qdebug.types import Precision
from qdebug.wording import counted

_MOST_OPERATORS = 5


def unconverted_notes(bound: BoundPlan, precisions: Mapping[str, Precision]) -> tuple[str, ...]:
    """Notes on FP16 and BF16 in the model itself, and on layers that custom operators keep in FP32.

    Args:
        bound: the plan.
        precisions: what each layer really runs in, by name.
    """
    graph = bound.layers.graph
    own = tuple(note for form in (BF16, FP16) for note in _stored(graph, form))
    if all(p is Precision.FP32 for p in bound.precisions.values()):
        return own
    for precision in CAST:
        stuck = [
            layer
            for layer in bound.layers
            if bound.precisions[layer.name] is precision
            and precisions[layer.name] is Precision.FP32
        ]
        own += tuple(_foreign(graph, stuck, precision.upper()))
    return own


def _stored(graph: Graph, form: Format) -> Iterable[str]:
    count = sum(
        any(graph.types.get(t) == form.onnx_type for t in node.outputs) for node in graph.nodes
    )
    if count:
        yield (
            f"{counted(count, 'node')} of the model {'is' if count == 1 else 'are'} in "
            f"{form.label} already, so the reference rounds there too, and only its sums are "
            f"exact. Give the FP32 model to see the full cost of {form.label}."
        )


def _foreign(graph: Graph, stuck: Sequence[Layer], precision: str) -> Iterable[str]:
    nodes = [graph.by_name[layer.name] for layer in stuck]
    operators = Counter(f"{n.domain}.{n.op_type}" for n in nodes if n.domain)
    behind = sum(not n.domain and any(t not in graph.types for t in n.reads) for n in nodes)
    if operators:
        stay, listed = _stay(operators.total(), precision), _listed(operators)
        yield f"{stay} in FP32: {listed}, which ONNX does not define."
    if behind:
        makers = Counter(f"{n.domain}.{n.op_type}" for n in graph.nodes if n.domain)
        yield (
            f"{_stay(behind, precision)} in FP32: the type of "
            f"{'its' if behind == 1 else 'their'} inputs is unknown, downstream of "
            f"{_listed(makers)}. Export with standard ONNX operators to run them in {precision}."
        )


def _listed(operators: Counter[str]) -> str:
    """The operators with their counts, such as "If (2), Loop"."""
    names = [n if count == 1 else f"{n} ({count})" for n, count in operators.most_common()]
    more = len(names) - _MOST_OPERATORS
    shown = ", ".join(names[:_MOST_OPERATORS])
    return f"{shown} and {more} more operators" if more > 0 else shown


def _stay(count: int, precision: str) -> str:
    stay = "stays" if count == 1 else "stay"
    return f"{counted(count, 'layer')} requested in {precision} {stay}"
