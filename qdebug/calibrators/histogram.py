"""A tensor's histogram: what one pass gathers, and all that every calibrator starts from.

A magnitude's bin comes from its float32 bit pattern, so that its width is relative everywhere, and
absolute near the top. `top` is the exponent field of the largest magnitude. In its octave a bin
keeps 11 bits of the mantissa, in each octave below one bit less, down to 7, which then holds for
all smaller magnitudes:

    [2^t, 2^(t+1)) 2048 bins, below 1024, 512, 256, then 128 in every octave

So the upper five octaves have bins of one absolute width, 1/2048 to 1/4096 of amax and a sixteenth
to a thirty-second of an INT8 step; and no bin is wider than 1/128 of its values. A larger `top`
only merges bins (16 into 1 at most), so histograms of different ranges add up exactly, whatever
the order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TOP_BITS = 11
LOW_BITS = 7
MANTISSA_BITS = 23
SMALLEST_TOP = 5  # below, the whole histogram is 7-bit: those tensors are denormal or nearly so
LARGEST_BITS = 0x7F7FFFFF

_STEPS = TOP_BITS - LOW_BITS

_FIT = 0.05  # how far off its centre, in widths, the mean of an evenly filled bin may be
_SIGMAS = 3.0  # … or in standard deviations of the mean of that many
_FEW = 4

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]

_POINT = 1e-9  # relative width of what is "at" a value


def _no_bins() -> npt.NDArray[np.int64]:
    return np.zeros((4, 0), np.int64)


@dataclass(frozen=True)
class TensorHistogram:
    """Exact extremes, sums and a histogram of one tensor's values, over any number of samples.

    Attributes:
        low, high: exact smallest and largest finite value; +inf and -inf when there is none.
        count: finite values.
        zeros: those that are exactly 0.
        nan_count, inf_count: values left out of everything else.
        total_sq: Σx².
        samples: samples with a finite value.
        sample_amax_total: Σ over samples of their largest magnitude.
        top: exponent field of amax, which sets the bins' widths (see py); 0 without any.
        first: number of the table's first bin.
        table: int64 [4, bins]: counts of positive values, of negative values, and for both the
            sums of the mantissa bits that their bin drops, which give each bin's exact mean.
            Zeros are in no bin.
    """

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    zeros: int = 0
    nan_count: int = 0
    inf_count: int = 0
    total_sq: float = 0.0
    samples: int = 0
    sample_amax_total: float = 0.0
    top: int = 0
    first: int = 0
    table: npt.NDArray[np.int64] = field(default_factory=_no_bins)

    @property
    def amax(self) -> float:
        """The exact largest magnitude; 0 for a tensor without finite values."""
        return max(abs(self.low), abs(self.high)) if self.count else 0.0

    @property
    def total(self) -> float:
        """Σx, from what the bins hold: exact but for float64 rounding."""
        counts, dropped = self.table[:2], self.table[2:]
        rows = [counts[i] * means(self.first, counts[i], dropped[i], self.top) for i in (0, 1)]
        return float(rows[0].sum() - rows[1].sum())

    @property
    def first_bin(self) -> int:
        """The number of the bin that `bins[0]` counts."""
        return 0 if self.zeros else self.first

    @property
    def bins(self) -> npt.NDArray[np.int64]:
        """Counts of |x|, zeros included, int64 [bins]."""
        counts: npt.NDArray[np.int64] = self.table[0] + self.table[1]
        if not self.zeros:
            return counts
        all_bins = np.zeros(self.first + len(counts) if len(counts) else 1, np.int64)
        all_bins[self.first : self.first + len(counts)] = counts
        all_bins[0] += self.zeros
        return all_bins

    def edges(self) -> npt.NDArray[np.float64]:
        """Lower edges of `bins` and the upper edge of the last one, float64 [bins + 1]."""
        top = self.top or SMALLEST_TOP
        return edges(self.first_bin, len(self.bins), top)

    def merge(self, other: TensorHistogram, *, in_place: bool = False) -> TensorHistogram:
        """The histogram of both, which may be in this one's table if `in_place`. The order of
        merging changes only the last digits of the sums."""
        top, first, table = _merged_bins(self, other, in_place=in_place)
        return TensorHistogram(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            nan_count=self.nan_count + other.nan_count,
            inf_count=self.inf_count + other.inf_count,
            total_sq=self.total_sq + other.total_sq,
            samples=self.samples + other.samples,
            sample_amax_total=self.sample_amax_total + other.sample_amax_total,
            top=top,
            first=first,
            table=table,
        )

    def magnitude_percentile(self, percentile: float) -> float:
        """The magnitude that `percentile` % of the values do not exceed, as numpy.percentile(|x|).

        Each of the two values that it interpolates between is known to one bin (under 0.8 %); 100 %
        is the exact amax. 0 for a tensor without finite values.
        """
        if self.count == 0:
            return 0.0
        position = percentile / 100 * (self.count - 1)
        rank = min(int(position), self.count - 1)
        low = self._ranked(rank)
        if rank == position:
            return low
        return low + (self._ranked(rank + 1) - low) * (position - rank)

    def _ranked(self, rank: int) -> float:
        """About the `rank`-th smallest magnitude, from 0; exact for zeros and for the largest."""
        if rank < self.zeros:
            return 0.0
        if rank == self.count - 1:
            return self.amax
        counts = self.table[0] + self.table[1]
        cumulative = np.cumsum(counts) + self.zeros
        index = int(np.searchsorted(cumulative, rank, side="right"))
        count = int(counts[index])
        before = int(cumulative[index]) - count
        low, high = edges(self.first + index, 1, self.top)
        high = min(high, self.amax)
        dropped = self.table[2, index : index + 1] + self.table[3, index : index + 1]
        mean = means(self.first + index, counts[index : index + 1], dropped, self.top)
        if not is_even(counts[index], mean, low, high)[0]:
            return float(mean[0])
        return float(low + (high - low) * (rank - before + 0.5) / count)


_Bins = tuple[int, int, npt.NDArray[np.int64]]
"""top, first, table."""


def _merged_bins(a: TensorHistogram, b: TensorHistogram, *, in_place: bool) -> _Bins:
    if a.table.shape[1] == 0 or b.table.shape[1] == 0:
        full = b if a.table.shape[1] == 0 else a
        return full.top, full.first, full.table
    top = max(a.top, b.top)
    starts = [renumbered(h.first, h.top, top) for h in (a, b)]
    ends = [renumbered(h.first + h.table.shape[1] - 1, h.top, top) for h in (a, b)]
    first = min(starts)
    size = max(ends) - first + 1
    kept = in_place and (top, first, size) == (a.top, a.first, a.table.shape[1])
    merged = a.table if kept else np.zeros((4, size), np.int64)
    for histogram in (b,) if kept else (a, b):
        table, start = coarsen(histogram.table, histogram.first, histogram.top, top)
        merged[:, start - first : start - first + table.shape[1]] += table
    return top, first, merged


@dataclass(frozen=True)
class Spread:
    """Where values lie within their bins: a distribution that calibrators can cut anywhere.

    A bin knows its count and the exact mean of its values. Where these fit evenly spread values,
    and a bin beside it has values too, those are assumed; otherwise (one value, or discrete data)
    all of it is taken to be at the mean. So discrete data are exact as long as no two distinct
    values share a bin or lie in bins side by side.

    Magnitudes other than 0 are spread evenly over intervals [low, high), one for each bin; every
    array, float64 [bins + 2], has an empty bin more at either end. `counts_after[i]` and
    `sums_after[i]` are those of the bins above i.
    """

    first: int
    top: int
    low: Float64
    high: Float64
    density: Float64
    counts_after: Float64
    sums_after: Float64

    @property
    def square_sum(self) -> float:
        """Σx²."""
        return float(np.dot(self.density, self.high**3 - self.low**3)) / 3

    def above(self, cut: Float64) -> tuple[Float64, Float64]:
        """How many values are at `cut` or above, and their sum: float64, each of `cut`'s shape."""
        index = bin_numbers(magnitude_bits(cut), self.top)
        index -= self.first - 1
        np.clip(index, 0, len(self.low) - 1, out=index)
        low, high = self.low[index], self.high[index]
        inside = np.minimum(np.maximum(cut, low), high)
        part = self.density[index] * (high - inside)
        inside += high
        inside *= 0.5 * part
        return self.counts_after[index] + part, self.sums_after[index] + inside


