"""The cheap part of `qdebug check`, which the commands that measure anything begin with."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

from qdebug.analyse.tensor_errors import affordable_samples
from qdebug.commands.check.judging import judged_by
from qdebug.commands.check.samples import shared_samples
from qdebug.commands.check.trials import try_variants
from qdebug.errors import QdebugError
from qdebug.execute.context import Context
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.macs import macs_per_sample
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import finely, same_samples, spread, whole
from qdebug.results.check import Finding
from qdebug.run.timelimit import OutOfTimeError

_SAMPLES, _LEAST = 32, 8
"""What FP32 runs on: as in check, of a large model fewer; on less nothing can be told."""
_HASHED = 256
"""Samples of each set that are looked at for overlap: they are read once more for it."""
_SHARE = 1 / 20
"""Of the time that is left, for what is no part of the answer."""
_LOG = logging.getLogger(__name__)


def suspicions(
    context: Context,
    graph: Graph,
    compared: Samples,
    metric: TaskMetric | None = None,
    calibration: Samples | None = None,
    *,
    says_chance: bool = False,
    ends_at: float = math.inf,
) -> tuple[str, ...]:
    """A note, where something is wrong with the samples before anything is measured: labels that
    are no class or off by one, FP32 at chance level and on which other values it is not, samples
    that calibrate and are compared. What cannot be looked at is left out: whatever keeps it from
    being read or run will be said by what needs it.

    Args:
        graph: in FP32.
        metric: on that model; without one FP32 is not run.
        calibration: None where `compared` calibrate, or nothing does. Where they are the same
            samples, one by one, the calibration says it.
        says_chance: that FP32 is at chance level is said where no other values mend it, too:
            most commands say that themselves, of all samples.
        ends_at: when the time of the command is over, on the clock of `time.monotonic`. Where a
            look takes more than a small part of what is left, it is given up.
    """
    found: list[Finding] = []
    now = time.monotonic()
    context = context.until(now + _SHARE * (ends_at - now))
    try:
        if calibration is not None and not same_samples(calibration, compared):
            shared = shared_samples(compared, calibration, _HASHED)
            found += [shared] if shared else []
        if metric is not None and metric.needs_labels and _is_between_0_and_1(metric):
            found += _of_metric(context, graph, compared, metric)
    except (QdebugError, OutOfTimeError) as error:
        _LOG.debug("the samples cannot be looked at: %s", error)
    unsaid = set() if says_chance else {"chance-level"}
    told = [
        x.message.removesuffix(".") for x in found if x.severity != "note" and x.kind not in unsaid
    ]
    if not told:
        return ()
    return (f"Look at the samples first (qdebug check says more): {'; '.join(told)}.",)


def _is_between_0_and_1(metric: TaskMetric) -> bool:
    """Whether FP32 should come near to 1."""
    return metric.is_share or metric.takes == "boxes"


def _of_metric(
    context: Context, graph: Graph, compared: Samples, metric: TaskMetric
) -> tuple[Finding, ...]:
    subset = whole(finely(compared, _SAMPLES))
    count = min(_SAMPLES, 2 * affordable_samples(macs_per_sample(find_layers(graph), subset)))
    few = spread(subset, count)
    if few.count < _LEAST:
        return ()
    quiet = replace(context, progress=lambda _: None)
    return try_variants(quiet, graph, few, judged_by(metric), always=False).findings
