"""What a metric says of both runs, sample by sample: what of a change is chance, and which samples
lose most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Judged, TaskMetric, is_ragged, separated
from qdebug.metrics.uncertainty import (
    Interval,
    Uncertainty,
    groups_of,
    of_groups,
    of_mean,
    of_share,
)
from qdebug.results.compare import SampleLoss
from qdebug.run.outputs import MetricEvaluator
from qdebug.types import Array

_GROUPS = 12
"""Of samples that are left out in turn, as where repairs are judged."""
FOR_INTERVAL = 1 / 20
"""Of a time limit, that the interval of FP32's metric may take, and as much its steps: the rest is
for the search."""
_MOST_WORST = 16
"""Samples that are named: as many as somebody looks at."""


@dataclass(frozen=True)
class JudgedPair:
    """What a metric says of the reference and of a candidate, on the same samples."""

    reference: Judged
    candidate: Judged

    def uncertainty(self, metric: TaskMetric) -> Uncertainty | None:
        """What may be chance; None of one sample, and where nothing says it."""
        found = self._uncertainty(metric)
        if found is None:
            return None
        least, most = metric.range
        before, after = self.reference.score, self.candidate.score
        found = replace(
            found,
            interval=_within(found.interval, after, least, most),
            change=_within(found.change, after - before, least - before, most - before),
        )
        is_truth = metric.takes_reference_as_truth
        return replace(found, p_value=None, test="") if is_truth else found

    def _uncertainty(self, metric: TaskMetric) -> Uncertainty | None:
        before, after = self.reference.per_sample, self.candidate.per_sample
        if before is not None and after is not None:
            if len(after) < 2 or not (np.isfinite(before).all() and np.isfinite(after).all()):
                return None
            is_share = metric.is_share and {*before, *after} <= {0.0, 1.0}
            return (of_share if is_share else of_mean)(before, after)
        change = self.candidate.score - self.reference.score
        sets = self.candidate.left_out, self.reference.left_out
        is_truth = metric.takes_reference_as_truth
        bounds = metric.bounds if np.isfinite(metric.range).all() else None
        return of_groups(self.candidate.score, change, *sets, bounds, is_truth=is_truth)

    @property
    def exchanged(self) -> tuple[int | None, int | None]:
        """Of a share: how many samples are right in the reference only, and in the candidate
        only."""
        before, after = self.reference.per_sample, self.candidate.per_sample
        if before is None or after is None:
            return None, None
        return int((before > after).sum()), int((before < after).sum())

    def worst(self, higher_is_better: bool | None) -> tuple[SampleLoss, ...]:
        """The samples that lose most, the worst first; see TaskResult."""
        before, after, sign = self.reference.loss, self.candidate.loss, 1.0
        if before is None or after is None:
            before, after = self.reference.per_sample, self.candidate.per_sample
            sign = -1.0 if higher_is_better else 1.0
        if before is None or after is None or higher_is_better is None:
            return ()
        lost = _lost(sign * before, sign * after)
        order = np.argsort(-lost, kind="stable")[:_MOST_WORST]
        return tuple(
            SampleLoss(int(row), float(before[row]), float(after[row]), float(lost[row]))
            for row in order
            if lost[row] > 0
        )


def _within(found: Interval, value: float, least: float, most: float) -> Interval:
    """An interval without what no score can be, which holds its value all the same."""
    return min(value, max(found[0], least)), max(value, min(found[1], most))


def _lost(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> Array:
    """By how much more is lost; what is infinite in both is none."""
    both = np.isinf(before) & np.isinf(after)
    return np.where(both, 0.0, np.where(both, 0.0, after) - np.where(both, 0.0, before))


def judged_pair(task: MetricEvaluator, outputs: Mapping[str, Array], samples: int) -> JudgedPair:
    """What a metric says of the reference and of a candidate's outputs, [samples, …].

    Raises:
        MetricError: the metric raised.
    """
    return JudgedPair(*_judged(task, (task.reference, outputs), samples))


def score_interval(
    task: MetricEvaluator, outputs: Mapping[str, Array], samples: int
) -> Interval | None:
    """The 95 % interval of the metric of some outputs, [samples, …]; None where nothing says it, or
    the metric raises."""
    try:
        (judged,) = _judged(task, (outputs,), samples)
    except MetricError:
        return None
    return interval_of(task.metric, judged)


def reference_interval(
    task: MetricEvaluator, samples: int, within_s: float = math.inf
) -> Interval | None:
    """That of FP32's own outputs; None also where FP32 is the truth: its score has no error, and
    where computing the metric without each group of samples takes longer than `within_s`."""
    metric = task.metric
    slow = metric.per_sample is None and _GROUPS * task.metric_s > within_s
    if metric.takes_reference_as_truth or slow:
        return None
    return score_interval(task, task.reference, samples)


def interval_of(metric: TaskMetric, judged: Judged) -> Interval | None:
    """The 95 % interval of a score; None where nothing says it."""
    uncertainty = JudgedPair(judged, judged).uncertainty(metric)
    return uncertainty.interval if uncertainty else None


def _judged(
    task: MetricEvaluator, each: Sequence[Mapping[str, Array]], samples: int
) -> list[Judged]:
    """What the metric says of several outputs, and without each group of samples."""
    metric, labels, kept = task.metric, task.labels, task.reference
    if is_ragged(*each) and not is_ragged(kept):
        kept = separated(kept)
    # Where every sample has its score, that says how they vary.
    sets = [] if metric.per_sample else groups_of(samples, _GROUPS)
    if any(len(array) != samples for arrays in (kept, *each) for array in arrays.values()):
        sets = []
    try:
        return [metric.judged(outputs, labels, kept, sets) for outputs in each]
    except MetricError:
        if not sets:
            raise
    # It cannot be computed of some of the samples, such as those without a box.
    return [metric.judged(outputs, labels, kept) for outputs in each]