def one_side(histogram: TensorHistogram, negative: bool) -> Spread | None:
    """The positive or the negative values; None where there are none."""
    counts, dropped = histogram.table[negative::2]
    return _spread(histogram, counts, dropped) if counts.any() else None


def magnitudes(histogram: TensorHistogram) -> Spread:
    """Positive and negative values together."""
    table = histogram.table
    return _spread(histogram, table[0] + table[1], table[2] + table[3])


def _spread(histogram: TensorHistogram, counts: Int64, dropped: Int64) -> Spread:
    start, size, top = histogram.first, len(counts), histogram.top
    edge = edges(start, size, top)
    low, high = edge[:-1], np.minimum(edge[1:], histogram.amax)
    mean = means(start, counts, dropped, top)
    even = is_even(counts, mean, low, high) & _beside_another(counts)
    low, high = np.where(even, low, mean), np.where(even, high, mean * (1 + _POINT))
    width = np.maximum(high - low, np.finfo(np.float64).tiny)
    return Spread(
        first=start,
        top=top,
        low=_padded(low),
        high=_padded(high),
        density=_padded(counts / width),
        counts_after=_sums_after(counts.astype(np.float64)),
        sums_after=_sums_after(counts * ((low + high) / 2)),
    )


def _beside_another(counts: Int64) -> npt.NDArray[np.bool_]:
    """Whether the bin before or after has values: many in a bin between empty ones are equal."""
    full = np.zeros(len(counts) + 2, np.bool_)
    full[1:-1] = counts > 0
    return np.logical_or(full[:-2], full[2:])


