"""What must be pinned where remedies do not suffice; never more than pinning alone would take."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from qdebug.pipeline.bisect.command import search_from
from qdebug.pipeline.bisect.setup import Start, rated
from qdebug.pipeline.model_pair import CalibratedPlan
from qdebug.pipeline.repair.setup import Setup
from qdebug.remedies.quantized import Quantized
from qdebug.search.outcome import BisectResult
from qdebug.search.problem import Pins

_LEAST = 1.0
"""Seconds that a search gets, however late it is."""


def fewest_pins(setup: Setup, network: Quantized, ends_at: float) -> tuple[Quantized, BisectResult]:
    """The repaired network or the one before the repair, whichever reaches the target with the
    cheaper pins, with the search that found them.

    Remedies lower the noise of the outputs, but not that of every set of pinned layers, and the
    metric may depend on some of the noise only. Both are searched on the same samples; what
    suffices without remedies is tried with them, and only cheaper sets can take its place.

    Args:
        network: the repaired one.
        ends_at: on the clock of `time.monotonic`.

    Raises:
        QdebugError: a runtime or a metric that failed.
    """
    if network is setup.start:
        return network, _searched(setup, network, ends_at)
    now = time.monotonic()
    alone = _searched(setup, setup.start, now + (ends_at - now) / 2)
    found = _searched(setup, network, ends_at, [alone.search.pins] if alone.found else [])
    return min(((network, found), (setup.start, alone)), key=lambda pair: _rank(pair[1]))


def _rank(found: BisectResult) -> tuple[bool, bool, float]:
    return not found.passed, not found.found, found.search.cost


def _searched(
    setup: Setup, network: Quantized, ends_at: float, first: Sequence[Pins] = ()
) -> BisectResult:
    """What bisect's search finds; `first` are sets that it tries before."""
    assert setup.target is not None
    left = max(_LEAST, ends_at - time.monotonic()) if math.isfinite(ends_at) else None
    if setup.context.cluster is not None:
        setup.context.cluster.made(network.model)
    start = Start(
        context=setup.context,
        target=setup.target,
        model=network.model,
        planned=CalibratedPlan(network.bound, None, ()),
        searched=setup.choosing,
        held_out=setup.proving,
    )
    settings = replace(setup.search, time_limit=left)
    return search_from(settings, rated(settings, start), first=first)
