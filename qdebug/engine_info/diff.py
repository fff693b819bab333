"""Two engines of one model, node by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from qdebug.engine_info.layers import EngineInfo
from qdebug.errors import UsageError
from qdebug.result import Json, MaybeText
from qdebug.wording import option

_TIME_CHANGE = 0.1
"""A layer's time is called changed from 10 % on."""


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
        changed: any of "precision", "fusion", "tactic", "time", "only-before", "only-after".
        before: None when no layer of the first engine names the node, and `after` likewise.
    """

    node: str
    changed: tuple[str, ...]
    before: Side | None
    after: Side | None


@dataclass(frozen=True)
class Diff:
    """What changed, in the first engine's order, and how many nodes the two have together."""

    changes: tuple[Change, ...]
    compared_nodes: int


def diff(before: EngineInfo, after: EngineInfo) -> Diff:
    """Compare two engines by the ONNX nodes that their layers name.

    Q/DQ, casts and constants are left out: they come and go with the precision.

    Raises:
        UsageError: they have hardly a node in common, so they are of different models.
    """
    first, second = _sides(before), _sides(after)
    common = first.keys() & second.keys()
    fewer = min(len(first), len(second))
    if not common or len(common) < fewer / 2:
        raise UsageError(
            f"{option('diff')}: only {len(common)} of {fewer} ONNX nodes are in both files",
            "Give two engines of the same model, with --profilingVerbosity=detailed.",
            code="QD-USAGE-DIFF-OTHER-MODEL",
        )
    changes = []
    for node in [*first, *(n for n in second if n not in first)]:
        one, other = first.get(node), second.get(node)
        kinds = _kinds(one, other, common)
        if kinds:
            changes.append(Change(node, kinds, one, other))
    return Diff(tuple(changes), len(first.keys() | second.keys()))


def _sides(info: EngineInfo) -> Mapping[str, Side]:
    sides = {}
    for node in info.of_node:
        layer = info.layer_of(node)
        if layer is not None and info.computes(node):
            others = tuple(n for n in layer.onnx_nodes if n != node and info.computes(n))
            sides[node] = Side(layer.name, layer.precision, others, layer.tactic, layer.time_ms)
    return sides


def _kinds(one: Side | None, other: Side | None, common: set[str]) -> tuple[str, ...]:
    if one is None:
        return ("only-after",)
    if other is None:
        return ("only-before",)
    kinds = []
    if one.precision != other.precision:
        kinds.append("precision")
    if common.intersection(one.companions) != common.intersection(other.companions):
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
