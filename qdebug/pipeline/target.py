"""What a search must reach: one condition, on the outputs, the layers or the end-to-end metric."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.config.bisect import BisectSettings
from qdebug.errors import MetricError, UsageError
from qdebug.measure.candidate import CandidateResult
from qdebug.measure.conditions import Checked, Condition, check_condition, parse_condition
from qdebug.measure.task import TaskMetric, load_metric
from qdebug.model.graph import Graph
from qdebug.model.layers import Layers
from qdebug.pipeline.results import CONDITION_NAMES

_NAMES = {**CONDITION_NAMES, "layer": tuple(n for n in CONDITION_NAMES["tensor"])}
"""As of --fail-on, without local errors: pinning other layers does not change those."""


@dataclass(frozen=True)
class Target:
    """A condition, the metric that it may be about, and how far that may fall below FP32's."""

    condition: Condition | None
    metric: TaskMetric | None
    max_drop: float | None = None

    def condition_for(self, reference_task: float | None) -> Condition:
        """The condition, where the reference's metric is `reference_task`."""
        if self.condition is not None:
            return self.condition
        assert self.max_drop is not None and reference_task is not None  # read_target saw to it
        bound = reference_task - self.max_drop
        # A share of samples is a ratio of whole numbers: rounding must not cost one of them.
        bound -= 1e-9 * max(1.0, abs(bound))
        text = f"metric>={reference_task:.6g}-{self.max_drop:g}"
        return Condition(text, "metric", "", ">=", bound)

    def captured(self, layers: Layers, graph: Graph) -> tuple[str, ...]:
        """The tensors that must be observed to judge it, beside the outputs."""
        scope = self.condition.scope if self.condition else "metric"
        if scope == "layer":
            return tuple(layer.output for layer in layers)
        return tuple(graph.activations()) if scope == "tensor" else ()


def read_target(settings: BisectSettings) -> Target:
    """The target that the settings ask for.

    Raises:
        UsageError: there is none, or there are two.
        MetricError: a condition or a metric that is not known, or one without the other.
    """
    if (settings.target is None) == (settings.max_drop is None):
        both = settings.target is not None
        raise UsageError(
            "--target and --max-drop are given" if both else "--target is missing",
            "Give one of them."
            if both
            else 'Write for example --target "output.cosine>=0.999", or'
            " --metric top1 --max-drop 0.01.",
        )
    metric = load_metric(settings.metric) if settings.metric else None
    condition = None
    if settings.target is not None:
        condition = parse_condition(settings.target, _NAMES, "--target")
    elif not 0 <= (settings.max_drop or 0.0) < float("inf"):
        raise UsageError(f"--max-drop: {settings.max_drop} is no drop", "Write for example 0.01.")
    about_metric = condition is None or condition.scope == "metric"
    if about_metric and metric is None:
        flag = "--max-drop" if condition is None else "--target"
        raise MetricError(
            f"{flag} is about the metric, but no --metric is given",
            "Add --metric top1, --metric agreement or --metric file.py:function.",
        )
    return Target(condition, metric, settings.max_drop)


def judge(condition: Condition, result: CandidateResult, layers: Layers) -> Checked:
    """Whether `result` meets `condition`, and the worst value."""
    if condition.scope == "metric":
        return check_condition(condition, [result.task])
    metrics = {
        "output": lambda: list(result.outputs.values()),
        "tensor": lambda: list(result.tensors.values()),
        "layer": lambda: [result.tensors[x.output] for x in layers if x.output in result.tensors],
    }[condition.scope]()
    return check_condition(condition, [getattr(m, condition.name) for m in metrics])
