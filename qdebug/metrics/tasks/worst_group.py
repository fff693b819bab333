"""A metric by the group of samples that loses most: for a target that must hold for every group."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Outputs, TaskMetric, rows_of
from qdebug.wording import counted, option

_AFTER = " after the worst "


def metric_of(name: str) -> str:
    """The name of the metric by which a group is the worst, of one of a worst group: short, where
    the group is named beside its figures. Any other name as it is."""
    return name.partition(_AFTER)[0]


def of_worst_group(metric: TaskMetric, group: str) -> TaskMetric:
    """`metric` as if all samples lost as much as those of the worst group do: its value in FP32 of
    all samples, plus the worst change of a group. Of FP32 it is the metric itself, so that a drop
    that is allowed is allowed to each group.

    Args:
        group: the array of the data that says which group a sample is of.

    Raises:
        MetricError: the metric does not say which way is better. The metric itself raises one where
            it cannot be computed of a group.
    """
    if not metric.is_declared:
        raise MetricError(
            f"{option('worst_group')}: {metric.name} does not say which way is better, so that no "
            "group is the worst",
            "Declare it: `score.higher_is_better = True` after the function.",
            code="QD-METRIC-DIRECTION",
        )
    return replace(
        metric,
        name=f"{metric.name}{_AFTER}{group}'s loss",
        compute=partial(_worst, metric, group),
        by_group=partial(_by_group, metric, group),
        settled=partial(_settled, metric, group),
        per_sample=None,
        judge=None,
        is_share=False,
        takes_ragged=True,
        bounds=_bounds(metric),
    )


def _bounds(metric: TaskMetric) -> tuple[float, float]:
    """On the better side no score is beyond a share: no group loses less than all samples do. On
    the other one the change of a group may be larger than FP32's score."""
    return (-math.inf, 1.0) if metric.is_share else (-math.inf, math.inf)


def _settled(metric: TaskMetric, group: str, reference: Outputs) -> TaskMetric | None:
    found = metric.settled(reference) if metric.settled else None
    return None if found is None else of_worst_group(found, group)


def _worst(
    metric: TaskMetric, group: str, outputs: Outputs, labels: Outputs, reference: Outputs
) -> float:
    scores = _by_group(metric, group, outputs, labels, reference).values()
    return min(scores) if metric.higher_is_better else max(scores)


def _by_group(
    metric: TaskMetric, group: str, outputs: Outputs, labels: Outputs, reference: Outputs
) -> dict[str, float]:
    numbers = np.asarray(labels[group]).reshape(-1)
    whole = metric(reference, labels, reference)
    scores = dict[str, float]()
    for name in np.unique(numbers):
        rows = np.flatnonzero(numbers == name)
        candidate, truth, own = (rows_of(arrays, rows) for arrays in (outputs, labels, reference))
        try:
            change = metric(candidate, truth, own) - metric(own, truth, own)
        except MetricError as error:  # such as a curve of samples that are all of one class
            raise MetricError(
                f"{option('worst_group')}: {metric.name} of the {counted(len(rows), 'sample')} of "
                f"'{group}' that are '{name}': {error.message}",
                "Add samples of that group, join it with another, or take another metric.",
                code=error.code,
            ) from error
        scores[str(name)] = whole + change
    return scores
