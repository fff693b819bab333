"""Where an engine's time and memory go: its layers by precision, by type and by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qdebug.engine_info.layers import EngineInfo, EngineLayer
from qdebug.result import MaybeText


@dataclass(frozen=True)
class Group:
    """Layers that have something in common.

    Attributes:
        name: the precision, type or kernel; "" where the file does not say.
        layers: how many there are.
        ms: their time; None when none was measured.
        share: of the time of all layers; None likewise.
        macs: multiply-accumulates of their products, of one execution; None where none is known.
        weight_bytes, activation_bytes: what they hold, and what those that are executed read and
            write; None where no size is known.
    """

    name: MaybeText
    layers: int
    ms: float | None
    share: float | None
    macs: float | None
    weight_bytes: float | None
    activation_bytes: float | None


def by_precision(info: EngineInfo) -> tuple[Group, ...]:
    """All layers that work, by the type that they compute in."""
    return _grouped(info, lambda layer: layer.precision)


def by_type(info: EngineInfo) -> tuple[Group, ...]:
    """All layers that work, by their type in TensorRT's words."""
    return _grouped(info, lambda layer: layer.layer_type)


def by_tactic(info: EngineInfo) -> tuple[Group, ...]:
    """The layers whose kernel is named, by the kernel."""
    groups = _grouped(info, lambda layer: "" if layer.tactic.startswith("0x") else layer.tactic)
    return tuple(group for group in groups if group.name)


def _grouped(info: EngineInfo, key: Callable[[EngineLayer], str]) -> tuple[Group, ...]:
    """Most time first, or else most layers."""
    found: dict[str, list[EngineLayer]] = {}
    for layer in info.working:
        found.setdefault(key(layer), []).append(layer)
    total = known_sum(layer.time_ms for layer in info.working)
    groups = [_group(name, layers, total) for name, layers in found.items()]
    return tuple(sorted(groups, key=lambda g: (-(g.ms or 0.0), -g.layers)))


def _group(name: str, layers: list[EngineLayer], total: float | None) -> Group:
    ms = known_sum(layer.time_ms for layer in layers)
    return Group(
        name=name,
        layers=len(layers),
        ms=ms,
        share=None if ms is None or not total else ms / total,
        macs=known_sum(layer.macs for layer in layers),
        weight_bytes=known_sum(layer.weight_bytes for layer in layers),
        activation_bytes=known_sum(
            layer.activation_bytes for layer in layers if not layer.takes_no_time
        ),
    )


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of the values that are known; None where none is."""
    found = [v for v in values if v is not None]
    return sum(found) if found else None
