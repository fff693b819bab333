"""The calibrators that choose a range for a number format, in other formats than INT8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdebug.calibrators.entropy import divergences, entropy_amax, linear_bins
from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.mse import SquaredError, mse_amax
from qdebug.calibrators.registry import CALIBRATORS, parse_method
from qdebug.calibrators.weights import mse_weight_amax, weight_amax
from qdebug.formats.base import Format
from qdebug.formats.registry import FP8_E4M3, FP8_E5M2, INT16

N = 50_000
DATA: dict[str, Any] = {
    "gauss": lambda r: r.normal(size=N),
    "laplace": lambda r: r.laplace(size=N),
    "negative": lambda r: -np.abs(r.laplace(size=N)),
    "relu": lambda r: np.maximum(r.normal(size=N), 0),
    "outliers": lambda r: np.concatenate([r.normal(size=N), [20, 30, -40, 50, 60]]),
    "student": lambda r: r.standard_t(2, size=N),
    "softmax": lambda r: np.exp(r.normal(size=N) * 3 - 10),
    "few": lambda r: r.normal(size=2000),
}
FLOATS = pytest.mark.parametrize("form", [FP8_E4M3, FP8_E5M2], ids=lambda f: f.name)


def true_error(values: Any, amax: float, form: Format) -> float:
    lost = form.quantize(values, form.scale_of(amax)).astype(np.float64) - values
    return float(np.sum(lost * lost))


@FLOATS
@pytest.mark.parametrize("name", DATA)
def test_mse_expects_the_error_that_the_format_makes(name: str, form: Format) -> None:
    values = DATA[name](np.random.default_rng(3)).astype(np.float32)
    histogram = histogram_of(values)
    ranges = histogram.amax * np.array([1.0, 0.7, 0.3])
    expected = [true_error(values, amax, form) for amax in ranges]
    found = SquaredError(histogram, form).of(ranges)
    floor = 1e-9 * histogram.total_sq
    np.testing.assert_allclose(found, expected, rtol=0.03, atol=floor)


@FLOATS
@pytest.mark.parametrize("name", DATA)
def test_no_range_up_to_amax_is_better_than_that_of_mse(name: str, form: Format) -> None:
    values = DATA[name](np.random.default_rng(4)).astype(np.float32)
    histogram = histogram_of(values)
    error = true_error(values, mse_amax(histogram, form), form)
    tried = histogram.amax * 2.0 ** -np.linspace(0, 4, 97)
    least = min(true_error(values, amax, form) for amax in tried)
    assert error <= 1.02 * least + 1e-9 * histogram.total_sq


@pytest.mark.parametrize("name", ["gauss", "relu", "few", "outliers"])
def test_entropy_counts_the_levels_of_fp8(name: str) -> None:
    """Against the divergence, step by step as it is written down."""
    values = DATA[name](np.random.default_rng(1)).astype(np.float32)
    bins = linear_bins(histogram_of(values))
    found = divergences(bins, FP8_E4M3)
    bins[0] = bins[1]
    codes = FP8_E4M3.magnitudes
    for kept in (128, 500, 1333, 2048):
        starts = np.ceil((codes[1:] + codes[:-1]) / 2 / 448 * kept)
        level = np.searchsorted(starts, np.arange(kept), side="right")
        p = bins[:kept].copy()
        p[-1] += bins[kept:].sum()
        total, full = np.bincount(level, bins[:kept]), np.bincount(level, bins[:kept] > 0)
        q = np.where(bins[:kept] > 0, total[level] / np.maximum(full[level], 1), 0.0)
        some = p > 0
        if np.any(q[some] == 0):
            assert found[kept - 128] == np.inf
            continue
        p, q = p / p.sum(), q / q.sum()
        expected = bins.sum() * np.sum(p[some] * np.log(p[some] / q[some]))
        assert found[kept - 128] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_16_bits_have_nothing_to_win_by_clipping() -> None:
    values = np.random.default_rng(0).laplace(size=10_000).astype(np.float32)
    histogram = histogram_of(values)
    for function in (mse_amax, entropy_amax):
        assert function(histogram, form=INT16) == histogram.amax


def test_a_method_by_name_is_that_of_the_format() -> None:
    values = np.random.default_rng(0).standard_t(2, size=50_000).astype(np.float32)
    histogram = histogram_of(values)
    for method in CALIBRATORS:
        plain, fp8 = (parse_method(method.name, f).amax(histogram) for f in (None, FP8_E4M3))
        assert (plain != fp8) == method.by_format, method.name


@FLOATS
def test_weights_by_channel(form: Format) -> None:
    rng = np.random.default_rng(0)
    weight = (rng.standard_t(3, size=(6, 300)) * rng.uniform(0.1, 5, (6, 1))).astype(np.float32)
    best, largest = mse_weight_amax(weight, 0, form), weight_amax(weight, 0)
    assert np.all(best <= largest)
    for row, one, most in zip(weight, best, largest, strict=True):
        assert true_error(row, one, form) <= true_error(row, most, form) * (1 + 1e-6)
