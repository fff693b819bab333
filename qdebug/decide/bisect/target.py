"""What a search must reach: one condition, on the outputs, the layers or the end-to-end metric."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from qdebug.analyse.gate import read_metric, refuse_missing_metric
from qdebug.analyse.metric_direction import check_direction, direction_of, of_exchanged
from qdebug.config.specs import TargetSpec
from qdebug.errors import UsageError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import KeptReference
from qdebug.metrics.candidate import CandidateResult
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tensor import GATED
from qdebug.network.graph import Graph
from qdebug.network.layers import Layers
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.conditions import Checked, Condition, check_condition, parse_condition
from qdebug.results.words import score
from qdebug.run.outputs import MetricEvaluator
from qdebug.run.timelimit import check_time
from qdebug.wording import option

_NAMES = {scope: GATED[scope] for scope in ("output", "tensor", "metric")}
_NAMES["layer"] = GATED["tensor"]
"""As of `fail_on`, without local errors: pinning other layers does not change those; of parts only
the worst, which is a figure of outputs."""


@dataclass(frozen=True)
class AccuracyTarget:
    """A condition, the metric that it may be about, and how much worse than FP32's that may be.

    Attributes:
        allowed: the largest drop or rise of the metric; None where there is a condition.
        higher_is_better: which of the two; where there is a condition, what that asks for.
    """

    condition: Condition | None
    metric: TaskMetric | None
    allowed: float | None = None
    higher_is_better: bool = True

    def condition_for(self, reference_task: float | None) -> Condition:
        """The condition, where the reference's metric is `reference_task`."""
        name = self.metric_name
        if self.condition is not None:
            if self.condition.scope != "metric":
                return self.condition
            own = self.condition
            return replace(own, meaning=f"{name} {own.operator} {own.bound:g}")
        assert self.allowed is not None and reference_task is not None  # read_target saw to it
        operator, sign = (">=", -1) if self.higher_is_better else ("<=", 1)
        bound = reference_task + sign * self.allowed
        # A share of samples is a ratio of whole numbers: rounding must not cost one of them.
        bound += sign * 1e-9 * max(1.0, abs(bound))
        text = f"metric{operator}{reference_task:.6g}{'-+'[sign > 0]}{self.allowed:g}"
        told = f"{name} within {self.allowed:g} of FP32's {score(reference_task)}"
        return Condition(
            text, "metric", "", operator, bound, f"{told}, so {operator} {score(bound)}"
        )

    @property
    def metric_name(self) -> str:
        """The metric's name, of one in a file that of the function; "" without one."""
        return self.metric.name.rpartition(":")[2] if self.metric else ""

    @property
    def of_outputs(self) -> bool:
        """Whether it is about the errors of the outputs."""
        return self.condition is not None and self.condition.scope == "output"

    def captured(self, layers: Layers, graph: Graph) -> tuple[str, ...]:
        """The tensors that must be observed to check it, besides the outputs."""
        scope = self.condition.scope if self.condition else "metric"
        if scope == "layer":
            return tuple(layer.output for layer in layers)
        return tuple(graph.activations()) if scope == "tensor" else ()


def read_target(asked: TargetSpec) -> AccuracyTarget:
    """The target that is asked for.

    Raises:
        UsageError: there is none, there are two, or it takes the metric for one of the other
            direction.
        MetricError: a condition or a metric that is not known, or one without the other.
    """
    values = {name: getattr(asked, name) for name in ("target", "max_drop", "max_rise")}
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        example = option("target", "output.cosine>=0.999")
        drop = f"{option('metric', 'top1')} with {option('max_drop', '0.01')}"
        raise UsageError(
            f"{' and '.join(map(option, given))} are given"
            if given
            else f"{option('target')} is missing",
            "Give one of them." if given else f"Write for example {example}, or {drop}.",
            code="QD-USAGE-TARGET",
        )
    name = given[0]
    metric = read_metric(asked.metric, asked.decode)
    condition = None
    if asked.target is not None:
        condition = parse_condition(asked.target, _NAMES, "target")
    if (condition is None or condition.scope == "metric") and metric is None:
        refuse_missing_metric(name)
    if condition is not None:
        check_direction(condition, metric, "target")
        return AccuracyTarget(condition, metric, None, not condition.operator.startswith("<"))
    wants_high = name == "max_drop"
    if metric is not None and metric.is_declared and metric.higher_is_better != wants_high:
        word, opposite, other = "higher", "lower", "max_rise"
        if not wants_high:
            word, opposite, other = "lower", "higher", "max_drop"
        raise UsageError(
            f"{option(name)} is for metrics of which {word} is better, and of {metric.name} "
            f"{opposite} is",
            f"Write {option(other, f'{values[name]:g}')}.",
            code="QD-USAGE-METRIC-DIRECTION",
        )
    return AccuracyTarget(None, metric, values[name], wants_high)


