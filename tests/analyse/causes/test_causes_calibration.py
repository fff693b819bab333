"""Whether ranges fit the values, read off figures alone."""

from __future__ import annotations

import pytest

from qdebug.analyse.causes.calibration import Fitted, RangeFit


def fit(ratios: list[float], **how: bool) -> RangeFit:
    """Ranges so many times as wide as their values; the first is that of an input."""
    usual = {"calibrated": False, "clips": False, **how}
    return RangeFit(
        {f"t{i}": Fitted(r, 1.0, is_input=i == 0, **usual) for i, r in enumerate(ratios)}
    )


@pytest.mark.parametrize(
    "ratios",
    [
        [1.0, 0.9, 1.2, 1.4, 0.8, 1.0],
        [1.0, 8.0, 1.0, 1.0, 1.0, 1.0],
        [1 / 8, 1.0, 1.0, 1.0, 1.0, 1.0],
        [8.0, 8.0],
    ],
    ids=["a good one", "one range too wide", "an input too narrow", "too few to tell"],
)
def test_a_calibration_that_may_be_of_this_network(ratios: list[float]) -> None:
    assert not fit(ratios).stale


@pytest.mark.parametrize(
    ("ratios", "told"),
    [
        ([255.0, 240.0, 260.0, 250.0], "255 times"),
        ([1.0, 3.0, 0.2, 5.0, 1.0, 0.4, 1.0], "4 of 7"),
        ([1.0, 4.0, 4.1, 3.9, 4.0, 4.0], "factor of about 4"),
    ],
    ids=["a factor", "another network", "a factor behind the input"],
)
def test_a_calibration_of_something_else(ratios: list[float], told: str) -> None:
    assert told in fit(ratios).stale


def test_what_was_calibrated_here_is_not_of_another_network() -> None:
    off = [1.0, 3.0, 0.2, 5.0, 1.0, 0.4, 1.0]
    assert not fit(off, calibrated=True).stale
    assert "255 times" in fit([255.0, 1.0, 1.0], calibrated=True).stale


def test_a_calibrator_may_cut_what_minmax_would_hold() -> None:
    cut = [1.0, 0.3, 0.2, 0.25, 0.3]
    assert not fit(cut, clips=True).stale
    assert fit(cut).stale


def test_few_samples_tell_less_of_a_range() -> None:
    assert RangeFit({}, samples=4).wide > RangeFit({}, samples=16).wide > fit([255.0] * 3).wide > 1
