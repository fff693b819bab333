"""The gate: conditions and end-to-end metric, read before any work so that a slip costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from qdebug.errors import MetricError
from qdebug.measure.conditions import Checked, Condition, check_condition, parse_condition
from qdebug.measure.metrics import EFFECT_METRICS
from qdebug.measure.result import LayerResult, TaskResult, TensorResult
from qdebug.measure.task import TaskMetric, labels_of, load_metric
from qdebug.model.samples import Samples
from qdebug.pipeline.evaluator import MetricEvaluator, OutputKeeper
from qdebug.wording import option


@dataclass(frozen=True)
class Gate:
    """What the gate checks."""

    conditions: tuple[Condition, ...]
    metric: TaskMetric | None

    @property
    def judges_effects(self) -> bool:
        """Whether a condition is about what every layer costs at the outputs."""
        return any(c.scope == "layer" and c.name in EFFECT_METRICS for c in self.conditions)


def read_gate(fail_on: Sequence[str], metric: str | None) -> Gate:
    """The gate of these conditions and this metric.

    Raises:
        MetricError: a condition or a metric that is not known.
    """
    conditions = tuple(parse_condition(text) for text in fail_on)
    loaded = load_metric(metric) if metric else None
    if loaded is None and any(c.scope == "metric" for c in conditions):
        refuse_missing_metric("fail_on")
    return Gate(conditions, loaded)


def refuse_missing_metric(setting: str) -> NoReturn:
    """Refuse `setting`, which is about the end-to-end metric, where none is given.

    Raises:
        MetricError: always.
    """
    metrics = [option("metric", text) for text in ("top1", "agreement", "file.py:function")]
    raise MetricError(
        f"{option(setting)} is about the metric, but no {option('metric')} is given",
        f"Add {metrics[0]}, {metrics[1]} or {metrics[2]}.",
        code="QD-METRIC-MISSING",
    )


def check_labels(gate: Gate, samples: Samples) -> None:
    """Find out before the run whether a metric's labels are there.

    Raises:
        MetricError: they are not.
    """
    if gate.metric is not None and gate.metric.needs_labels:
        labels_of(samples.extras, samples.where)


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


def checked_conditions(
    conditions: Sequence[Condition],
    outputs: Sequence[TensorResult],
    layers: Sequence[LayerResult],
    tensors: Sequence[TensorResult],
    task: TaskResult | None,
) -> tuple[Checked, ...]:
    """Check every condition."""
    checked: list[Checked] = []
    for condition in conditions:
        values: list[float | None]
        if condition.scope == "metric":
            values = [task.candidate if task else None]
        elif condition.scope == "layer":
            values = [layer.figure(condition.name) for layer in layers]
        else:
            judged = {"output": outputs, "tensor": tensors}[condition.scope]
            values = [getattr(x.metrics, condition.name) for x in judged]
        checked.append(check_condition(condition, values))
    return tuple(checked)
