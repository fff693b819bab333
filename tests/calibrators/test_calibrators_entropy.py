"""Entropy calibration against an independent, slow, literal implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdebug.calibrators.entropy import divergences, entropy_amax, linear_bins
from qdebug.calibrators.gather import histogram_of

N = 60_000
DATA: dict[str, Any] = {
    "gauss": lambda r: r.normal(size=N),
    "laplace": lambda r: r.laplace(size=N),
    "half-normal": lambda r: np.abs(r.normal(size=N)),
    "relu": lambda r: np.maximum(r.normal(size=N), 0),
    "bimodal": lambda r: np.concatenate([r.normal(-4, 0.5, N // 2), r.normal(3, 1, N // 2)]),
    "outliers": lambda r: np.concatenate([r.normal(size=N), [20, 30, -40, 50, 60]]),
    "images": lambda r: r.integers(0, 256, N) / 255,
    "few": lambda r: r.normal(size=2000),
}


def literal_divergences(bins: Any) -> list[float]:
    """KL(P || Q) for every number of bins kept, step by step as it is written down."""
    bins = bins.astype(float)
    bins[0] = bins[1]
    found = []
    for kept in range(128, 2049):
        p = bins[:kept].copy()
        p[-1] += bins[kept:].sum()
        level = np.arange(kept) * 128 // kept
        total, full = np.bincount(level, bins[:kept]), np.bincount(level, bins[:kept] > 0)
        q = np.where(bins[:kept] > 0, total[level] / np.maximum(full[level], 1), 0.0)
        found.append(_kl(p, q))
    return found


def _kl(p: Any, q: Any) -> float:
    if q.sum() == 0 or np.any((p > 0) & (q == 0)):
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / q[some])))


def _exact_bins(values: Any) -> Any:
    magnitude = np.abs(values.astype(np.float64))
    return np.histogram(magnitude, 2048, range=(0, magnitude.max()))[0]


@pytest.fixture(scope="module", params=DATA)
def case(request: pytest.FixtureRequest) -> tuple[Any, list[float]]:
    values = DATA[request.param](np.random.default_rng(1)).astype(np.float32)
    return values, literal_divergences(_exact_bins(values))


def test_divergences_are_those_of_the_literal_implementation(case: Any) -> None:
    values, literal = case
    bins = _exact_bins(values)
    counted = bins.sum() - bins[0] + bins[1]
    np.testing.assert_allclose(
        divergences(bins.astype(np.float64)) / counted, literal, rtol=1e-9, atol=1e-12
    )


def test_the_range_is_the_literal_one_or_as_good(case: Any) -> None:
    values, literal = case
    histogram = histogram_of(values)
    step = histogram.amax / 2048
    expected = np.max(np.flatnonzero(np.array(literal) <= min(literal) + 1e-13)) + 128
    found = round(entropy_amax(histogram) / step)
    assert entropy_amax(histogram) == pytest.approx(found * step)
    if found != expected:  # the minimum is flat: what differs is decided by single counts
        assert found == pytest.approx(expected, rel=0.15)
        assert literal[found - 128] <= 1.02 * min(literal)


def test_linear_bins_are_close_to_exact_ones(case: Any) -> None:
    values, _ = case
    exact, found = _exact_bins(values), linear_bins(histogram_of(values))
    assert found.sum() == exact.sum()
    assert np.all(found >= 0)
    assert np.all(found == np.rint(found))
    # a bin's edge falls into one of the histogram's bins, which are at most as wide
    assert np.abs(np.cumsum(found) - np.cumsum(exact)).max() <= max(exact[1:].max(), 2)


def test_discrete_data_have_exact_linear_bins() -> None:
    values = np.random.default_rng(0).integers(0, 1000, 50_000).astype(np.float32)
    np.testing.assert_array_equal(linear_bins(histogram_of(values)), _exact_bins(values))


@pytest.mark.parametrize("seed", range(5))
def test_a_few_values_often_repeated_have_exact_linear_bins(seed: int) -> None:
    """As of a tensor that hardly depends on the input."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 40))
    magnitudes = np.cumprod(rng.uniform(1.02, 1.4, count))  # over two bins apart
    values = np.repeat(magnitudes * rng.choice([-1, 1], count), rng.integers(1, 60, count))
    values = values.astype(np.float32)
    np.testing.assert_array_equal(linear_bins(histogram_of(values)), _exact_bins(values))


def test_outliers_are_clipped_and_two_values_are_not() -> None:
    rng = np.random.default_rng(0)
    values = np.append(rng.normal(size=200_000), 60).astype(np.float32)
    assert 3 < entropy_amax(histogram_of(values)) < 8
    assert entropy_amax(histogram_of(np.array([1.0, 3.3], np.float32))) == np.float32(3.3)
