"""Error sums and metrics at their edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qdebug.metrics.accumulate import (
    CANDIDATE,
    LOCAL,
    REFERENCE,
    Comparison,
    ErrorTotals,
    ExecutedBatch,
    compare_batch,
)
from qdebug.metrics.sums import ErrorSums, MeasureOptions, error_energy, measure
from qdebug.metrics.tensor import METRIC, metrics_of, sqnr_db
from qdebug.network.samples import Batch

F32 = np.float32
INF, NAN = math.inf, math.nan


def _metrics(ref: Any, cand: Any, dtype: Any = F32, **options: Any) -> Any:
    reference, candidate = np.array(ref, dtype), np.array(cand, dtype)
    samples = len(reference) if reference.ndim else 1
    return metrics_of(
        measure(reference, candidate, samples=samples or 1, options=MeasureOptions(**options))
    )


@pytest.mark.parametrize("dtype", [np.float16, F32, np.float64])
def test_known_numbers(dtype: Any) -> None:
    found = _metrics([3.0, 4.0], [3.0, 2.0], dtype)
    assert (found.max_abs_err, found.mean_abs_err) == (2, 1)
    assert found.rmse == pytest.approx(math.sqrt(2))
    assert found.sqnr_db == pytest.approx(10 * math.log10(25 / 4))
    assert found.cosine == pytest.approx(17 / math.sqrt(25 * 13), rel=1e-6)
    assert (found.ref_amax, found.cand_amax, found.worst_sample) == (4, 3, 1)
    assert (found.clipped_fraction, found.worst_channel) == (None, None)


@pytest.mark.parametrize("values", [[1.0, -2.0], [0.0, 0.0], [1e-30, 1e30], [-INF, 1.0], [NAN, 2]])
@pytest.mark.parametrize("dtype", [F32, np.float64])
def test_equal_tensors(values: list[float], dtype: Any) -> None:
    found = _metrics(values, values, dtype)
    assert (found.sqnr_db, found.cosine, found.max_abs_err) == (INF, 1.0, 0.0)
    assert found.is_finite
    assert (found.nan_count, found.inf_count) == (
        np.isnan(values).sum(), np.isinf(values).sum()
    )  # fmt: skip


def test_a_mask_of_minus_inf_counts_as_equal() -> None:
    found = _metrics([-INF, 3.0, 4.0], [-INF, 3.0, 2.0])
    assert found.sqnr_db == pytest.approx(10 * math.log10(25 / 4))
    assert (found.inf_count, found.ref_amax) == (1, 4)


@pytest.mark.parametrize(
    ("ref", "cand"), [(INF, -INF), (NAN, 1.0), (1.0, NAN), (1.0, INF), (INF, NAN), (-INF, -3e38)]
)
def test_what_is_not_finite_on_one_side_makes_metrics_nan(ref: float, cand: float) -> None:
    found = _metrics([1.0, ref], [1.0, cand])
    for name in ("max_abs_err", "mean_abs_err", "rmse", "sqnr_db", "cosine"):
        assert math.isnan(getattr(found, name)), name
    assert not found.is_finite
    assert found.worst_sample == 1
    assert (found.nan_count, found.inf_count) == (int(math.isnan(cand)), int(math.isinf(cand)))
    assert math.isnan(error_energy(np.array([ref], F32), np.array([cand], F32)))


def test_a_zero_reference() -> None:
    found = _metrics([0.0, 0.0], [0.0, 1.0])
    assert (found.sqnr_db, found.cosine, found.worst_sample) == (-INF, 0.0, 1)
    dead = _metrics([1.0, 2.0], [0.0, 0.0])
    assert (dead.sqnr_db, dead.cosine) == (0.0, 0.0)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4), (3, 0)])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_empty_arrays(shape: tuple[int, ...], limit: float | None) -> None:
    empty = np.zeros(shape, F32)
    bounds = None if limit is None else (-limit, limit)
    options = MeasureOptions(bounds, 1 if len(shape) > 1 else None)
    found = measure(empty, empty, samples=max(shape[0], 1), options=options)
    assert (found.count, found.worst_sample) == (0, None)
    metrics = metrics_of(found)
    assert (metrics.sqnr_db, metrics.cosine, metrics.rmse) == (INF, 1.0, 0.0)
    assert metrics.clipped_fraction == (None if limit is None else 0)
    assert error_energy(empty, empty) == 0
    other = measure(np.ones(2, F32), np.zeros(2, F32), first_sample=5, samples=2)
    for merged in (found.merge(other), other.merge(found)):
        assert (merged.count, merged.worst_sample, merged.sq_err) == (2, 5, 2)


def test_a_scalar() -> None:
    found = measure(np.array(2.0, F32), np.array(1.5, F32), samples=1)
    assert (found.count, found.sq_err, found.worst_sample) == (1, 0.25, 0)
    assert measure(np.array(2.0, F32), np.array(1.0, F32), samples=3).worst_ratio == 0.25
    assert error_energy(np.array(2.0, F32), np.array(1.5, F32)) == 0.25


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-15, 1e-8, 1e8, 1e15, 1e20, 1e30])
def test_magnitudes_that_leave_float32_when_squared(scale: float) -> None:
    found = _metrics([3 * scale, 4 * scale], [3 * scale, 2 * scale])
    assert found.sqnr_db == pytest.approx(10 * math.log10(25 / 4), abs=1e-4)
    assert found.rmse == pytest.approx(math.sqrt(2) * scale, rel=1e-6)
    ref, cand = np.array([3, 4], F32) * F32(scale), np.array([3, 2], F32) * F32(scale)
    assert error_energy(ref, cand) == pytest.approx(4 * scale**2, rel=1e-6)


def test_a_small_error_of_a_large_tensor() -> None:
    ref = np.full(100, 1e6, F32)
    cand = ref.copy()
    cand[3] = np.nextafter(cand[3], F32(np.inf))
    assert metrics_of(measure(ref, cand)).max_abs_err == 0.0625


def test_nearly_orthogonal_and_opposite() -> None:
    assert _metrics([1.0, 0.0], [0.0, 1.0]).cosine == pytest.approx(0, abs=1e-6)
    assert _metrics([1.0, 2.0], [-1.0, -2.0]).cosine == pytest.approx(-1)
    assert _metrics([1e-4, 1.0], [1e4, 0.0]).cosine == pytest.approx(1e-4, rel=1e-3)


def test_worst_channel() -> None:
    ref = np.ones((2, 3, 4), F32)
    cand = ref.copy()
    cand[:, 1] += F32(0.5)
    found = _metrics(ref, cand, channel_axis=1)
    assert found.worst_channel == 1
    assert found.worst_channel_sqnr_db == pytest.approx(10 * math.log10(4))
    last = _metrics(ref, ref, channel_axis=-1)
    assert (last.worst_channel, last.worst_channel_sqnr_db) == (0, INF)
    cand[0, 0, 0] = NAN
    assert _metrics(ref, cand, channel_axis=1).worst_channel is None


def test_channels_that_differ_between_batches_are_dropped() -> None:
    def of(channels: int) -> ErrorSums:
        ones = np.ones((1, channels), F32)
        return measure(ones, ones, options=MeasureOptions(None, 1))

    merged = of(2).merge(of(3))
    assert merged.channel_sq_err is None
    assert metrics_of(merged).worst_channel is None


def test_a_leading_axis_that_samples_do_not_divide_is_one_sample() -> None:
    ref, cand = np.ones((5, 2), F32), np.zeros((5, 2), F32)
    found = measure(ref, cand, first_sample=4, samples=2)
    assert (found.worst_sample, found.count) == (4, 10)


def test_layouts_and_shapes() -> None:
    ref = np.arange(24, dtype=F32).reshape(4, 6)
    cand = ref + F32(1)
    plain = measure(ref, cand, samples=4)
    strided = measure(np.asfortranarray(ref), np.asfortranarray(cand), samples=4)
    assert plain == strided
    with pytest.raises(ValueError, match="shape"):
        measure(ref, cand[:2])


def test_sqnr_db_of_energies() -> None:
    assert sqnr_db(1e300, 1e-300) == pytest.approx(6000)
    assert sqnr_db(0.0, 0.0) == INF
    assert sqnr_db(0.0, 1.0) == -INF
    assert "sqnr_db" in METRIC


def _executed(start: int, ref: Any, cand: Any, local: Any) -> ExecutedBatch:
    runs = {
        REFERENCE: {"a": ref, "b": ref, "n": ref.astype(int)},
        CANDIDATE: {"a": cand, "b": cand[:, :1], "n": ref.astype(int)},
        LOCAL: local,
    }
    return ExecutedBatch(Batch(start, start, len(ref)), {}, runs)


def test_errors_of_batches_add_up() -> None:
    comparison = Comparison(local={"layer": ("a", "a:local")})
    ref = np.array([[3, 4], [1, 0]], F32)
    cand = np.array([[3, 2], [1, 0]], F32)
    total = ErrorTotals()
    for start in (0, 2):
        executed = _executed(start, ref, cand, {"a:local": ref + F32(1)})
        part = compare_batch(comparison, executed)
        total.add(part)
    assert total.tensors["a"].sq_err == 8
    assert total.tensors["a"].worst_sample == 0
    assert set(total.tensors) == {"a"}
    assert total.local_samples == 4
    assert total.skipped == {"b": "shape (2, 2) in the reference, (2, 1) in the candidate"}
    energy = total.local["layer"]
    assert (energy.sq_err, energy.ref_sq) == (8, 52)


def test_an_output_with_nan_is_infinite_noise() -> None:
    ones = np.ones((1, 4), F32)
    totals = ErrorTotals({"a": measure(ones, ones * F32(1.1))})
    assert totals.noise() == pytest.approx(0.01, rel=1e-5)
    totals.tensors["b"] = measure(ones * 100, ones * 110)
    assert totals.noise() == pytest.approx(0.01, rel=1e-5)  # the scale of an output does not count
    totals.tensors["c"] = measure(ones, ones * NAN)
    assert math.isinf(totals.noise())
    assert math.isnan(ErrorTotals().noise())
