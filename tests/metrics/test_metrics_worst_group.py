"""A metric by the group of samples that loses most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdebug.errors import MetricError
from qdebug.metrics.tasks.load import load_metric
from qdebug.metrics.tasks.worst_group import metric_of, of_worst_group

LABELS = np.arange(12) % 3
GROUPS = np.repeat(["a", "b", "c"], [6, 4, 2])


def outputs(wrong: Any = ()) -> dict[str, Any]:
    scores = np.eye(3, dtype=np.float32)[LABELS]
    scores[list(wrong)] = np.roll(scores[list(wrong)], 1, axis=1)
    return {"y": scores}


def value(name: str, wrong: Any, reference: Any = ()) -> float:
    metric = of_worst_group(load_metric(name), "light")
    labels = {"labels": LABELS, "light": GROUPS}
    return metric(outputs(wrong), labels, outputs(reference))


@pytest.mark.parametrize(
    ("wrong", "expected"), [((), 1.0), ((0,), 1 - 1 / 6), ((0, 1, 6, 7), 0.5), ((11,), 0.5)]
)
def test_it_is_as_if_all_lost_as_much_as_the_worst(wrong: Any, expected: float) -> None:
    assert value("top1", wrong) == pytest.approx(expected)


def test_in_fp32_it_is_the_metric_itself() -> None:
    """However unlike the groups are there: what counts is what each loses."""
    assert value("top1", (10, 11), reference=(10, 11)) == pytest.approx(10 / 12)
    assert value("top1", (0, 10, 11), reference=(10, 11)) == pytest.approx(10 / 12 - 1 / 6)
    assert value("top1", (), reference=(10, 11)) == pytest.approx(10 / 12)  # none lost, one won


def test_where_lower_is_better() -> None:
    metric = of_worst_group(load_metric("mae"), "light")
    labels = {"labels": np.zeros(12), "light": GROUPS}
    reference, other = {"y": np.ones(12)}, {"y": np.where(GROUPS == "b", 3.0, 1.0)}
    assert metric(reference, labels, reference) == 1.0
    assert metric(other, labels, reference) == 3.0
    assert metric.decided(other, labels, reference) == (3.0, "b")


def test_it_is_another_metric() -> None:
    metric = load_metric("top1")
    found = of_worst_group(metric, "light")
    assert found.key != metric.key and found.name == "top1 after the worst light's loss"
    assert metric_of(found.name) == metric_of("top1") == "top1"
    assert not found.is_share and found.per_sample is None


def test_a_metric_that_does_not_say_which_way_is_better() -> None:
    with pytest.raises(MetricError) as caught:
        of_worst_group(replace(load_metric("top1"), is_declared=False), "light")
    assert caught.value.code == "QD-METRIC-DIRECTION"


def test_a_group_whose_metric_cannot_be_computed() -> None:
    """It would be left out of what the target holds for."""
    metric = of_worst_group(load_metric("auroc"), "light")
    positive = np.array([0, 1] * 5 + [1, 1])
    labels = {"labels": positive, "light": GROUPS}
    scores = {"y": np.stack([1 - positive, positive], axis=1).astype(np.float32)}
    with pytest.raises(MetricError, match="auroc of the 2 samples of 'light' that are 'c'"):
        metric(scores, labels, scores)
