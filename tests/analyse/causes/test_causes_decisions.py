"""Decisions that flip, counted on scores that are written down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.analyse.causes.decisions import Decision, Flips, flip_cause

NAN = float("nan")


def flips(right: list[list[float]], found: list[list[float]], **how: object) -> Flips:
    counted = Flips(Decision("d", "ArgMax", "s", 1, **how))
    counted.add(np.array(right, np.float32), np.array(found, np.float32), 10)
    return counted


def test_the_first_flip_is_told_with_its_margin() -> None:
    got = flips([[1, 0, 0], [0, 2, 1.5], [3, 2, 1]], [[1, 0, 0], [0, 1.5, 2], [1, 2, 3]])
    assert (got.total, got.flipped, got.sample) == (3, 2, 11)
    assert (got.margin, got.moved) == (0.5, 0.5)
    assert flip_cause(got).share == pytest.approx(2 / 3)


def test_the_order_of_the_chosen_does_not_matter() -> None:
    assert flips([[3, 2, 1, 0]], [[2, 3, 1, 0]], count=2).flipped == 0
    assert flips([[3, 2, 1, 0]], [[3, 1, 2, 0]], count=2).flipped == 1


def test_smallest_and_undefined_scores() -> None:
    assert flips([[1, 0, 5]], [[1, 0, 0.5]], largest=False).flipped == 0
    assert flips([[1, 0, 5]], [[-1, 0, 5]], largest=False).flipped == 1
    assert flips([[1, NAN]], [[0, 1]]).total == 0


def test_a_batch_counts_once() -> None:
    got = flips([[1, 0]], [[0, 1]])
    got.add(np.array([[1, 0]]), np.array([[0, 1]]), 10)
    assert (got.total, got.flipped) == (1, 1)


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8), st.integers(1, 7))
def test_equal_scores_never_flip(scores: list[float], count: int) -> None:
    count = min(count, len(scores))
    assert flips([scores], [scores], count=count).flipped == 0
