"""How fast a layer could be: the roofline model (Williams, Waterman, Patterson, 2009).

A layer takes at least the time that its products need at the GPU's peak, and that its bytes need at
the bandwidth of the memory; which of the two is longer bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdebug.engine_info.layers import EngineInfo, EngineLayer
from qdebug.engine_info.measurements import Device


@dataclass(frozen=True)
class Bound:
    """What bounds a product.

    Attributes:
        layer: its name.
        intensity: operations (two for each multiply-accumulate) for each byte moved.
        limit: what takes longer at the GPU's peak; None where the GPU is not known.
        bound_ms: the least time that it can take; None likewise.
        reached: that in its time, at most 1 unless a cache holds what it reads; None where one of
            the two is not known.
    """

    layer: str
    intensity: float
    limit: Literal["compute", "memory"] | None
    bound_ms: float | None
    reached: float | None


def bounds(info: EngineInfo) -> tuple[Bound, ...]:
    """The bound of every product whose work and bytes are known, in execution order."""
    found = []
    for layer in info.layers:
        moved = layer.bytes_moved
        if layer.macs and moved:
            found.append(_bound(layer, layer.macs, moved, info.device))
    return tuple(found)


def _bound(layer: EngineLayer, macs: float, moved: float, device: Device | None) -> Bound:
    intensity = 2 * macs / moved
    peak = device.peak_macs(layer.precision) if device else None
    if device is None or peak is None or device.bandwidth_gb_s is None:
        return Bound(layer.name, intensity, None, None, None)
    compute, memory = 1e3 * macs / peak, 1e3 * moved / (device.bandwidth_gb_s * 1e9)
    least = max(compute, memory)
    reached = least / layer.time_ms if layer.time_ms else None
    limit: Literal["compute", "memory"] = "compute" if compute >= memory else "memory"
    return Bound(layer.name, intensity, limit, least, reached)
