"""Two engines of one model: node by node, or layer by layer, and in total."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
        nodes = [*first, *(n for n in second if n not in first)]
        listed = [(n, _kinds(first.get(n), second.get(n), common)) for n in nodes]
        changes = [Change(n, k, first.get(n), second.get(n)) for n, k in listed if k]
        return Diff(tuple(changes), len(nodes), MatchedBy.NAMES, work)
    pairs = _alike(before, after)
    fewer = min(len(_computing(before)), len(_computing(after)))
    if not pairs or len(pairs) < fewer * _MOST:
        return Diff((), 0, MatchedBy.TOTALS, work)
    return Diff(
        tuple(change for pair in pairs for change in _changed(*pair)),
        len(pairs),
        MatchedBy.STRUCTURE,
        work,
    )


def _work(before: EngineInfo, after: EngineInfo) -> tuple[WorkChange, ...]:
    found = []
    for role in (Role.MATRIX, Role.OTHER, Role.REFORMAT, Role.OPAQUE):
        one, other = (
            [x for x in info.layers if x.role is role and not x.takes_no_time]
            for info in (before, after)
        )
        if one or other:
            ms = (known_sum(x.time_ms for x in layers) for layers in (one, other))
            measured = [
                0.0 if value is None and not layers and info.measured else value
                for value, layers, info in zip(ms, (one, other), (before, after), strict=True)
            ]
            found.append(WorkChange(role, len(one), len(other), *measured))
    return tuple(found)


def _same_names(
    before: EngineInfo, after: EngineInfo, first: Mapping[str, Side], second: Mapping[str, Side]
) -> bool:
    """Whether most nodes of the smaller engine are in the other, with results of the same size
    where both tell: "Conv_9" may be any convolution once nodes are numbered anew."""
    common = first.keys() & second.keys()
    if not common or len(common) < min(len(first), len(second)) * _MOST:
        return False
    shapes = [(_shape(before, node), _shape(after, node)) for node in common]
    told = [a == b for a, b in shapes if a and b]
    return sum(told) >= len(told) * _MOST


def _shape(info: EngineInfo, node: str) -> tuple[int, ...]:
    layer = info.layer_of(node)
    return _sample(layer) if layer else ()


def _sample(layer: EngineLayer) -> tuple[int, ...]:
    """The shape of a layer's result without its batch and axes of one element."""
    dims = layer.outputs[0].dims if layer.outputs else None
    return tuple(d for d in (dims or ())[1:] if d != 1)


def _computing(info: EngineInfo) -> list[EngineLayer]:
    return [x for x in info.layers if x.role in (Role.MATRIX, Role.OTHER, Role.OPAQUE)]


def _alike(before: EngineInfo, after: EngineInfo) -> list[tuple[EngineLayer, EngineLayer]]:
    """Layers of the same work in the same order."""
    one, other = _computing(before), _computing(after)
    found = SequenceMatcher(None, [*map(_likeness, one)], [*map(_likeness, other)], autojunk=False)
    return [
        (one[block.a + k], other[block.b + k])
        for block in found.get_matching_blocks()
        for k in range(block.size)
    ]


def _likeness(layer: EngineLayer) -> tuple[object, ...]:
    dims = layer.inputs[0].dims if layer.inputs else None
    batch = dims[0] if dims and dims[0] > 0 else 1
    return (layer.role, _sample(layer), layer.macs and round(layer.macs / batch))


def _changed(one: EngineLayer, other: EngineLayer) -> Sequence[Change]:
    before, after = (
        Side(x.name, x.precision, x.onnx_nodes[1:], x.tactic, x.time_ms) for x in (one, other)
    )
    kinds = _kinds(before, after, frozenset())
    name = one.onnx_nodes[0] if one.onnx_nodes else one.name
    return (Change(name, kinds, before, after),) if kinds else ()


def _sides(info: EngineInfo) -> Mapping[str, Side]:
    sides = {}
    for node in info.of_node:
        layer = info.layer_of(node)
        if layer is not None and info.computes(node):
            others = tuple(n for n in layer.onnx_nodes if n != node and info.computes(n))
            sides[node] = Side(layer.name, layer.precision, others, layer.tactic, layer.time_ms)
    return sides


def _kinds(one: Side | None, other: Side | None, common: Collection[str]) -> tuple[str, ...]:
    if one is None:
        return ("only-after",)
    if other is None:
        return ("only-before",)
    kinds = []
    if one.precision != other.precision:
        kinds.append("precision")
    if {*one.companions} & {*common} != {*other.companions} & {*common}:
        kinds.append("fusion")
    tactics = one.tactic, other.tactic
    # Another precision is another kernel: that goes without saying.
    if not kinds and all(tactics) and tactics[0] != tactics[1]:
        kinds.append("tactic")
    times = one.time_ms, other.time_ms
    if times[0] is not None and times[1] is not None:
        slower, faster = max(times[0], times[1]), min(times[0], times[1])
        if slower > faster * (1 + _TIME_CHANGE):
            kinds.append("time")
    return tuple(kinds)
