"""What of a score, and of its change, may be chance."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.stats import binomtest

from qdebug.metrics.uncertainty import groups_of, of_groups, of_mean, of_noise, of_share


def rights(both: int, lost: int, won: int, neither: int) -> tuple[Any, Any]:
    before = np.repeat([1.0, 1.0, 0.0, 0.0], [both, lost, won, neither])
    after = np.repeat([1.0, 0.0, 1.0, 0.0], [both, lost, won, neither])
    return before, after


def test_the_interval_of_a_share_is_wilsons() -> None:
    before, after = rights(80, 5, 3, 12)
    found = of_share(before, after)
    expected = binomtest(83, 100).proportion_ci(method="wilson")
    assert found.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (5, 0), (12, 4), (3, 3)])
def test_the_test_is_mcnemars(lost: int, won: int) -> None:
    found = of_share(*rights(50, lost, won, 20))
    low, high = found.change
    assert low <= (won - lost) / (70 + lost + won) <= high and high - low > 0.01
    expected = binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert found.p_value == pytest.approx(expected)


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_intervals_hold_what_is_true_as_often_as_they_say(drop: float) -> None:
    """Of many sets of samples of known shares: about 95 % of the intervals hold the true change."""
    random, held, tries = np.random.default_rng(0), 0, 300
    for _ in range(tries):
        before = (random.random(80) < 0.8).astype(float)
        flips = random.random(80)
        after = np.where(flips < 0.05, 1 - before, before)
        after = np.where((before == 1) & (flips > 1 - drop / 0.8), 0.0, after)
        true = -drop + 0.05 * (0.2 - 0.8)
        low, high = of_share(before, after).change
        held += low <= true <= high
    assert 0.9 <= held / tries <= 0.99


def test_a_mean_is_judged_in_pairs() -> None:
    random = np.random.default_rng(0)
    before = random.normal(10, 5, 200)
    changes = 0.05 * random.standard_normal(200) - 0.1
    found = of_mean(before, before + changes)
    half = 1.96 * changes.std() / np.sqrt(200)
    expected = changes.mean() - half, changes.mean() + half
    assert found.change == pytest.approx(expected, abs=0.1 * half)
    assert found.p_value is not None and found.p_value < 0.01
    same = of_mean(before, before + changes - changes.mean())
    assert same.p_value is not None and same.p_value > 0.5
    assert of_mean(before, before).p_value == 1


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    random = np.random.default_rng(0)
    values, reference = random.standard_normal(12), np.zeros(12)
    sets = groups_of(12, 12)
    left_out = np.array([values[rows].mean() for rows in sets])
    change = float(values.mean())
    found = of_groups(change, change, left_out, reference)
    error = values.std(ddof=1) / np.sqrt(12)
    assert found is not None
    half = (found.interval[1] - found.interval[0]) / 2
    assert half == pytest.approx(2.200985 * error)  # Student's t with 11 degrees of freedom
    assert found.change == pytest.approx(found.interval)
    assert of_groups(0, 0, np.zeros(0), np.zeros(0)) is None


@given(st.integers(0, 999), st.floats(0.001, 0.1))
def test_an_interval_of_a_change_says_what_its_p_says(seed: int, spread: float) -> None:
    """Scores that go up and down together, as those of two models on the same samples do."""
    rng = np.random.default_rng(seed)
    before = np.clip(0.9 + rng.normal(scale=0.02, size=20), 0, 1)
    after = np.clip(before - 0.01 + rng.normal(scale=spread / 20, size=20), 0, 1)
    found = of_groups(after.mean(), after.mean() - before.mean(), after, before, (0.0, 1.0))
    assert found is not None and found.p_value is not None
    assert (found.change[0] <= 0 <= found.change[1]) == (found.p_value >= 0.05)


@pytest.mark.parametrize("scores", [(0.4, 0.9), (0.02, 0.3), (0.98, 0.7), (1.0, 1.0), (0.0, 0.5)])
def test_an_interval_stays_within_the_bounds_of_a_score(scores: tuple[float, float]) -> None:
    """Of two boxes, each left out in turn: Student's t has one degree of freedom there."""
    before, after = np.array([0.3, 0.9]), np.array(scores)
    whole, reference = float(after.mean()), float(before.mean())
    found = of_groups(whole, whole - reference, after, before, (0.0, 1.0))
    assert found is not None
    low, high = found.interval
    assert 0 <= low <= whole <= high <= 1 and high - low > 0.05
    assert -1 <= found.change[0] <= whole - reference <= found.change[1] <= 1
    truth = of_groups(whole, whole - 1, after, np.ones(2), (0.0, 1.0), is_truth=True)
    assert truth is not None
    assert truth.change == pytest.approx([x - 1 for x in truth.interval])
    assert truth.interval == ((1, 1) if scores == (1.0, 1.0) else found.interval)


