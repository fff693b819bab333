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


def test_another_order_of_the_same_is_told_apart() -> None:
    right = [[3, 2, 1, 0], [3, 2.5, 1, 0]]
    got = flips(right, [[3, 2, 1, 0], [2.4, 2.5, 1, 0]], count=2, ordered=True)
    assert (got.total, got.flipped, got.reordered, got.sample) == (2, 0, 1, 11)
    assert (got.margin, got.moved) == (0.5, pytest.approx(0.6, abs=1e-6))
    cause = flip_cause(got)
    assert cause.label == "index-flip" and cause.share == 0.5 and "order" in cause.brief
    assert flips(right, [[2, 3, 1, 0], [3, 2.5, 1, 0]], count=2).reordered == 0  # not sorted
    # A set that differs is what is told, whichever batch it is in.
    got.add(np.array([[3.0, 2, 1, 0]]), np.array([[3.0, 0, 1, 2]]), 20)
    assert (got.flipped, got.reordered, got.sample, got.margin) == (1, 1, 20, 1.0)
    assert flip_cause(got).share == pytest.approx(1 / 3) and not flip_cause(got).brief


@pytest.mark.parametrize("first", [0, 1])
def test_what_was_counted_elsewhere_is_told_alike(first: int) -> None:
    """A set that differs is told before an order that does, whichever comes first."""
    rows = [[[3.0, 2, 1, 0]], [[3.0, 2, 1, 0]]], [[[2.0, 3, 1, 0]], [[3.0, 0, 1, 2]]]
    parts = []
    for k in (first, 1 - first):
        part = Flips(Decision("d", "TopK", "s", 1, count=2, ordered=True))
        part.add(np.array(rows[0][k]), np.array(rows[1][k]), 10 + k)
        parts.append(part)
    assert parts[0].merge(parts[1])
    got = parts[0]
    assert (got.total, got.flipped, got.reordered, got.sample) == (2, 1, 1, 11)


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


def test_a_tie_is_no_lead() -> None:
    """-0 is what a difference of equal scores may be."""
    smallest = flips([[2, 2, 7]], [[2.5, 2.25, 7]], largest=False)
    assert smallest.flipped and "is equal to the next one" in smallest.evidence
    tied = flips([[1.0, 1.0, 0.5]], [[0.5, 1.0, 1.5]])
    assert str(tied.margin) == "0.0" and "-0" not in tied.evidence
    swapped = flips([[2.0, 2.0, 0]], [[1.0, 2.0, 0]], count=2, ordered=True)
    assert "are equal, and a score moved by 1" in swapped.evidence
