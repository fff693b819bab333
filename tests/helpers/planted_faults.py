"""Every fault that can be planted into a network, by kind."""

from __future__ import annotations

from collections.abc import Iterator

import planted_channels as channels
import planted_nodes as nodes
import planted_others as others
import planted_ranges as ranges
from planted_network import Fault, Network

OF_PLANS = (
    ranges.wrong_ranges,
    ranges.wrong_calibration,
    ranges.stale_caches,
    channels.unequal_channels,
    channels.one_scale,
    nodes.overflowing_norms,
    nodes.misplaced_pairs,
    nodes.close_scores,
)
"""Those of qdebug's own plans."""
OF_OTHERS = (
    others.saturated_biases,
    others.invalid_scales,
    others.wrong_scales,
    others.mixed_outputs,
    others.mixed_concats,
    others.close_places,
)
"""Those of models that another tool has quantized, and of a TopK."""


def all_faults(network: Network) -> Iterator[Fault]:
    """Every fault that can be planted into `network`."""
    for plant in (*OF_PLANS, *OF_OTHERS):
        yield from plant(network)
