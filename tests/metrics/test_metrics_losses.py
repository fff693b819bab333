"""Losses of single samples for classifiers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax

from qdebug.metrics.tasks.classes import MARGIN_SLOPE, margin_loss, tells_apart


def scores(seed: int, classes: int = 4) -> Any:
    return np.random.default_rng(seed).standard_normal((16, classes)) * 3


@given(st.integers(0, 50), st.integers(2, 6))
def test_the_margin_is_that_to_the_best_other_class(seed: int, classes: int) -> None:
    changed, reference = scores(seed, classes), scores(seed + 1, classes)
    right = np.random.default_rng(seed).integers(0, classes, 16)

    def margin(row: Any, of: int) -> float:
        return float(row[of] - max(value for i, value in enumerate(row) if i != of))

    margins = np.array([margin(row, of) for row, of in zip(changed, right, strict=True)])
    spread = np.std([margin(row, of) for row, of in zip(reference, right, strict=True)])
    expected = expit(-MARGIN_SLOPE * margins / spread)
    np.testing.assert_allclose(margin_loss(changed, right, reference), expected)
    np.testing.assert_array_equal(margin_loss(changed, right, reference) > 0.5, margins < 0)


@given(st.integers(0, 50), st.floats(0.01, 100))
def test_margins_do_not_depend_on_the_unit_of_the_scores(seed: int, unit: float) -> None:
    changed, reference = scores(seed), scores(seed + 1)
    right = np.argmax(reference, axis=1)
    np.testing.assert_allclose(
        margin_loss(unit * changed, right, unit * reference),
        margin_loss(changed, right, reference),
        atol=1e-9,
    )


def test_a_broken_sample_is_wrong() -> None:
    reference = scores(0)
    right, broken = np.argmax(reference, axis=1), reference.copy()
    broken[0] = np.nan
    broken[1, right[1]] = np.nan
    broken[2, right[2]] = np.inf
    losses = margin_loss(broken, right, reference)
    assert losses[0] == losses[1] == 1 and losses[2] == 0
    assert margin_loss(reference, np.full(16, -1), reference) == pytest.approx(1)


@given(st.integers(0, 50))
def test_margins_of_probabilities_are_those_of_their_logarithms(seed: int) -> None:
    changed, reference = scores(seed), scores(seed + 1)
    right = np.argmax(reference, axis=1)
    expected = margin_loss(log_softmax(changed, axis=1), right, log_softmax(reference, axis=1))
    found = margin_loss(softmax(changed, axis=1), right, softmax(reference, axis=1))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("lost", "before", "scores", "tells"),
    [
        (2e-20, 1.8e-19, (1.0, 1.0), False),  # of a classifier that is sure of every sample
        (2e-20, 1.8e-19, (None, None), False),
        (2e-20, 0.0, (-2e-20, 0.0), True),  # the score is the loss, in small units
        (1e-4, 0.01, (1.0, 1.0), True),
        (-1e-4, 0.01, (1.0, 1.0), True),  # better is not the same
        (1e-4, 1e3, (0.5, 0.5), False),  # of FP32's loss it is next to nothing
        (math.inf, 0.01, (1.0, 1.0), True),
        (math.nan, 0.01, (1.0, 1.0), True),
    ],
)
def test_a_loss_that_moves_with_the_last_bits_tells_nothing_apart(
    lost: float, before: float, scores: tuple[float | None, float | None], tells: bool
) -> None:
    losses = np.full(4, before)
    assert tells_apart(losses + lost, losses, *scores) is tells
