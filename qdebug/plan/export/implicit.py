"""The implicit way of TensorRT 10: the FP32 model, and what TensorRT is told of it. TensorRT 11 and
RTX know only the explicit way.

It is what `compare --typing implicit` builds, to the byte: the same model, whose nodes all have
names, and the same constraints, which the model carries too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from qdebug.model.graph import Graph
from qdebug.plan.constraints import (
    Constraints,
    constrained_graph,
    constraints_of,
    lost_in_constraints,
)
from qdebug.plan.export.source import Source
from qdebug.plan.parsed_network import builder_flags


@dataclass(frozen=True)
class Implicit:
    """A plan as constraints.

    Attributes:
        model: the FP32 model that they are of.
        notes: what of the plan is not in them.
    """

    model: bytes
    asked: Constraints
    notes: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of trt.BuilderFlag."""
        return tuple(builder_flags(self.asked))

    @property
    def int8(self) -> bool:
        """Whether any layer is to run in INT8."""
        return "INT8" in self.flags


def implicit_form(source: Source) -> Implicit:
    """The constraints of a plan.

    Raises:
        PlanError: as `constraints_of`.
    """
    bound = source.bound
    model = constrained_graph(bound).proto.SerializeToString(deterministic=True)
    return Implicit(model, constraints_of(bound), lost_in_constraints(bound))


def dynamic_inputs(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Inputs with dynamic axes -> their shape with 1 for each of them."""
    return {
        spec.name: tuple(d if isinstance(d, int) else 1 for d in spec.shape)
        for spec in graph.inputs
        if not all(isinstance(d, int) for d in spec.shape)
    }


def asked_literal(asked: Constraints) -> str:
    """The constraints as Python: a `SimpleNamespace` of the same fields, precisions as words."""
    lines = []
    for field in fields(asked):
        if field.name == "by_cache":  # how, not what
            continue
        value = getattr(asked, field.name)
        if isinstance(value, Mapping):
            text = _block("{", (f"{name!r}: {_plain(v)!r}" for name, v in value.items()), "}")
        elif isinstance(value, tuple):
            text = _block("[", (repr(name) for name in value), "]")
        else:
            text = repr(_plain(value))
        lines.append(f"    {field.name}={text},\n")
    return f"SimpleNamespace(\n{''.join(lines)})"


def _plain(value: object) -> object:
    return str(value) if isinstance(value, str) else value


def _block(opening: str, entries: Iterable[str], closing: str) -> str:
    lines = "".join(f"        {entry},\n" for entry in entries)
    return f"{opening}\n{lines}    {closing}" if lines else opening + closing
