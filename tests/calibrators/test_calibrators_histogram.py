"""Histograms: exact extremes, percentiles to one bin, the same over any partition."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.histogram import TensorHistogram

BIN = 2.0**-7 * 1.001
ANY = hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))
FINITE = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def _assert_same(a: TensorHistogram, b: TensorHistogram) -> None:
    for name in ("low", "high", "count", "zeros", "nan_count", "inf_count", "amax"):
        assert getattr(a, name) == getattr(b, name), name
    scale = math.sqrt(a.total_sq * max(a.count, 1))
    assert math.isclose(a.total, b.total, rel_tol=1e-12, abs_tol=1e-12 * scale)
    assert math.isclose(a.total_sq, b.total_sq, rel_tol=1e-12)
    np.testing.assert_array_equal(a.bins, b.bins)
    if len(a.bins):
        assert a.first_bin == b.first_bin


@settings(deadline=None, max_examples=200)
@given(values=ANY, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_any_partition_gives_the_same(values: Any, cuts: list[int]) -> None:
    parts = [histogram_of(part) for part in np.split(values, sorted(cuts))]
    whole = histogram_of(values)
    _assert_same(reduce(TensorHistogram.merge, parts, TensorHistogram()), whole)
    _assert_same(reduce(lambda a, b: b.merge(a), parts), whole)


@settings(deadline=None, max_examples=200)
@given(values=ANY)
def test_counts_and_extremes_are_exact(values: Any) -> None:
    found = histogram_of(values)
    finite = values[np.isfinite(values)]
    assert found.count == finite.size == found.bins.sum()
    assert found.nan_count == np.isnan(values).sum()
    assert found.inf_count == np.isinf(values).sum()
    assert found.zeros == (finite == 0).sum()
    if finite.size:
        assert (found.low, found.high) == (finite.min(), finite.max())
        assert found.amax == np.abs(finite).max()
        edges = found.edges()
        assert edges[0] <= np.abs(finite).min()
        assert np.abs(finite).max() < edges[-1]
        assert found.bins[0] > 0
        assert found.bins[-1] > 0
    else:
        assert found.amax == 0


def _neighbours(values: Any, percentile: float) -> tuple[float, float]:
    """The order statistics that numpy.percentile interpolates between."""
    ordered = np.sort(np.abs(values.astype(np.float64)))
    position = percentile / 100 * (len(ordered) - 1)
    return ordered[math.floor(position)], ordered[min(math.ceil(position), len(ordered) - 1)]


@settings(deadline=None, max_examples=300)
@given(values=FINITE, percentile=st.floats(0.001, 100))
def test_percentile_is_within_one_bin_of_numpys(values: Any, percentile: float) -> None:
    found = histogram_of(values).magnitude_percentile(percentile)
    low, high = _neighbours(values, percentile)
    exact = np.percentile(np.abs(values.astype(np.float64)), percentile)
    step = high * BIN + 2.0**-133  # the bin of the denormals is that wide
    assert low - step <= found <= high + step
    assert abs(found - exact) <= step
    assert found <= np.abs(values).max()


DATA = {
    "gauss": lambda r: r.normal(size=100_000),
    "laplace": lambda r: r.laplace(size=100_000),
    "relu": lambda r: np.maximum(r.normal(size=100_000), 0),
    "uniform": lambda r: r.uniform(-3, 5, 100_000),
    "outliers": lambda r: np.concatenate([r.normal(size=100_000), [1e6, -3e7]]),
    "constant": lambda r: np.full(1000, -2.7),
    "zero": lambda r: np.zeros(1000),
    "one": lambda r: np.array([3.3]),
    "two": lambda r: np.array([1.0, 3.3]),
    "denormal": lambda r: r.normal(size=10_000) * 1e-41,
    "huge": lambda r: r.uniform(-1, 1, 10_000) * 3.4e38,
}


@pytest.mark.parametrize("percentile", [50, 90, 99, 99.9, 99.99, 99.999, 100])
@pytest.mark.parametrize("name", DATA)
def test_percentile_of_distributions(name: str, percentile: float) -> None:
    values = DATA[name](np.random.default_rng(0)).astype(np.float32)
    parts = [histogram_of(part) for part in np.array_split(values, 7)]
    found = reduce(TensorHistogram.merge, parts).magnitude_percentile(percentile)
    exact = np.percentile(np.abs(values.astype(np.float64)), percentile)
    assert found == pytest.approx(exact, rel=0.01, abs=1e-40)


@pytest.mark.parametrize("name", DATA)
def test_percentile_100_is_the_exact_amax(name: str) -> None:
    values = DATA[name](np.random.default_rng(0)).astype(np.float32)
    found = histogram_of(values)
    assert found.magnitude_percentile(100) == found.amax == np.abs(values).max()


def test_an_empty_tensor_and_one_without_finite_values() -> None:
    for values in (np.zeros((0, 3), np.float32), np.array([np.nan, np.inf, -np.inf], np.float32)):
        found = histogram_of(values)
        assert (found.count, found.amax, found.magnitude_percentile(99)) == (0, 0.0, 0.0)
        assert (found.low, found.high) == (math.inf, -math.inf)
    assert (found.nan_count, found.inf_count) == (1, 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_types_shapes_and_layouts(dtype: Any) -> None:
    values = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(dtype)
    found = histogram_of(values)
    _assert_same(found, histogram_of(np.asfortranarray(values)[::-1]))
    assert found.count == 120
    assert histogram_of(np.array(-2.5, dtype)).amax == 2.5


def test_float64_beyond_float32_counts_as_inf() -> None:
    found = histogram_of(np.array([1e300, -1e300, 2.0]))
    assert (found.inf_count, found.count, found.amax) == (2, 1, 2.0)
