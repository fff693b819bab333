"""Which way a metric is good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qdebug.analyse.gate import read_gate
from qdebug.analyse.metric_direction import direction_of
from qdebug.config.specs import TargetSpec
from qdebug.decide.bisect.target import read_target
from qdebug.metrics.tasks.load import load_metric, metric_in_memory
from qdebug.run.outputs import MetricEvaluator

DIRECTION = "QD-USAGE-METRIC-DIRECTION"
OUTPUTS = {"y": np.random.default_rng(0).standard_normal((9, 4))}


def error(outputs: Any, reference: Any) -> float:
    return float(np.abs(outputs["y"] - reference["y"]).mean())


def declared(higher: bool) -> Any:
    def score(outputs: Any, reference: Any) -> float:
        return 0.0

    score.higher_is_better = higher  # type: ignore[attr-defined]
    return metric_in_memory(score)


@pytest.mark.parametrize(
    ("function", "seen"),
    [(error, False), (lambda outputs, reference: -error(outputs, reference), True)],
)
def test_what_is_not_declared_is_seen(function: Callable[..., Any], seen: bool) -> None:
    metric = load_metric(metric_in_memory(function))
    assert direction_of(MetricEvaluator(metric, {}, OUTPUTS), 9) is seen


def test_what_is_not_seen_is_not_known() -> None:
    constant = load_metric(metric_in_memory(lambda outputs: 1.0))
    assert direction_of(MetricEvaluator(constant, {}, OUTPUTS), 9) is None
    by_rows = load_metric(metric_in_memory(error))
    assert direction_of(MetricEvaluator(by_rows, {}, OUTPUTS), 8) is None


@pytest.mark.parametrize("higher", [True, False])
def test_what_is_declared_is_not_measured(higher: bool) -> None:
    metric = load_metric(declared(higher))
    assert direction_of(MetricEvaluator(metric, {}, {}), 9) is higher


@pytest.mark.parametrize(
    ("higher", "wrong"),
    [
        (True, {"target": "metric<=0.5"}),
        (True, {"max_rise": 0.1}),
        (False, {"target": "metric>0.5"}),
        (False, {"max_drop": 0.1}),
    ],
)
def test_a_target_on_the_wrong_side_is_refused(higher: bool, wrong: dict[str, Any]) -> None:
    other = "max_rise" if "max_drop" in wrong else "max_drop" if "max_rise" in wrong else "metric"
    with refused(DIRECTION, other):
        read_target(TargetSpec(metric=declared(higher), **wrong))
    read_target(TargetSpec(metric=declared(not higher), **wrong))


def test_a_gate_on_the_wrong_side_is_refused() -> None:
    with refused(DIRECTION, "metric<=0.9", "metric>=0.9"):
        read_gate(["metric<=0.9"], "top1")
    assert read_gate(["metric>=0.9"], "top1").conditions
