"""The pass over the data: compiled and numpy agree, bins add up over any partition and range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdebug.calibrators import gather
from qdebug.calibrators import histogram as layout
from qdebug.calibrators.gather import NO_BINS, Layout, histogram_and_peaks, histogram_of
from qdebug.calibrators.histogram import TensorHistogram

ANY = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32))
ORDINARY = hnp.arrays(
    np.float32, st.integers(1, 60), elements=st.floats(-(2.0**12), 2.0**12, width=32)
)
TOPS = st.integers(layout.SMALLEST_TOP, 254)

needs_native = pytest.mark.skipif(gather.native is None, reason="the C module was not built")


@pytest.fixture(params=["this CPU", "portable"])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiled loops as they are chosen for this CPU, and those that run on any."""
    gather.native.portable(request.param == "portable")
    yield request.param
    gather.native.portable(False)


def _added_twice(values: Any) -> TensorHistogram:
    """Counted where no bins are laid out yet, then in those that the first time has made."""
    first = histogram_of(values)
    again, _ = histogram_and_peaks(values, layout=NO_BINS.widened(first))
    return first.merge(again, in_place=True)


def _assert_same(a: TensorHistogram, b: TensorHistogram) -> None:
    for name in ("low", "high", "count", "zeros", "nan_count", "inf_count", "samples", "top"):
        assert getattr(a, name) == getattr(b, name), name
    assert math.isclose(a.sample_amax_total, b.sample_amax_total, rel_tol=1e-12)
    assert math.isclose(a.total_sq, b.total_sq, rel_tol=1e-12)
    np.testing.assert_array_equal(a.table, b.table)
    assert a.first == b.first


def _assert_numpy_agrees(values: Any) -> None:
    compiled = _added_twice(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "native", None)
        _assert_same(_added_twice(values), compiled)


