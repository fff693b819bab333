"""The gate: conditions and end-to-end metric, read before any work so that a slip costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.config.compare import CompareSettings
from qdebug.errors import MetricError
from qdebug.measure.conditions import Condition, parse_condition
from qdebug.measure.result import TaskResult
from qdebug.measure.task import TaskMetric, labels_of, load_metric
from qdebug.model.samples import Samples
from qdebug.pipeline.evaluator import MetricEvaluator, OutputKeeper


@dataclass(frozen=True)
class Gate:
    """What is judged."""

    conditions: tuple[Condition, ...]
    metric: TaskMetric | None


def read_gate(settings: CompareSettings) -> Gate:
    """The gate that the settings ask for.

    Raises:
        MetricError: a condition or a metric that is not known.
    """
    conditions = tuple(parse_condition(text) for text in settings.fail_on)
    metric = load_metric(settings.metric) if settings.metric else None
    if metric is None and any(c.scope == "metric" for c in conditions):
        raise MetricError(
            "--fail-on asks for 'metric', but no --metric is given",
            "Add --metric top1, --metric agreement or --metric file.py:function.",
        )
    return Gate(conditions, metric)


def check_labels(gate: Gate, samples: Samples) -> None:
    """Find out before the run whether a metric's labels are there.

    Raises:
        MetricError: they are not.
    """
    if gate.metric is not None and gate.metric.needs_labels:
        labels_of(samples.extras)


def task_result(
    metric: TaskMetric, samples: Samples, reference: OutputKeeper, candidate: OutputKeeper
) -> TaskResult:
    """The metric of both runs over all samples.

    Raises:
        MetricError: the metric raised, or an output has another shape for some samples.
    """
    evaluator = MetricEvaluator.of(metric, samples, reference)
    before = evaluator.of_reference()
    return TaskResult(metric.name, before, evaluator(candidate.joined()))
