"""How finely a metric tells two networks apart, next to what a target allows."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from qdebug.decide.bisect.grain import Coarse, coarse, told
from qdebug.decide.bisect.target import AccuracyTarget
from qdebug.metrics.tasks.load import load_metric


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
    found = coarse(target, None, sets)
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
    found = coarse(target, None, list(zip(counts, ("searched", "held-out samples"), strict=True)))
    assert (found is not None) == bool(told)
    assert found is None or (told in found.note and found.grain is None)


def test_it_is_said_before_the_work_begins(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert told(None) is None and not caplog.records
        told(Coarse(0.1, "so few"))
    assert [record.message for record in caplog.records] == ["so few"]
