"""A metric by the group of samples that loses most: for a target that must hold for every group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Outputs, Rows, TaskMetric
from qdebug.metrics.tasks.load import as_given
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
    loss = metric.loss and replace(metric.loss, compute=metric.loss, read=as_given)
    scores_alone = replace(metric, loss=None, per_sample=None, counts=None)
    return replace(
        metric,
        name=f"{metric.name}{_AFTER}{group}'s loss",
        read=as_given,
        by_group=partial(_by_group, scores_alone, group),
        loss=loss,
        per_sample=None,
        counts=None,
        is_share=False,
        # On the better side no score is beyond a share: no group loses less than all samples do.
        # On the other one the change of a group may be larger than FP32's score.
        bounds=(-math.inf, 1.0) if metric.is_share else (-math.inf, math.inf),
    )


def _by_group(
    metric: TaskMetric, group: str, outputs: Outputs, labels: Outputs, reference: Outputs
) -> dict[str, float]:
    numbers = np.asarray(labels[group]).reshape(-1)
    rows = {name: np.flatnonzero(numbers == name) for name in np.unique(numbers).tolist()}
    judging = list[str]()

    def sets() -> Iterator[Rows]:
        for name, own in rows.items():
            judging.append(name)
            yield own

    try:
        after, before = (metric.judged(x, labels, reference, sets()) for x in (outputs, reference))
    except MetricError as error:  # such as a curve of samples that are all of one class
        if not judging:
            raise
        count, name = counted(len(rows[judging[-1]]), "sample"), judging[-1]
        raise MetricError(
            f"{option('worst_group')}: {metric.name} of the {count} of '{group}' that are "
            f"'{name}': {error.message}",
            "Add samples of that group, join it with another, or take another metric.",
            code=error.code,
        ) from error
    changes = (after.left_out - before.left_out).tolist()
    return {str(name): before.score + change for name, change in zip(rows, changes, strict=True)}
