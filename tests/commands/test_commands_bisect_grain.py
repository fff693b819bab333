"""How finely a metric tells two networks apart, next to what a target allows."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest

from qdebug.analyse.metric_grain import grain_of
from qdebug.decide.bisect.grain import Coarse, coarse, coarse_share, told
from qdebug.decide.bisect.target import AccuracyTarget
from qdebug.execute.evaluator import MetricEvaluator
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.load import load_metric


def evaluator(metric: TaskMetric, **outputs: Any) -> MetricEvaluator:
    return MetricEvaluator(metric, {}, outputs)


def own(function: Any) -> TaskMetric:
    return TaskMetric(
        "mine.py:f", False, lambda outputs, _, reference: function(outputs, reference)
    )


def boxes(samples: int, found: int) -> Any:
    """Scores of ten boxes in each sample, `found` of all above one half."""
    scores = np.full((samples, 10), 0.1, np.float32)
    scores[:found, 0] = np.linspace(0.501, 0.95, found)
    return scores


def recall(outputs: Any, reference: Any) -> float:
    wanted = reference["y"] > 0.5
    return float((outputs["y"] > 0.5)[wanted].mean())


def test_a_share_moves_by_one_sample() -> None:
    assert grain_of(evaluator(load_metric("agreement"), y=np.eye(14)), 14, True) == 1 / 14


def test_seven_boxes_are_seven_steps() -> None:
    grain = grain_of(evaluator(own(recall), y=boxes(9, 7)), 9, True)
    assert grain == pytest.approx(1 / 7)
    target = AccuracyTarget(None, own(recall), 0.02)
    found = coarse(target, 1.0, lambda: grain, [(9, "samples searched")])
    assert found is not None and found.grain == pytest.approx(1 / 7)
    assert f"about {int(np.ceil(9 / 7 / 0.02))} samples" in found.note
    assert "from chance" not in found.note  # that is known of shares only


def test_what_counts_nothing_has_no_steps() -> None:
    def closeness(outputs: Any, reference: Any) -> float:
        return 1.0 - float(np.abs(outputs["y"] - reference["y"]).mean())

    values = np.random.default_rng(0).standard_normal((9, 10)).astype(np.float32)
    grain = grain_of(evaluator(own(closeness), y=values), 9, True)
    assert grain is not None and grain < 1e-2
    target = AccuracyTarget(None, own(closeness), 0.02)
    assert coarse(target, 1.0, lambda: grain, [(9, "samples searched")]) is None


def test_a_metric_that_does_not_move_or_takes_other_shapes_says_nothing() -> None:
    assert grain_of(evaluator(own(lambda *_: 0.5), y=boxes(9, 7)), 9, True) is None
    assert grain_of(evaluator(own(recall), y=boxes(9, 7)), 4, True) is None


@pytest.mark.parametrize(
    ("allowed", "counts", "grain"),
    [
        (0.02, (14, 6), 1 / 6),
        (0.1, (14, 6), 1 / 6),
        (0.2, (14, 6), None),
        (0.0, (14, 6), None),  # nothing may be lost, and that can be told
        (0.004, (250, 250), None),
    ],
)
def test_a_share_is_judged_by_its_smallest_set(
    allowed: float, counts: tuple[int, int], grain: float | None
) -> None:
    target = AccuracyTarget(None, load_metric("top1"), allowed)
    sets = [(counts[0], "samples searched"), (counts[1], "held-out samples")]
    found = coarse_share(target, sets)
    assert (found and found.grain) == (grain and pytest.approx(grain))
    if found is not None and grain is not None:
        needed = int(np.ceil(1 / allowed - 1e-6))
        assert f"{needed} samples" in found.note and f"{5 * needed} to tell" in found.note


@pytest.mark.parametrize(
    ("allowed", "counts", "told"),
    [
        (
            0.2,
            (14, 6),
            "1 sample on the 6 held-out samples, which may be chance. It takes about 25",
        ),
        (0.01, (500, 300), "3 samples on the 300 held-out samples"),
        (0.01, (500, 500), ""),  # five that are lost, with none won, are hardly chance
        (0.0, (14, 6), ""),
    ],
)
def test_a_loss_of_few_samples_may_be_chance(
    allowed: float, counts: tuple[int, int], told: str
) -> None:
    target = AccuracyTarget(None, load_metric("top1"), allowed)
    found = coarse_share(target, list(zip(counts, ("searched", "held-out samples"), strict=True)))
    assert (found is not None) == bool(told)
    assert found is None or (told in found.note and found.grain is None)


def test_few_steps_of_another_metric_may_be_chance() -> None:
    target = AccuracyTarget(None, own(recall), 0.3)
    found = coarse(target, 1.0, lambda: 1 / 7, [(9, "samples searched")])
    assert found is not None and found.grain is None and "2 steps as small as seen" in found.note


def test_it_is_said_before_the_work_begins(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert told(None) is None and not caplog.records
        told(Coarse(0.1, "so few"))
    assert [record.message for record in caplog.records] == ["so few"]


def test_steps_of_a_metric_that_knows_probabilities_by_their_range() -> None:
    """As of masks: below 0 they would be logits, and all of another threshold."""
    rng = np.random.default_rng(0)
    masks = np.where(rng.random((8, 400)) < 0.5, 0, rng.random((8, 400))).astype(np.float32)

    def overlap(outputs: Any, reference: Any) -> float:
        ours, true = (x["y"] > (0.5 if x["y"].min() >= 0 else 0) for x in (outputs, reference))
        return float((ours & true).sum() / (ours | true).sum())

    step = grain_of(evaluator(own(overlap), y=masks), 8, higher_is_better=True)
    assert step is not None and step < 3 / (masks > 0.5).sum()


def test_a_slow_metric_is_computed_as_often_as_fits() -> None:
    computed = []

    def slow(*_: Any) -> float:
        computed.append(1)
        time.sleep(0.02)
        return 1.0

    grain_of(evaluator(own(slow), y=boxes(9, 7)), 9, True, within_s=0.1)
    assert len(computed) <= 1 + 5
