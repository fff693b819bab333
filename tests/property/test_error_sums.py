"""Error sums against a naive float64 implementation, and over any partition."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdebug.metrics.sums import ErrorSums, MeasureOptions, error_energy, measure
from qdebug.metrics.tensor import metrics_of

TOTALS = ("abs_err", "sq_err", "ref_sq", "cand_sq")
PEAKS = ("max_abs_err", "ref_amax", "cand_amax")
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
PAIRS = st.tuples(
    st.integers(0, 2**32), SHAPES, st.sampled_from([np.float16, np.float32, np.float64]),
    st.sampled_from([np.float16, np.float32, np.float64]), st.integers(-30, 30),
    st.sampled_from([0.0, 1e-4, 0.1, 1.0]),
)  # fmt: skip


def _pair(case: Any) -> tuple[Any, Any]:
    """A reference and a candidate off by some share, of one magnitude."""
    seed, shape, ref_type, cand_type, exponent, share = case
    rng = np.random.default_rng(seed)
    if np.float16 in (ref_type, cand_type):
        exponent %= 4
    ref = rng.normal(size=shape) * 10.0**exponent
    cand = ref + rng.normal(size=shape) * share * 10.0**exponent
    return ref.astype(ref_type), cand.astype(cand_type)


def _naive(ref: Any, cand: Any) -> dict[str, float]:
    r, c = ref.astype(np.float64).ravel(), cand.astype(np.float64).ravel()
    d = np.abs(r - c)
    return {
        "abs_err": math.fsum(d), "sq_err": math.fsum(d * d), "ref_sq": math.fsum(r * r),
        "cand_sq": math.fsum(c * c), "dot": math.fsum(r * c), "max_abs_err": d.max(),
        "ref_amax": np.abs(r).max(), "cand_amax": np.abs(c).max(),
    }  # fmt: skip


def _assert_close(found: ErrorSums, expected: dict[str, float], rel: float) -> None:
    for name in (*TOTALS, *PEAKS):
        assert math.isclose(getattr(found, name), expected[name], rel_tol=rel), name
    norms = math.sqrt(expected["ref_sq"] * expected["cand_sq"])
    assert math.isclose(found.dot, expected["dot"], rel_tol=rel, abs_tol=rel * norms)


def _precision(ref: Any, cand: Any) -> float:
    fast = ref.dtype == np.float32 and cand.dtype != np.float64
    return 2e-6 if fast else 1e-12


@settings(deadline=None, max_examples=300)
@given(case=PAIRS)
def test_against_a_naive_implementation(case: Any) -> None:
    ref, cand = _pair(case)
    found = measure(ref, cand, samples=len(ref))
    _assert_close(found, _naive(ref, cand), _precision(ref, cand))
    assert found.count == ref.size
    assert (found.nan_count, found.inf_count, found.mismatched_non_finite) == (0, 0, 0)
    energy = found.sq_err
    assert math.isclose(error_energy(ref, cand), energy, rel_tol=4e-6, abs_tol=1e-300)


@pytest.mark.parametrize("shape", [(1, 300_000), (3, 70_001), (200, 1001), (4097,), (5, 4096)])
def test_large_arrays_stay_within_2e_6(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    ref = (rng.normal(size=shape) + 3).astype(np.float32)
    cand = (ref + rng.normal(size=shape) * 1e-3).astype(np.float32)
    _assert_close(measure(ref, cand, samples=len(ref)), _naive(ref, cand), 2e-6)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 1100)),
    axis=st.integers(0, 2),
)
def test_float16_counts_as_its_float32(seed: int, shape: tuple[int, int, int], axis: int) -> None:
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal(shape, np.float32)
    cand = rng.standard_normal(shape).astype(np.float16)
    options = MeasureOptions((-1.0, 1.0), axis)
    found, wide = (
        measure(ref, x, samples=shape[0], options=options) for x in (cand, cand.astype(np.float32))
    )
    for name in ("channel_sq_err", "channel_ref_sq"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wide, name))
    without = {"channel_sq_err": None, "channel_ref_sq": None}
    assert replace(found, **without) == replace(wide, **without)


@settings(deadline=None, max_examples=200)
@given(
    case=PAIRS,
    cuts=st.lists(st.integers(0, 6), max_size=3),
    axis=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_any_partition_gives_the_same(case: Any, cuts: list[int], axis: int, order: Any) -> None:
    ref, cand = _pair((*case[:2], np.float64, np.float64, *case[4:]))
    limit = 10.0 ** case[4]
    channels = 1 + axis % (ref.ndim - 1) if ref.ndim > 1 else None
    options = MeasureOptions((-limit, limit), channels)
    whole = measure(ref, cand, first_sample=7, samples=len(ref), options=options)
    edges = sorted({0, len(ref), *(c for c in cuts if c < len(ref))})
    parts = [
        measure(ref[a:b], cand[a:b], first_sample=7 + a, samples=b - a, options=options)
        for a, b in itertools.pairwise(edges)
    ]
    order.shuffle(parts)
    merged = reduce(ErrorSums.merge, parts, ErrorSums())
    expected = {n: getattr(whole, n) for n in (*TOTALS, *PEAKS, "dot")}
    _assert_close(merged, expected, 1e-12)
    for name in ("count", "clipped", "worst_sample", "worst_ratio", "mismatched_non_finite"):
        assert getattr(merged, name) == getattr(whole, name), name
    if whole.channel_sq_err is not None:
        assert merged.channel_sq_err is not None
        np.testing.assert_allclose(merged.channel_sq_err, whole.channel_sq_err, rtol=1e-12)
        np.testing.assert_allclose(merged.channel_ref_sq, whole.channel_ref_sq, rtol=1e-12)


@settings(deadline=None, max_examples=200)
@given(case=PAIRS, axis=st.integers(0, 3))
def test_worst_sample_and_worst_channel(case: Any, axis: int) -> None:
    ref, cand = _pair(case)
    axis %= ref.ndim
    options = MeasureOptions(None, axis if ref.ndim > 1 else None)
    found = measure(ref, cand, samples=len(ref), options=options)
    assert found.worst_sample is not None
    by_sample = _ratios(ref, cand, 0)
    assert math.isclose(by_sample[found.worst_sample], by_sample.max(), rel_tol=1e-5)
    if ref.ndim > 1:
        by_channel = _ratios(ref, cand, axis)
        metrics = metrics_of(found)
        by_channel = by_channel[np.isfinite(by_channel)]  # but for channels without a signal
        if not len(by_channel):
            assert metrics.worst_channel is None
            return
        assert metrics.worst_channel is not None
        assert metrics.worst_channel_sqnr_db is not None
        by_channel = np.nan_to_num(_ratios(ref, cand, axis), posinf=-1.0)
        assert math.isclose(by_channel[metrics.worst_channel], by_channel.max(), rel_tol=1e-5)
        expected = -10 * math.log10(by_channel.max()) if by_channel.max() else math.inf
        assert metrics.worst_channel_sqnr_db == pytest.approx(expected, abs=1e-3)


def _ratios(ref: Any, cand: Any, axis: int) -> Any:
    r, c = (
        np.moveaxis(a.astype(np.float64), axis, 0).reshape(a.shape[axis], -1) for a in (ref, cand)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.square(r - c).sum(1) / np.square(r).sum(1)
    return np.where(np.square(r - c).sum(1) == 0, 0, ratio)


@settings(deadline=None, max_examples=200)
@given(case=PAIRS, seed=st.integers(0, 2**32))
def test_nan_and_inf_are_counted_and_left_out(case: Any, seed: int) -> None:
    ref, cand = _pair(case)
    rng = np.random.default_rng(seed)
    bad = [np.nan, np.inf, -np.inf]
    equal, ref_only, cand_only = (rng.random(ref.shape) < 0.2 for _ in range(3))
    both = rng.choice(bad, size=ref.shape)
    ref, cand = ref.copy(), cand.copy()
    ref[ref_only] = rng.choice(bad, size=ref.shape)[ref_only]
    cand[cand_only] = rng.choice(bad, size=ref.shape)[cand_only]
    ref[equal] = cand[equal] = both[equal]
    r, c = ref.astype(np.float64), cand.astype(np.float64)
    same = (r == c) | (np.isnan(r) & np.isnan(c))
    broken = ~(np.isfinite(r) & np.isfinite(c))
    found = measure(ref, cand, samples=len(ref))
    assert found.nan_count == np.isnan(c).sum()
    assert found.inf_count == np.isinf(c).sum()
    assert found.mismatched_non_finite == (broken & ~same).sum()
    good = np.where(broken, 0.0, np.abs(np.where(broken, 0, r) - np.where(broken, 0, c)))
    assert math.isclose(found.sq_err, np.square(good).sum(), rel_tol=1e-5)
    assert metrics_of(found).is_finite == (not (broken & ~same).any())
    assert math.isnan(error_energy(ref, cand)) == bool((broken & ~same).any())
    for values, amax in ((r, found.ref_amax), (c, found.cand_amax)):
        finite = np.abs(values[np.isfinite(values)])
        assert amax == (finite.max() if finite.size else 0)


@settings(deadline=None)
@given(case=PAIRS, limit=st.floats(0.01, 3))
def test_clipped_fraction(case: Any, limit: float) -> None:
    ref, cand = _pair((*case[:2], np.float32, np.float32, 0, case[5]))
    limit = float(np.float32(limit))
    found = measure(ref, cand, options=MeasureOptions((-limit, 2 * limit)))
    assert found.clipped == (cand < -limit).sum() + (cand > 2 * limit).sum()
    assert metrics_of(found).clipped_fraction == found.clipped / ref.size
