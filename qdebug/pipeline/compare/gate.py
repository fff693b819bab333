"""The gate: conditions and end-to-end metric, read before any work so that a slip costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from qdebug.errors import MetricError, UsageError
from qdebug.measure.conditions import Checked, Condition, check_condition, parse_condition
from qdebug.measure.metrics import EFFECT_METRICS
from qdebug.measure.result import LayerResult, TaskResult, TensorResult
from qdebug.measure.task import TaskMetric, labels_of, load_metric
from qdebug.model.prepare import Model
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


def check_metric(metric: TaskMetric | None, model: Model, samples: Samples) -> None:
    """Find out before the run whether there is what a metric is computed from.

    Raises:
        MetricError: the model has no output that is an array, or the samples have no labels.
    """
    if metric is None:
        return
    if not _has_arrays(model):
        raise MetricError(
            f"{model.file.path}: the metric needs an output that is an array, and the model has "
            "none: sequences and maps are not observed",
            "Make an array the model's output.",
            code="QD-METRIC-OUTPUT",
        )
    if metric.needs_labels:
        labels_of(samples.extras, samples.where)


def refuse_without_arrays(model: Model, what: str) -> None:
    """Refuse a model without an output that is an array, by which `what` would be judged.

    Raises:
        UsageError: it has none.
    """
    if not _has_arrays(model):
        raise UsageError(
            f"{model.file.path} has no output that is an array, by which {what} could be judged",
            "Make an array the model's output.",
            code="QD-USAGE-NOTHING-TO-JUDGE",
        )


def _has_arrays(model: Model) -> bool:
    return any(map(model.graph.is_array, model.graph.outputs))


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
