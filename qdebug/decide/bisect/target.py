"""What a search must reach: one condition, on the outputs, the layers or the end-to-end metric."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from qdebug.analyse.gate import read_metric, refuse_missing_metric
from qdebug.analyse.metric_direction import check_direction, direction_of
from qdebug.config.specs import TargetSpec
from qdebug.errors import UsageError
from qdebug.execute.context import Context, sized
from qdebug.metrics.tasks.base import TaskMetric, is_share
from qdebug.metrics.tensor import GATED
from qdebug.network.graph import Graph
from qdebug.network.layers import Layers
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.conditions import Condition, parse_condition
from qdebug.results.words import score
from qdebug.run.outputs import OutputEvaluator
from qdebug.run.runner import Runner
from qdebug.run.timelimit import check_time
from qdebug.run.variant import as_it_is
from qdebug.wording import counted, option

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


_SURELY_LOST = 5
"""Samples that are lost, with none won, which chance gives in 1 of 32 cases: McNemar's test, exact
and one-sided."""


def few_samples_note(target: AccuracyTarget, samples: int) -> str:
    """That all that a target lets a share of the samples lose may be chance; "" where it is not."""
    allowed = target.allowed
    if not allowed or not is_share(target.metric) or allowed * samples >= _SURELY_LOST - 1e-6:
        return ""
    lost = counted(math.floor(allowed * samples + 1e-6), "sample")
    return (
        f"The target lets {target.metric_name} be worse by {score(allowed)}: {lost} of the "
        f"{samples} that the answer is checked on, which may be chance. It takes about "
        f"{math.ceil(_SURELY_LOST / allowed - 1e-6)} samples to tell such a loss from it."
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
    reference = as_it_is(graph.proto, context.backend)
    runner = Runner(
        sized(context, graph, subset), workers=context.parallel.workers, ends_at=context.ends_at
    )
    task = OutputEvaluator(runner, graph, reference, metric).task
    assert task is not None  # there is a metric
    check_time(context.ends_at, "metric")
    return direction_of(task, subset.count)


def check_allowed(
    target: AccuracyTarget, context: Context, graph: Graph, subset: SampleSubset
) -> None:
    """Make sure that a largest drop is given for a metric of which more is better, and a largest
    rise for one of which less is, as far as the outputs of other samples tell.

    Raises:
        UsageError: the other way round.
        QdebugError: FP32 does not run, or the metric raised on its outputs.
    """
    metric, asked = target.metric, target.higher_is_better
    if target.allowed is None or metric is None:
        return
    if seen_direction(metric, context, graph, subset) in (asked, None):
        return
    given, other = ("max_drop", "max_rise") if asked else ("max_rise", "max_drop")
    word, opposite = ("more", "less") if asked else ("less", "more")
    raise UsageError(
        f"{option(given)} is for a metric of which {word} is better, but where each sample is "
        f"given another one's outputs, yours shows that {opposite} is better",
        f"Write {option(other, f'{target.allowed:g}')}.",
        code="QD-USAGE-METRIC-DIRECTION",
    )
