"""The calibrators by name."""

from __future__ import annotations

import numpy as np
import pytest

from qdebug.calibrators.accumulate import histogram_of
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.methods import METHODS, parse_method
from qdebug.errors import UsageError

GAUSS = np.random.default_rng(0).normal(size=200_000).astype(np.float32)


def test_minmax_is_the_exact_amax() -> None:
    method = parse_method("minmax")
    assert (method.name, method.amax(histogram_of(GAUSS))) == ("minmax", np.abs(GAUSS).max())


@pytest.mark.parametrize(
    ("text", "name", "percentile"),
    [("percentile", "percentile:99.99", 99.99), ("percentile:99.9", "percentile:99.9", 99.9),
     ("percentile:100", "percentile:100", 100), ("percentile:1e1", "percentile:10", 10)],
)  # fmt: skip
def test_percentile(text: str, name: str, percentile: float) -> None:
    method = parse_method(text)
    assert method.name == name
    exact = np.percentile(np.abs(GAUSS), percentile)
    assert method.amax(histogram_of(GAUSS)) == pytest.approx(exact, rel=0.008)


def test_each_registered_method_gives_a_usable_range() -> None:
    sparse = np.zeros(100_000, np.float32)
    sparse[:3] = [0.5, -2, 1]
    for name in METHODS:
        amax = parse_method(name).amax
        assert amax(TensorHistogram()) == 0
        assert amax(histogram_of(np.zeros(5, np.float32))) == 0
        assert amax(histogram_of(np.array([7.0], np.float32))) == 7
        # fewer values than the percentile leaves out are not zero, and must not all clip
        assert amax(histogram_of(sparse)) == pytest.approx(2, rel=0.01)  # mse: -2 may be code -128


@pytest.mark.parametrize(
    "text", ["percentile:0", "percentile:101", "percentile:x", "percentile:nan"]
)
def test_no_percentile(text: str) -> None:
    with pytest.raises(UsageError, match="is no percentile"):
        parse_method(text)


@pytest.mark.parametrize(("text", "hint"), [("min-max", "minmax"), ("percentil", "percentile")])
def test_unknown_method(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"unknown calibrator '{text}'") as caught:
        parse_method(text)
    assert f"Did you mean '{hint}'?" in caught.value.hint
    with pytest.raises(UsageError, match="unknown calibrator 'minmax:3'"):
        parse_method("minmax:3")
