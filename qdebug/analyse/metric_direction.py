"""Which way a metric is good: as its author declares, or as its values show."""

from __future__ import annotations

import numpy as np

from qdebug.errors import MetricError, UsageError
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.results.conditions import Condition
from qdebug.run.outputs import MetricEvaluator
from qdebug.wording import option


def direction_of(task: MetricEvaluator, samples: int) -> bool | None:
    """Whether a higher value of a metric is better: as declared, else as seen, by whether FP32's
    own outputs score higher than those of other samples; None where neither tells.

    Raises:
        MetricError: the metric raised on the reference's outputs.
    """
    if task.metric.is_declared:
        return task.metric.higher_is_better
    value, exchanged = task.of_reference(), of_exchanged(task, samples)
    return None if exchanged is None or exchanged == value else exchanged < value


def of_exchanged(task: MetricEvaluator, samples: int) -> float | None:
    """The metric where each sample gets the reference's outputs for another one; None where it
    cannot be computed of these."""
    order = np.random.default_rng(0).permutation(samples)
    if any(len(array) != samples for array in task.reference.values()):
        return None
    try:
        return task({name: array[order] for name, array in task.reference.items()})
    except MetricError:
        return None


def check_direction(condition: Condition, metric: TaskMetric | None, setting: str) -> None:
    """That a condition on the metric, the value of `setting`, bounds it on its bad side.

    Raises:
        UsageError: the metric declares the other direction.
    """
    if condition.scope != "metric" or metric is None or not metric.is_declared:
        return
    if condition.operator.startswith(">") == metric.higher_is_better:
        return
    word, operator = ("higher", ">=") if metric.higher_is_better else ("lower", "<=")
    raise UsageError(
        f"{option(setting)}: '{condition.expression}': of {metric.name} {word} is better",
        f"Write metric{operator}{condition.bound:g}.",
        code="QD-USAGE-METRIC-DIRECTION",
    )