def _padded(values: Float64) -> Float64:
    return np.concatenate([[0.0], values, [0.0]])


def _sums_after(values: Float64) -> Float64:
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0, 0.0]])


def top_of(amax_bits: int) -> int:
    """The `top` of a histogram whose largest magnitude has these float32 bits."""
    return max(amax_bits >> MANTISSA_BITS, SMALLEST_TOP)


def magnitude_bits(magnitude: npt.NDArray[np.floating[Any]]) -> Int32:
    """float32 bit patterns of magnitudes, int32 of the same shape; at most the largest finite."""
    with np.errstate(over="ignore"):
        bits = magnitude.astype(np.float32).view(np.int32)
    return np.minimum(bits, LARGEST_BITS)


def bin_numbers(bits: Int32, top: int) -> Int32:
    """The number of the bin of each bit pattern, int32 of the same shape, in the same order."""
    step = np.clip(top - (bits >> MANTISSA_BITS), 0, _STEPS)
    above = bits - ((top - 1 - step) << MANTISSA_BITS)
    start = np.int32((top - _STEPS - 1) * 128)
    numbers: Int32 = (above >> (step + (MANTISSA_BITS - TOP_BITS))) + start
    return numbers


def bin_number(bits: int, top: int) -> int:
    """`bin_numbers` of one pattern."""
    step = min(max(top - (bits >> MANTISSA_BITS), 0), _STEPS)
    above = bits - ((top - 1 - step) << MANTISSA_BITS)
    return (above >> (step + (MANTISSA_BITS - TOP_BITS))) + (top - _STEPS - 1) * 128


def end_of(top: int) -> int:
    """The number after that of the last bin in `top`'s octave."""
    return (top - _STEPS - 1) * 128 + (2 << TOP_BITS)


def lower_bits(first: int, count: int, top: int) -> Int32:
    """The smallest bit pattern of each of `count` bins from number `first`, int32 [count]."""
    numbers = np.arange(first, first + count, dtype=np.int32)
    linear = numbers - np.int32((top - _STEPS - 1) * 128)  # 128 … 4095 in the upper octaves
    position = np.maximum(linear, 128).astype(np.float32)
    exponent = top - _STEPS << MANTISSA_BITS
    upper = position.view(np.int32) + np.int32(exponent - (127 + LOW_BITS << MANTISSA_BITS))
    return np.where(linear < 128, numbers << (MANTISSA_BITS - LOW_BITS), upper)


def renumbered(number: int, top: int, new_top: int) -> int:
    """The number of a bin of the layout for `top`, in that for the larger `new_top`."""
    if top == new_top:
        return number
    return bin_number(int(lower_bits(number, 1, top)[0]), new_top)


def edges(first: int, count: int, top: int) -> Float64:
    """Lower edges of `count` bins from number `first`, and the upper edge of the last one, float64
    [count + 1]."""
    bits = lower_bits(first, count + 1, top)
    values = bits.view(np.float32).astype(np.float64)
    values[bits > LARGEST_BITS] = 2.0**128
    return values


def means(first: int, counts: Int64, dropped: Int64, top: int) -> Float64:
    """The exact mean of each bin's values, float64 [bins], from their count and the sum of the
    mantissa bits that the bin drops; the lower edge of an empty bin."""
    bits = lower_bits(first, len(counts), top)
    ulp = np.ldexp(1.0, np.maximum(bits >> MANTISSA_BITS, 1) - (127 + MANTISSA_BITS))
    low = bits.view(np.float32).astype(np.float64)
    found: Float64 = low + dropped / np.maximum(counts, 1) * ulp
    return found


def is_even(counts: Int64, mean: Float64, low: Float64, high: Float64) -> npt.NDArray[np.bool_]:
    """Whether values spread evenly over [low, high) could have that mean, bool [bins]. False for a
    few values, which are better taken to be at their mean."""
    allowed = np.maximum(_FIT, _SIGMAS / np.sqrt(12.0 * np.maximum(counts, 1))) * (high - low)
    return (counts > _FEW) & (high > low) & (np.abs(mean - (low + high) / 2) <= allowed)


def coarsen(table: Int64, first: int, top: int, new_top: int) -> tuple[Int64, int]:
    """A table (see TensorHistogram) laid out for `top` in the layout for the larger `new_top`, and
    the number of its first bin there."""
    if top == new_top or table.shape[1] == 0:
        return table, first
    bits = lower_bits(first, table.shape[1], top)
    numbers = bin_numbers(bits, new_top)
    new_first, new_count = int(numbers[0]), int(numbers[-1] - numbers[0]) + 1
    offsets = bits - lower_bits(new_first, new_count, new_top)[numbers - new_first]
    sums = np.empty((len(table), table.shape[1] + 1), np.int64)
    sums[:, 0] = 0
    sums[:, 1:] = table
    sums[2:, 1:] += table[:2] * offsets
    np.cumsum(sums, axis=1, out=sums)
    ends = np.searchsorted(numbers, np.arange(new_first, new_first + new_count + 1))
    return np.diff(sums[:, ends], axis=1), new_first
