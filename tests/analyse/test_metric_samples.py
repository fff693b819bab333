"""What a metric says of both runs: what may be chance, which samples lose, what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdebug.analyse.gate import metric_notes, read_gate
from qdebug.analyse.metric_samples import JudgedPair, judged_pair
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric, metric_in_memory
from qdebug.metrics.tasks.worst_group import of_worst_group
from qdebug.metrics.uncertainty import Uncertainty
from qdebug.results.compare import TaskResult
from qdebug.run.outputs import MetricEvaluator

SAMPLES = 24
RANDOM = np.random.default_rng(0)
SCORES = RANDOM.standard_normal((SAMPLES, 4))
CLASSES = SCORES.argmax(axis=1)


def judged(name: Any, outputs: Any, labels: Any = None, **model: Any) -> Any:
    metric = load_metric(name, facts=model.get("facts"))
    evaluator = MetricEvaluator(metric, labels or {}, {"y": SCORES})
    return judged_pair(evaluator, {"y": np.asarray(outputs)}, SAMPLES), metric


def test_samples_that_lose_most_come_first() -> None:
    changed = SCORES.copy()
    changed[5] = np.roll(SCORES[5], 1)
    changed[9] += 0.01 * RANDOM.standard_normal(4)
    pair, metric = judged("top1", changed, {"labels": CLASSES})
    assert pair.exchanged == (1, 0)
    worst = pair.worst(True)
    assert worst[0].sample == 5 and worst[0].lost == worst[0].candidate - worst[0].reference > 0
    assert {one.sample for one in worst} <= {5, 9}
    assert pair.uncertainty(metric).p_value == 1  # one sample is no drop


def test_without_a_loss_the_samples_own_scores_tell() -> None:
    def score(outputs: Any) -> float:
        return float(outputs["y"].mean())

    score.per_sample = lambda outputs: outputs["y"].mean(axis=1)  # type: ignore[attr-defined]
    changed = SCORES.copy()
    changed[[3, 7]] -= [[1.0], [2.0]]
    pair, _ = judged(metric_in_memory(score), changed)
    assert [one.sample for one in pair.worst(True)] == [7, 3]
    assert pair.worst(False) == () == pair.worst(None)


def test_of_a_metric_of_all_samples_groups_are_left_out() -> None:
    calls: list[int] = []

    def score(outputs: Any) -> float:
        calls.append(len(outputs["y"]))
        return float(np.sqrt(np.square(outputs["y"]).mean()))

    pair, metric = judged(metric_in_memory(score), 2 * SCORES)
    found = pair.uncertainty(metric)
    assert calls.count(SAMPLES) == 2 and calls.count(SAMPLES - 2) == 24 == len(calls) - 2
    assert found.change[0] < pair.candidate.score - pair.reference.score < found.change[1]
    assert found.p_value < 1e-6 and pair.worst(True) == ()


def test_what_cannot_be_computed_of_some_samples_has_no_interval() -> None:
    def score(outputs: Any) -> float:
        if len(outputs["y"]) < SAMPLES:
            raise ValueError("too few")
        return 1.0

    pair, metric = judged(metric_in_memory(score), SCORES)
    assert pair.candidate.score == 1 and pair.uncertainty(metric) is None


def test_from_the_truth_every_change_is_one() -> None:
    pair, metric = judged("agreement", SCORES[::-1])
    found = pair.uncertainty(metric)
    assert found.p_value is None and not found.test and found.change[1] < 0


def test_outputs_of_a_detector_are_read_once() -> None:
    """The score of twelve parts, the loss and the counts of boxes take one reading of each."""
    facts = ModelFacts({"x": (None, 3, 64, 64)}, {"y": (None, 7, 84)})
    rows = RANDOM.random((SAMPLES, 7, 84))
    rows[:, 4:] **= 4
    metric = load_metric("box-f1-to-reference", facts=facts)
    evaluator = MetricEvaluator(metric, {}, {"y": rows})
    pair = judged_pair(evaluator, {"y": rows[:, :, ::-1]}, SAMPLES)
    assert pair.reference.boxes is not None and pair.reference.boxes.lost == 0
    assert pair.reference.score == 1 and len(pair.reference.left_out) == 12
    subset = np.arange(SAMPLES) % 12 != 0
    alone = metric({"y": rows[subset][:, :, ::-1]}, {}, {"y": rows[subset]})
    assert pair.candidate.left_out[0] == pytest.approx(alone)


TASK = TaskResult("map", 0.52, 0.50, higher_is_better=True)


@pytest.mark.parametrize(
    ("bound", "change", "needed"),
    [
        (0.49, (-0.06, 0.02), "About 1600 would"),  # 4 times the half width: 16 times the samples
        (0.49, (-0.025, -0.015), ""),  # surely above
        (0.5, (-0.06, 0.02), ""),  # exactly there
    ],
)
def test_a_bound_within_the_interval_is_not_told(
    bound: float, change: tuple[float, float], needed: str
) -> None:
    task = replace(TASK, uncertainty=Uncertainty((0, 1), change, 0.3, "paired jackknife"))
    notes = metric_notes(task, 100, read_gate([f"metric>={bound}"], "top1"))
    assert len(notes) == bool(needed) and all(needed in note for note in notes)


def test_no_interval_is_wider_than_scores_are() -> None:
    """Of two samples that are wrong in FP32 alone, and of a group that loses hardly anything."""
    changed = SCORES.copy()
    changed[[2, 11]] = np.roll(SCORES[[2, 11]], 1, axis=1)
    labels = {"labels": CLASSES, "group": np.arange(SAMPLES) % 2}
    pair, metric = judged("top1", changed, labels)
    reversed_pair = JudgedPair(pair.candidate, pair.reference)
    for both in (pair, reversed_pair):
        found = both.uncertainty(metric)
        assert 0 <= found.interval[0] <= both.candidate.score <= found.interval[1] <= 1
        ends = [both.reference.score + end for end in found.change]
        assert ends[0] >= -1e-12 and ends[1] <= 1 + 1e-12
    worst = of_worst_group(metric, "group")
    evaluator = MetricEvaluator(worst, labels, {"y": SCORES})
    almost = SCORES.copy()
    almost[3] = np.roll(SCORES[3], 1)
    found = judged_pair(evaluator, {"y": almost}, SAMPLES).uncertainty(worst)
    assert found is not None and found.interval[1] <= 1 and found.change[1] <= 0


def test_an_error_rate_has_no_interval_below_zero() -> None:
    values = np.zeros((SAMPLES, 1))
    values[0] = 3.0
    evaluator = MetricEvaluator(load_metric("rmse"), {"labels": np.zeros(SAMPLES)}, {"y": values})
    found = judged_pair(evaluator, {"y": values}, SAMPLES).uncertainty(evaluator.metric)
    assert found is not None and found.interval[0] == 0 < found.interval[1]