@needs_native
@settings(
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(values=st.one_of(ANY, ORDINARY))
def test_numpy_and_compiled_give_the_same_bins(variant: str, values: Any) -> None:
    _assert_numpy_agrees(values)


@needs_native
@pytest.mark.parametrize("size", [15, 16, 2047, 2048, 2064, 100_003])
@pytest.mark.parametrize("odd", [[0.0, -0.0], [np.nan], [np.inf, -np.inf], [1e-42], [3e38, 1e-45]])
def test_numpy_and_compiled_agree_on_blocks_and_their_rests(
    variant: str, size: int, odd: list[float]
) -> None:
    values = np.random.default_rng(size).laplace(size=size).astype(np.float32)
    values[:: max(1, size // 7)] = np.resize(odd, len(values[:: max(1, size // 7)]))
    _assert_numpy_agrees(values)
    _assert_numpy_agrees(np.abs(values) + np.float32(1))


@needs_native
def test_sums_are_the_same_to_the_last_digit_whether_bins_were_laid_out(variant: str) -> None:
    values = np.random.default_rng(0).laplace(size=5003).astype(np.float32)
    first = histogram_of(values)
    second, _ = histogram_and_peaks(values, layout=NO_BINS.widened(first))
    assert first.total_sq == second.total_sq


@needs_native
def test_the_compiled_module_refuses_other_types_and_small_buffers() -> None:
    values, counters, peaks = np.ones(32, np.float32), gather.new_counters(1), np.zeros(1, "f4")
    with pytest.raises(ValueError, match="float32"):
        gather.native.gather(values.astype(np.float64), 1, 0, 127, 1, counters, peaks)
    with pytest.raises(ValueError, match="counters"):
        gather.native.count(values, 127, 1, np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match="peak"):
        gather.native.gather(values, 2, 0, 127, 1, counters, peaks)
    with pytest.raises((BufferError, ValueError)):
        gather.native.count(values[::2], 127, 1, counters)


@needs_native
def test_the_compiled_module_drops_what_has_no_bin_instead_of_writing_beyond() -> None:
    values = np.array([1e-30, 1.0, 1e30, np.nan, np.inf, -np.inf, 0.0, -1.0], np.float32)
    counters = gather.new_counters(4096)
    gather.native.count(values, 127, layout.bin_number(126 << 23, 127), counters)
    assert gather.emptied(counters, slice(None))[:2].sum() == 2


Arrays = st.lists(st.tuples(ORDINARY, st.integers(-30, 30)), max_size=6)


@settings(deadline=None, max_examples=300)
@given(arrays=Arrays, compiled=st.booleans(), room=st.sampled_from([7, 40, gather.ROOM]))
def test_arrays_counted_in_bins_of_those_before_are_the_same_merged(
    arrays: Any, compiled: bool, room: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "ROOM", room)  # the counters are emptied on the way
        if not compiled:
            patch.setattr(gather, "native", None)
        scaled = [np.ldexp(values, shift) for values, shift in arrays]
        found, layout = TensorHistogram(), NO_BINS
        for values in scaled:
            one, _ = histogram_and_peaks(values, layout=layout)
            layout = layout.widened(one)
            found = found.merge(one, in_place=True)
        _assert_same(
            found, reduce(TensorHistogram.merge, map(histogram_of, scaled), TensorHistogram())
        )


@given(values=ANY, layout=st.builds(Layout, TOPS, st.just(0)))
def test_bins_of_larger_values_are_coarser(values: Any, layout: Layout) -> None:
    found, _ = histogram_and_peaks(values, layout=layout)
    larger = histogram_of(np.float32([np.ldexp(1.0, layout.top - 127)]))
    expected = histogram_of(values).merge(larger)
    _assert_same(found.merge(larger), expected)


@settings(deadline=None, max_examples=300)
@given(values=st.one_of(ANY, ORDINARY), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_any_partition_gives_the_same_table(values: Any, cuts: list[int]) -> None:
    parts = [histogram_of(part) for part in np.split(values, sorted(cuts))]
    whole = histogram_of(values)
    for merged in (reduce(TensorHistogram.merge, parts), reduce(lambda a, b: b.merge(a), parts)):
        assert (merged.top, merged.first) == (whole.top, whole.first)
        np.testing.assert_array_equal(merged.table, whole.table)


@settings(deadline=None, max_examples=200)
@given(values=ORDINARY)
def test_counts_and_dropped_bits_give_the_exact_sums(values: Any) -> None:
    found = histogram_of(values)
    bits = layout.lower_bits(found.first, found.table.shape[1], found.top)
    ulp = np.ldexp(1.0, np.maximum(bits >> 23, 1) - 150)
    low = bits.view(np.float32).astype(np.float64)
    sums = [found.table[i] * low + found.table[2 + i] * ulp for i in (0, 1)]
    wide = values.astype(np.float64)
    assert math.isclose(sums[0].sum(), wide[wide > 0].sum(), rel_tol=1e-14)
    assert math.isclose(sums[1].sum(), -wide[wide < 0].sum(), rel_tol=1e-14)


@given(values=ANY, top=TOPS)
def test_numbers_and_edges_agree(values: Any, top: int) -> None:
    bits = layout.magnitude_bits(np.abs(values[np.isfinite(values)]))
    bits = np.minimum(bits, ((top + 1) << 23) - 1)
    numbers = layout.bin_numbers(bits, top)
    for value, number in zip(bits.tolist(), numbers.tolist(), strict=True):
        assert layout.bin_number(value, top) == number
        low, high = layout.lower_bits(number, 2, top)
        assert low <= value < high
        assert high - low <= max(1 << 16, 0)
        edges = layout.edges(number, 1, top)
        assert edges[0] <= np.array(value, np.int32).view(np.float32) < edges[1]


@given(top=TOPS, offset=st.integers(0, 200))
def test_bins_of_a_larger_range_are_unions(top: int, offset: int) -> None:
    larger = min(top + offset, 254)
    end = layout.bin_number(((top + 1) << 23) - 1, top)
    bits = layout.lower_bits(max(0, end - 5000), min(end, 5000) + 1, top)
    fine, coarse = layout.bin_numbers(bits, top), layout.bin_numbers(bits, larger)
    assert np.all(np.diff(fine) == 1)
    assert np.all((np.diff(coarse) == 0) | (np.diff(coarse) == 1))


def _peaks(values: Any, samples: int) -> Any:
    return histogram_and_peaks(values, samples)[1]


SHAPES = st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 5))


@settings(deadline=None, max_examples=100)
@given(shape=SHAPES, data=st.data())
def test_sample_maxima_do_not_depend_on_the_batch_size(shape: Any, data: Any) -> None:
    values = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(width=32)))
    single = reduce(TensorHistogram.merge, [histogram_of(row[None]) for row in values])
    _assert_same(histogram_of(values, samples=len(values)), single)
    finite = np.where(np.isfinite(values), np.abs(values), 0)
    np.testing.assert_array_equal(_peaks(values, len(values)), finite.max(axis=1))


def test_samples_of_several_rows_and_of_none() -> None:
    values = np.array([[1, -2], [3, 0], [np.nan, np.inf], [-5, np.nan]], np.float32)
    two = histogram_of(values, samples=2)
    assert (two.samples, two.sample_amax_total) == (2, 8.0)
    four = histogram_of(values, samples=4)
    assert (four.samples, four.sample_amax_total) == (3, 10.0)  # the third has no finite value
    for axisless in (histogram_of(values, samples=3), histogram_of(np.array(5.0), samples=2)):
        assert (axisless.samples, axisless.sample_amax_total) == (1, 5.0)
    assert _peaks(values, 3).tolist() == [5, 5, 5]
    assert _peaks(values, 2).tolist() == [3, 5]
    assert histogram_of(np.zeros((0, 4), np.float32), 3).samples == 0
