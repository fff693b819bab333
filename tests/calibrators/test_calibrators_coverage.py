"""Whether calibration samples are enough: from the largest magnitude of each sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.calibrators.coverage import excesses, growth, share_above, stretches
from qdebug.calibrators.gather import histogram_of


def test_growth_follows_the_running_maximum() -> None:
    amax = {"a": np.array([1.0, 2.0, 1.5, 4.0, 4.0]), "b": np.array([5.0, 1.0, 1.0, 1.0, 1.0])}
    found = growth(amax)
    assert found.samples == (1, 2, 4, 5)
    assert found.lowest == (0.25, 0.5, 1.0, 1.0)
    assert found.median == (0.625, 0.75, 1.0, 1.0)
    assert found.enough == 4


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0, 0.0]])
def test_growth_of_nothing(values: list[float]) -> None:
    found = growth({"a": np.array(values)})
    assert all(value == 1.0 for value in found.median)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_growth_never_shrinks_and_ends_whole(values: list[float]) -> None:
    found = growth({"a": np.array(values)})
    assert list(found.median) == sorted(found.median)
    assert found.median[-1] == 1.0
    assert found.samples[-1] == len(values)
    assert found.enough in (*found.samples, 1)
    assert found.lowest == found.median  # there is one tensor only


def test_one_sample_that_stretches_a_range_is_named() -> None:
    amax = {"a": np.array([1.0, 9.0, 2.0]), "b": np.array([1.0, 1.2, 1.1]), "c": np.array([3.0])}
    found = stretches(amax, np.array([10, 20, 30]))
    assert [(s.tensor, s.sample, s.amax, s.without) for s in found] == [("a", 20, 9.0, 2.0)]


def test_excess_over_the_calibrated_range() -> None:
    held_out = {"a": np.array([0.5, 2.0, 3.0, 1.0]), "b": np.array([0.1]), "dead": np.array([0.0])}
    found = excesses({"a": 1.0, "b": 1.0, "dead": 0.0, "unseen": 1.0}, held_out)
    assert [(e.tensor, e.ratio, e.samples_beyond) for e in found] == [
        ("a", 3.0, 0.5),
        ("dead", 1.0, 0.0),
        ("b", 0.1, 0.0),
    ]
    assert excesses({"dead": 0.0}, {"dead": np.array([1.0])})[0].ratio == np.inf


@pytest.mark.parametrize("amax", [0.1, 0.5, 1.0, 2.0, 3.5])
def test_share_above_is_that_of_the_values(amax: float) -> None:
    values = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    found = share_above(histogram_of(values), amax)
    assert found == pytest.approx(float(np.mean(np.abs(values) > amax)), rel=0.03, abs=2e-5)


def test_share_above_is_exact_where_the_range_holds_all() -> None:
    values = np.array([0.0, -3.0, 1.0], np.float32)
    assert share_above(histogram_of(values), 3.0) == 0.0
    assert share_above(histogram_of(np.zeros(0, np.float32)), 1.0) == 0.0
