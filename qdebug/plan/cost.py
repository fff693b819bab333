"""What it costs to keep a layer in higher precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdebug.formats.registry import BITS, FORMAT_OF, WEIGHT_ONLY
from qdebug.network.macs import Work
from qdebug.types import Precision

_CAPABILITY = 80
"""Costs are those of an NVIDIA A100, where nothing was measured."""


@dataclass(frozen=True)
class Costs:
    """What layers cost in each precision, in one unit.

    Attributes:
        unit: "INT8 MACs" or "ms".
        by_layer: layer -> precision -> cost of one execution.
    """

    unit: str
    by_layer: Mapping[str, Mapping[Precision, float]]

    def total(self, precisions: Mapping[str, Precision]) -> float:
        """The cost of the network with its layers in these precisions."""
        return sum(self.by_layer[name][p] for name, p in precisions.items())

    def raising(self, name: str, start: Precision, end: Precision) -> float:
        """What it costs to run layer `name` in `end` rather than `start`."""
        return self.by_layer[name][end] - self.by_layer[name][start]


def mac_costs(work: Mapping[str, Work]) -> Costs:
    """Multiply-accumulates weighted by precision: cost = (macs + elements) · time of one.

    An element written counts as one MAC, so that layers without any are cheap, but not free. Of
    weights alone in few bits it is the bytes that are read which cost: a product with few rows
    waits for its weight.
    """
    times = {p: form.mac_cost_on(_CAPABILITY) for p, form in FORMAT_OF.items()}
    for precision in WEIGHT_ONLY:
        times[precision] *= BITS[precision] / FORMAT_OF[precision].bits
    by_layer = {
        name: {p: (w.macs + w.elements) * time for p, time in times.items()}
        for name, w in work.items()
    }
    return Costs("INT8 MACs", by_layer)


def latency_costs(
    measured_ms: Mapping[str, float], measured_in: Mapping[str, Precision], work: Costs
) -> Costs:
    """Measured latencies, each scaled to other precisions by the ratio that `work` gives.

    A layer without a latency was fused into another, or is free: it costs nothing.
    """
    by_layer = {}
    for name, costs in work.by_layer.items():
        own = costs[measured_in[name]]
        ms = measured_ms.get(name, 0.0)
        by_layer[name] = {p: ms * costs[p] / own if own else ms for p in FORMAT_OF}
    return Costs("ms", by_layer)
