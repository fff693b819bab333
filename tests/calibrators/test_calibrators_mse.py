"""mse: the least squared error there is, measured by quantizing the values themselves."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.mse import SquaredError, mse_amax
from qdebug.calibrators.registry import parse_method
from qdebug.formats.registry import INT8
from qdebug.plan.quantize import scale_of

N = 100_000
OTHERS = ("minmax", "percentile", "percentile:99", "percentile:99.9", "percentile:99.999",
          "entropy", "mean-max")  # fmt: skip
SMOOTH: dict[str, Any] = {
    "gauss": lambda r: r.normal(size=N),
    "laplace": lambda r: r.laplace(size=N),
    "half-normal": lambda r: np.abs(r.normal(size=N)),
    "negative": lambda r: -np.abs(r.laplace(size=N)),
    "relu": lambda r: np.maximum(r.normal(size=N), 0),
    "relu6": lambda r: np.clip(r.normal(size=N) * 3, 0, 6),
    "bimodal": lambda r: np.concatenate([r.normal(-4, 0.5, N // 2), r.normal(3, 1, N // 2)]),
    "outliers": lambda r: np.concatenate([r.normal(size=N), [20, 30, -40, 50, 60]]),
    "student": lambda r: r.standard_t(2, size=N),
    "softmax": lambda r: np.exp(r.normal(size=N) * 3 - 10),
    "uniform": lambda r: r.uniform(-3, 5, N),
    "sparse": lambda r: np.where(r.uniform(size=N) < 0.999, 0, r.normal(size=N)),
    "half floats": lambda r: r.normal(size=N).astype(np.float16),
    "few": lambda r: r.normal(size=50),
}
DISCRETE: dict[str, Any] = {
    "images": lambda r: r.integers(0, 256, N) / 255,
    "normalised images": lambda r: (r.integers(0, 256, N) / 255 - 0.485) / 0.229,
    "counts": lambda r: np.minimum(r.geometric(0.1, N), 90),
    "counts and an outlier": lambda r: np.append(r.integers(0, 256, N), 10_000),
    "mask": lambda r: r.integers(0, 2, N),
    "attention mask": lambda r: r.integers(0, 2, N) * -3.4e38,
    "three values": lambda r: r.choice([1.0, 3.3, -2.1], N),
    "int8": lambda r: r.integers(-128, 128, N) * 0.037,
    "spikes": lambda r: np.where(r.uniform(size=N) < 0.7, 0.731, r.laplace(size=N)),
}
DATA = SMOOTH | DISCRETE


def _true_error(values: Any, amax: float) -> float:
    difference = INT8.quantize(values, scale_of(amax)).astype(np.float64) - values
    return float(np.sum(difference * difference))


def _case(name: str) -> tuple[Any, TensorHistogram]:
    values = DATA[name](np.random.default_rng(2)).astype(np.float32)
    parts = [histogram_of(part) for part in np.array_split(values, 5)]
    return values, reduce(TensorHistogram.merge, parts)


@pytest.mark.parametrize("name", DATA)
def test_never_worse_than_the_others(name: str) -> None:
    values, histogram = _case(name)
    error = _true_error(values, mse_amax(histogram))
    for other in OTHERS:
        theirs = _true_error(values, parse_method(other).amax(histogram))
        assert error <= theirs * 1.001 + 1e-13 * histogram.total_sq, other


@pytest.mark.parametrize("name", DATA)
def test_no_range_up_to_amax_is_better(name: str) -> None:
    values, histogram = _case(name)
    error = _true_error(values, mse_amax(histogram))
    searched = [_true_error(values, histogram.amax * r) for r in np.geomspace(0.02, 1, 200)[:-1]]
    assert error <= min(searched) * 1.002 + 1e-13 * histogram.total_sq


@pytest.mark.parametrize("name", DATA)
def test_expected_errors_are_the_true_ones(name: str) -> None:
    values, histogram = _case(name)
    ranges = [histogram.amax * ratio for ratio in (0.11, 0.3, 0.62, 0.87, 0.9, 0.95, 1.0)]
    expected = SquaredError(histogram, INT8).of(np.array(ranges))
    floor = 1e-6 * histogram.total_sq / 127**2
    for amax, error in zip(ranges, expected, strict=True):
        assert error == pytest.approx(_true_error(values, amax), rel=0.02, abs=floor)


@settings(deadline=None, max_examples=100)
@given(
    values=hnp.arrays(
        np.float32,
        st.integers(1, 40),
        elements=st.floats(-(2.0**20), 2.0**20, width=32).filter(lambda v: not 0 < abs(v) < 1e-9),
    )
)
def test_never_worse_on_any_few_values(values: Any) -> None:
    histogram = histogram_of(values)
    error = _true_error(values, mse_amax(histogram))
    floor = 1e-4 * len(values) * (histogram.amax / 127) ** 2 / 12  # what one bin can hide
    for other in ("minmax", "percentile:90", "entropy"):
        assert error <= _true_error(values, parse_method(other).amax(histogram)) * 1.02 + floor


def test_data_on_a_grid_of_int8_keep_it() -> None:
    codes = np.random.default_rng(0).integers(-128, 128, N)
    codes[0] = -128
    histogram = histogram_of((codes * 0.037).astype(np.float32))
    assert mse_amax(histogram) == pytest.approx(127 * 0.037, rel=1e-6)  # not 128 · 0.037
    levels = np.random.default_rng(0).integers(0, 101, N) / 100
    assert mse_amax(histogram_of(levels)) == pytest.approx(1.27)  # a step of 0.01
    assert mse_amax(histogram_of(np.array([0, 1, 1, 0], np.float32))) == 1
