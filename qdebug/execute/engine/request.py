"""What a builder is given: a candidate in one of the two lowerings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdebug.errors import UsageError
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.plan.constraints import constrained_graph, lost_in_constraints
from qdebug.plan.lower import lower
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import BoundPlan, bind_plan
from qdebug.types import Precision
from qdebug.wording import option

STRONG = "strong"


@dataclass(frozen=True)
class BuildRequest:
    """A candidate as the builder gets it.

    Attributes:
        graph: has every tensor of the reference, under its name.
        precisions: what it asks for, by layer name.
        notes: what of the plan it cannot express.
    """

    graph: Graph
    precisions: Mapping[str, Precision]
    notes: tuple[str, ...] = ()


def build_request(typing: str, pair: ModelPair) -> BuildRequest:
    """The candidate of `pair`, for an engine.

    Raises:
        UsageError: implicit quantization of a model that carries Q/DQ.
    """
    if typing == STRONG:
        return BuildRequest(pair.candidate, pair.precisions)
    check_model(typing, pair.model)
    assert pair.plan is not None  # only a model that carries Q/DQ has none
    bound = bind_plan(pair.plan, pair.model, pair.layers)
    return BuildRequest(planned_graph(typing, bound), bound.precisions, lost_in_constraints(bound))


def planned_graph(typing: str, bound: BoundPlan) -> Graph:
    """A plan, lowered for an engine.

    Raises:
        PlanError: an INT8 layer reads a tensor without an amax.
    """
    if typing == STRONG:
        return lower(bound).graph
    return constrained_graph(bound, by_cache=typing == "implicit-cache")


def check_model(typing: str, model: Model) -> None:
    """Refuse a model that cannot be lowered in that way.

    Raises:
        UsageError: implicit quantization of a model that carries Q/DQ.
    """
    if typing != STRONG and model.quantized:
        raise UsageError(
            f"{option('typing', typing)}: {model.file.path} has Q/DQ nodes, which set "
            "its precisions",
            f"Give the FP32 model that it was made from, or drop {option('typing')}.",
            code="QD-USAGE-TYPING-QUANTIZED",
        )