def test_an_interval_within_bounds_is_the_jackknifes_where_there_are_many_samples() -> None:
    """And Wilson's, where the score is a share; in other bounds it is the same, stretched."""
    random = np.random.default_rng(0)
    rights = (random.random(4000) < 0.6).astype(float)
    left_out = np.array([rights[rows].mean() for rows in groups_of(4000, 400)])
    score, zeros = float(rights.mean()), np.zeros(400)
    plain = of_groups(score, score, left_out, zeros)
    found = of_groups(score, score, left_out, zeros, (0.0, 1.0))
    wide = of_groups(2 * score - 1, 2 * score, 2 * left_out - 1, 2 * zeros - 1, (-1.0, 1.0))
    assert plain is not None and found is not None and wide is not None
    assert found.interval == pytest.approx(plain.interval, abs=1e-3)
    wilson = binomtest(int(rights.sum()), 4000).proportion_ci(method="wilson")
    assert found.interval == pytest.approx((wilson.low, wilson.high), abs=2e-3)
    assert wide.interval == pytest.approx([2 * x - 1 for x in found.interval])


def test_every_sample_is_left_out_once() -> None:
    sets = groups_of(30, 12)
    missing = [set(range(30)) - set(rows.tolist()) for rows in sets]
    assert len(sets) == 12 and sorted(n for one in missing for n in one) == list(range(30))
    assert groups_of(1, 12) == []


def test_groups_of_alternating_samples_are_alike() -> None:
    """Of frames by day, which are right, and by night, of which a fifth is."""
    rights = np.tile([1.0, 0.2, 1.0, 0.2, 0.9, 0.3], 28)
    left_out = np.array([rights[rows].mean() for rows in groups_of(len(rights), 12)])
    score = float(rights.mean())
    found = of_groups(score, 0.0, left_out, left_out, (0.0, 1.0))
    assert found is not None
    error = float(rights.std(ddof=1)) / len(rights) ** 0.5
    assert (found.interval[1] - found.interval[0]) / 2 < 1.5 * 2.2 * error


def test_the_interval_of_noise_holds_what_is_true_as_often_as_it_says() -> None:
    """Of many sets of samples of which two outputs have noises of 0.01 and 0.03 on average."""
    random, held, tries = np.random.default_rng(0), 0, 100
    for _ in range(tries):
        signals = random.gamma(4.0, size=(2, 40))
        errors = signals * random.gamma(2.0, size=(2, 40)) * [[0.005], [0.015]]
        low, high = of_noise(np.stack([errors, signals], axis=1)) or (0.0, 0.0)
        held += low <= 0.02 <= high
    assert 0.86 <= held / tries <= 1.0


def test_noise_of_one_sample_or_of_nan_has_no_interval() -> None:
    assert of_noise(np.ones((1, 2, 1))) is None
    assert of_noise(np.array([[[np.inf, 1.0], [1.0, 1.0]]])) is None
