"""Two engines of one model: node by node, or layer by layer, and in total."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Annotated

from qdebug.engine_info.layers import EngineInfo, EngineLayer, Role
from qdebug.engine_info.tensors import known_sum
from qdebug.result import Json, MaybeText

_TIME_CHANGE = 0.1
"""A layer's time is called changed from 10 % on."""
_MOST = 0.5
"""The share of the nodes, or layers, that must be in both for them to be compared one by one."""


class MatchedBy(StrEnum):
    """How it is known what in one engine is what in the other."""

    NAMES = "names"
    """By the ONNX nodes that the layers name."""
    STRUCTURE = "structure"
    """By their order, work and shapes: exporters number nodes anew."""
    TOTALS = "totals"
    """It is not: only totals are compared."""


@dataclass(frozen=True)
class Side:
    """A node in one engine.

    Attributes:
        layer: the layer that does its work; `precision`, `tactic` and `time_ms` are that layer's.
        companions: the nodes that share its kernel.
    """

    layer: str
    precision: MaybeText
    companions: Annotated[tuple[str, ...], Json(key="with")]
    tactic: MaybeText
    time_ms: float | None


@dataclass(frozen=True)
class Change:
    """A node that the two engines compute differently.

    Attributes:
        node: its name in the first engine, where that has it.
        changed: any of "precision", "fusion", "tactic", "time", "only-before", "only-after".
        before: None when no layer of the first engine names the node, and `after` likewise.
    """

    node: str
    changed: tuple[str, ...]
    before: Side | None
    after: Side | None


@dataclass(frozen=True)
class WorkChange:
    """Layers of one kind in the two engines.

    Attributes:
        role: what they are for, as of `EngineLayer`.
        layers_before, layers_after: how many are executed.
        ms_before, ms_after: their time; None where it was not measured.
    """

    role: Role
    layers_before: int
    layers_after: int
    ms_before: float | None
    ms_after: float | None


@dataclass(frozen=True)
class Diff:
    """What changed, in the first engine's order, and how many nodes the two have together.

    Attributes:
        changes: of what is in both, or in one alone; none where only totals are compared.
        matched_by: how the two were matched.
        work: products, other work and reformats in total.
    """

    changes: tuple[Change, ...]
    compared_nodes: int
    matched_by: MatchedBy = MatchedBy.NAMES
    work: tuple[WorkChange, ...] = ()


def diff(before: EngineInfo, after: EngineInfo) -> Diff:
    """Compare two engines by the ONNX nodes that their layers name; where hardly any is in both, or
    one name stands for different work, by their structure; else in total.

    Q/DQ, casts and constants are left out: they come and go with the precision.
    """
    work = _work(before, after)
    first, second = _sides(before), _sides(after)
    if _same_names(before, after, first, second):
        common = first.keys() & second.keys()
        nodes = {**first, **second}
        listed = (_change(n, first.get(n), second.get(n), common) for n in nodes)
        return Diff(tuple(filter(None, listed)), len(nodes), MatchedBy.NAMES, work)
    one, other = (
        [x for x in info.layers if x.role in (Role.MATRIX, Role.OTHER, Role.OPAQUE)]
        for info in (before, after)
    )
    likeness = [*map(_likeness, one)], [*map(_likeness, other)]
    blocks = SequenceMatcher(None, *likeness, autojunk=False).get_matching_blocks()
    pairs = [(one[b.a + k], other[b.b + k]) for b in blocks for k in range(b.size)]
    if not pairs or len(pairs) < min(len(one), len(other)) * _MOST:
        return Diff((), 0, MatchedBy.TOTALS, work)
    listed = (
        _change(
            next(iter(x.onnx_nodes), x.name),
            _side(x, x.onnx_nodes[1:]),
            _side(y, y.onnx_nodes[1:]),
            (),
        )
        for x, y in pairs
    )
    return Diff(tuple(filter(None, listed)), len(pairs), MatchedBy.STRUCTURE, work)


def _work(before: EngineInfo, after: EngineInfo) -> tuple[WorkChange, ...]:
    found = []
    for role in (Role.MATRIX, Role.OTHER, Role.REFORMAT, Role.OPAQUE):
        sides = [
            (info, [x for x in info.of_role(role) if not x.takes_no_time])
            for info in (before, after)
        ]
        counts = [len(layers) for _, layers in sides]
        measured = [
            0.0 if not layers and info.measured else known_sum(x.time_ms for x in layers)
            for info, layers in sides
        ]
        if any(counts):
            found.append(WorkChange(role, *counts, *measured))
    return tuple(found)


def _same_names(
    before: EngineInfo, after: EngineInfo, first: Mapping[str, Side], second: Mapping[str, Side]
) -> bool:
    """Whether most nodes of the smaller engine are in the other, with results of the same size
    where both tell: "Conv_9" may be any convolution once nodes are numbered anew."""
    common = first.keys() & second.keys()
    if not common or len(common) < min(len(first), len(second)) * _MOST:
        return False
    shapes = [[_sample(info.layer_of(node)) for info in (before, after)] for node in common]
    told = [a == b for a, b in shapes if a and b]
    return sum(told) >= len(told) * _MOST


def _sample(layer: EngineLayer | None) -> tuple[int, ...]:
    """The shape of a layer's result without its batch and axes of one element."""
    dims = layer.outputs[0].dims if layer and layer.outputs else None
    return tuple(d for d in (dims or ())[1:] if d != 1)


def _likeness(layer: EngineLayer) -> tuple[object, ...]:
    dims = layer.inputs[0].dims if layer.inputs else None
    batch = dims[0] if dims and dims[0] > 0 else 1
    return (layer.role, _sample(layer), layer.macs and round(layer.macs / batch))


def _sides(info: EngineInfo) -> Mapping[str, Side]:
    computing = {node for node in info.of_node if info.computes(node)}
    main = ((node, info.layer_of(node)) for node in info.of_node if node in computing)
    return {
        node: _side(layer, tuple(n for n in layer.onnx_nodes if n != node and n in computing))
        for node, layer in main
        if layer
    }


def _side(layer: EngineLayer, companions: tuple[str, ...]) -> Side:
    return Side(layer.name, layer.precision, companions, layer.tactic, layer.time_ms)


def _change(
    node: str, one: Side | None, other: Side | None, common: Collection[str]
) -> Change | None:
    """How a node's work differs; None where it does not."""
    if one is None or other is None:
        return Change(node, ("only-after" if one is None else "only-before",), one, other)
    fused = [{*side.companions} & {*common} for side in (one, other)]
    kinds = {"precision": one.precision != other.precision, "fusion": fused[0] != fused[1]}
    # Another precision is another kernel: that goes without saying.
    named = bool(one.tactic and other.tactic) and not any(kinds.values())
    kinds["tactic"] = named and one.tactic != other.tactic
    if one.time_ms is not None and other.time_ms is not None:
        faster, slower = sorted((one.time_ms, other.time_ms))
        kinds["time"] = slower > faster * (1 + _TIME_CHANGE)
    changed = tuple(kind for kind, holds in kinds.items() if holds)
    return Change(node, changed, one, other) if changed else None
