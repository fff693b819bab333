"""Histograms of |x| that need no range in advance, and from which every calibrator starts.

A bin is the top 15 bits of a float32's magnitude: its exponent and the first 7 bits of its
mantissa. So all bins have the same relative width (under 2^-7), any two histograms merge by
addition, and one pass over the data serves all calibrators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qdebug.types import Array

_DROPPED_BITS = 16
_SIGN_MASK = np.uint32(0x7FFFFFFF)
_INF_BIN = 0x7F80


@dataclass(frozen=True)
class TensorHistogram:
    """What one pass gathers about a tensor.

    Attributes:
        low, high: exact smallest and largest finite value; +inf and -inf when there is none.
        count: finite values.
        zeros: those that are exactly 0.
        nan_count, inf_count: values left out of everything else.
        total, total_sq: Σx and Σx².
        first_bin: number of the bin that `bins[0]` counts.
        bins: counts of |x|, int64.
    """

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    zeros: int = 0
    nan_count: int = 0
    inf_count: int = 0
    total: float = 0.0
    total_sq: float = 0.0
    first_bin: int = 0
    bins: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def amax(self) -> float:
        """The exact largest magnitude; 0 for a tensor without finite values."""
        return max(abs(self.low), abs(self.high)) if self.count else 0.0

    def merge(self, other: TensorHistogram) -> TensorHistogram:
        """The histogram of both."""
        first, bins = _add_bins(self, other)
        return TensorHistogram(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            nan_count=self.nan_count + other.nan_count,
            inf_count=self.inf_count + other.inf_count,
            total=self.total + other.total,
            total_sq=self.total_sq + other.total_sq,
            first_bin=first,
            bins=bins,
        )

    def edges(self) -> npt.NDArray[np.float64]:
        """Lower edges of the bins and the upper edge of the last one, float64 [bins + 1]."""
        numbers = np.arange(self.first_bin, self.first_bin + len(self.bins) + 1, dtype=np.uint32)
        return (numbers << _DROPPED_BITS).view(np.float32).astype(np.float64)

    def magnitude_percentile(self, percentile: float) -> float:
        """The magnitude that `percentile` % of the values do not exceed: numpy.percentile(|x|) with
        each of the two values that it interpolates between known to one bin (under 0.8 %); 100 %
        is the exact amax. 0 for a tensor without finite values."""
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
        cumulative = np.cumsum(self.bins)
        index = int(np.searchsorted(cumulative, rank, side="right"))
        count = int(self.bins[index])
        before = int(cumulative[index]) - count
        low, high = self.edges()[index : index + 2]
        high = min(high, self.amax)
        return float(low + (high - low) * (rank - before + 0.5) / count)


def histogram_of(values: Array) -> TensorHistogram:
    """The histogram of an array of any floating type and shape; float64 is rounded to float32,
    in which INT8 scales are kept, so that what lies beyond its range counts as Inf."""
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if flat.size == 0:
        return TensorHistogram()
    numbers = (flat.view(np.uint32) & _SIGN_MASK) >> _DROPPED_BITS
    bins = np.bincount(numbers)
    nan_count = inf_count = 0
    if len(bins) > _INF_BIN:
        finite = np.isfinite(flat)
        nan_count = int(np.isnan(flat).sum())
        inf_count = int(flat.size - finite.sum()) - nan_count
        flat = flat[finite]
        bins = bins[:_INF_BIN]
        if flat.size == 0:
            return TensorHistogram(nan_count=nan_count, inf_count=inf_count)
    first = int(np.argmax(bins > 0))
    wide = flat.astype(np.float64)
    return TensorHistogram(
        low=float(flat.min()),
        high=float(flat.max()),
        count=int(flat.size),
        zeros=int(flat.size - np.count_nonzero(flat)),
        nan_count=nan_count,
        inf_count=inf_count,
        total=float(wide.sum()),
        total_sq=float(np.dot(wide, wide)),
        first_bin=first,
        bins=np.trim_zeros(bins[first:], "b").astype(np.int64),
    )


def _add_bins(a: TensorHistogram, b: TensorHistogram) -> tuple[int, npt.NDArray[np.int64]]:
    if len(a.bins) == 0 or len(b.bins) == 0:
        full = b if len(a.bins) == 0 else a
        return full.first_bin, full.bins
    first = min(a.first_bin, b.first_bin)
    last = max(a.first_bin + len(a.bins), b.first_bin + len(b.bins))
    bins = np.zeros(last - first, np.int64)
    for part in (a, b):
        start = part.first_bin - first
        bins[start : start + len(part.bins)] += part.bins
    return first, bins
