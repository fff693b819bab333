"""What a search must reach: one condition, on the outputs, the layers or the end-to-end metric."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.config.bisect import BisectSettings
from qdebug.errors import MetricError, UsageError
from qdebug.measure.candidate import CandidateResult
from qdebug.measure.conditions import Checked, Condition, check_condition, parse_condition
from qdebug.measure.metrics import GATED
from qdebug.measure.task import BUILT_IN, TaskMetric, load_metric
from qdebug.model.graph import Graph
from qdebug.model.layers import Layers

_NAMES = {**GATED, "layer": GATED["tensor"]}
"""As of --fail-on, without local errors: pinning other layers does not change those."""


@dataclass(frozen=True)
class Target:
    """A condition, the metric that it may be about, and how much worse than FP32's that may be.

    Attributes:
        allowed: of --max-drop or --max-rise; None where there is a condition.
        more_is_better: which of the two.
    """

    condition: Condition | None
    metric: TaskMetric | None
    allowed: float | None = None
    more_is_better: bool = True

    def condition_for(self, reference_task: float | None) -> Condition:
        """The condition, where the reference's metric is `reference_task`."""
        if self.condition is not None:
            return self.condition
        assert self.allowed is not None and reference_task is not None  # read_target saw to it
        operator, sign = (">=", -1) if self.more_is_better else ("<=", 1)
        bound = reference_task + sign * self.allowed
        # A share of samples is a ratio of whole numbers: rounding must not cost one of them.
        bound += sign * 1e-9 * max(1.0, abs(bound))
        text = f"metric{operator}{reference_task:.6g}{'-+'[sign > 0]}{self.allowed:g}"
        return Condition(text, "metric", "", operator, bound)

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
    choices = {
        "--target": settings.target,
        "--max-drop": settings.max_drop,
        "--max-rise": settings.max_rise,
    }
    given = [flag for flag, value in choices.items() if value is not None]
    if len(given) != 1:
        raise UsageError(
            f"{' and '.join(given)} are given" if given else "--target is missing",
            "Give one of them."
            if given
            else 'Write for example --target "output.cosine>=0.999", or'
            " --metric top1 --max-drop 0.01.",
        )
    flag = given[0]
    metric = load_metric(settings.metric) if settings.metric else None
    condition = None
    if settings.target is not None:
        condition = parse_condition(settings.target, _NAMES, "target")
    if (condition is None or condition.scope == "metric") and metric is None:
        raise MetricError(
            f"{flag} is about the metric, but no --metric is given",
            "Add --metric top1, --metric agreement or --metric file.py:function.",
        )
    if condition is not None:
        return Target(condition, metric)
    if flag == "--max-rise" and metric is not None and metric.name in BUILT_IN:
        raise UsageError(
            f"--max-rise is for metrics where less is better; of {metric.name}, more is",
            f"Write --max-drop {settings.max_rise:g}.",
        )
    allowed = settings.max_drop if flag == "--max-drop" else settings.max_rise
    return Target(None, metric, allowed, flag == "--max-drop")


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