def check_target(condition: Condition, result: CandidateResult, layers: Layers) -> Checked:
    """Whether `result` meets `condition`, and the worst value."""
    if condition.scope == "metric":
        return check_condition(condition, [result.task])
    metrics = {
        "output": lambda: list(result.outputs.values()),
        "tensor": lambda: list(result.tensors.values()),
        "layer": lambda: [result.tensors[x.output] for x in layers if x.output in result.tensors],
    }[condition.scope]()
    return check_condition(condition, [getattr(m, condition.name) for m in metrics])


def direction_notes(
    target: AccuracyTarget,
    reference: float | None,
    baseline: float | None,
    context: Context,
    graph: Graph,
    subset: SampleSubset,
) -> tuple[str, ...]:
    """A note where the metric is suspiciously good with nothing pinned, and it is unknown
    whether a higher value is better.

    Args:
        reference, baseline: the metric of FP32, and with nothing pinned; None if not known.
        graph: the FP32 model, run again on `subset` where there is something to find out.

    Raises:
        UsageError: more of it is worse, and a largest drop was given; or the other way round.
    """
    if target.allowed is None or reference is None or baseline is None:
        return ()
    gained = (baseline - reference) * (1 if target.higher_is_better else -1)
    if gained <= target.allowed or target.metric is None or target.metric.is_declared:
        return ()
    given, other = option("max_drop"), "max_rise"
    word, opposite, moves = "more", "less", "rises"
    if not target.higher_is_better:
        given, other, word, opposite, moves = (
            option("max_rise"),
            "max_drop",
            "less",
            "more",
            "falls",
        )
    shuffled = of_exchanged(_reference_task(target.metric, context, graph, subset), subset.count)
    if shuffled is None or shuffled == reference:
        return (
            f"The metric {moves} from {reference:.6g} in FP32 to {baseline:.6g} with nothing "
            f"pinned, and {given} means that {word} is better; otherwise use {option(other)}.",
        )
    if (shuffled > reference) != target.higher_is_better:
        return ()
    raise UsageError(
        f"{given} is for a metric of which {word} is better, but yours is {reference:.6g} in FP32 "
        f"and {shuffled:.6g} where each sample is given another one's outputs, so that {opposite} "
        "is better",
        f"Write {option(other, f'{target.allowed:g}')}.",
        code="QD-USAGE-METRIC-DIRECTION",
    )


def seen_direction(
    metric: TaskMetric, context: Context, graph: Graph, subset: SampleSubset
) -> bool | None:
    """See direction_of; `graph` is the FP32 model, which is run on `subset` where that is needed.

    Raises:
        QdebugError: it does not run, or the metric raised on its outputs.
    """
    if metric.is_declared:
        return metric.higher_is_better
    task = _reference_task(metric, context, graph, subset)
    check_time(context.ends_at, "metric")
    return direction_of(task, subset.count)


def _reference_task(
    metric: TaskMetric, context: Context, graph: Graph, subset: SampleSubset
) -> MetricEvaluator:
    """The metric with the outputs of the FP32 model on `subset`."""
    with closing(context.backend.open(graph.proto, [])) as session:
        task = KeptReference(context, graph, session, subset, metric).task
    assert task is not None  # there is a metric
    return task
