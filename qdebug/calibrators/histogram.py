"""What one pass gathers about a tensor, and from which every calibrator starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qdebug.calibrators import layout


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
        top: exponent field of amax, which sets the bins' widths (see layout.py); 0 without any.
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
        rows = [
            counts[i] * layout.means(self.first, counts[i], dropped[i], self.top) for i in (0, 1)
        ]
        return float(rows[0].sum() - rows[1].sum())

    @property
    def first_bin(self) -> int:
        """Number of the bin that `bins[0]` counts."""
        return 0 if self.zeros else self.first

    @property
    def bins(self) -> npt.NDArray[np.int64]:
        """Counts of |x|, zeros included."""
        counts: npt.NDArray[np.int64] = self.table[0] + self.table[1]
        if not self.zeros:
            return counts
        all_bins = np.zeros(self.first + len(counts) if len(counts) else 1, np.int64)
        all_bins[self.first : self.first + len(counts)] = counts
        all_bins[0] += self.zeros
        return all_bins

    def edges(self) -> npt.NDArray[np.float64]:
        """Lower edges of `bins` and the upper edge of the last one, float64 [bins + 1]."""
        top = self.top or layout.SMALLEST_TOP
        return layout.edges(self.first_bin, len(self.bins), top)

    def merge(self, other: TensorHistogram) -> TensorHistogram:
        """The histogram of both: the same whatever is merged in whatever order, but for the last
        digits of the sums."""
        top, first, table = _merged_bins(self, other)
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
        counts = self.table[0] + self.table[1]
        cumulative = np.cumsum(counts) + self.zeros
        index = int(np.searchsorted(cumulative, rank, side="right"))
        count = int(counts[index])
        before = int(cumulative[index]) - count
        low, high = layout.edges(self.first + index, 1, self.top)
        high = min(high, self.amax)
        dropped = self.table[2, index : index + 1] + self.table[3, index : index + 1]
        mean = layout.means(self.first + index, counts[index : index + 1], dropped, self.top)
        if not layout.is_even(counts[index], mean, low, high)[0]:
            return float(mean[0])
        return float(low + (high - low) * (rank - before + 0.5) / count)


_Bins = tuple[int, int, npt.NDArray[np.int64]]
"""top, first, table."""


def _merged_bins(a: TensorHistogram, b: TensorHistogram) -> _Bins:
    if a.table.shape[1] == 0 or b.table.shape[1] == 0:
        full = b if a.table.shape[1] == 0 else a
        return full.top, full.first, full.table
    top = max(a.top, b.top)
    starts = [layout.renumbered(h.first, h.top, top) for h in (a, b)]
    ends = [layout.renumbered(h.first + h.table.shape[1] - 1, h.top, top) for h in (a, b)]
    first = min(starts)
    merged = np.zeros((4, max(ends) - first + 1), np.int64)
    for histogram in (a, b):
        table, start = layout.coarsen(histogram.table, histogram.first, histogram.top, top)
        merged[:, start - first : start - first + table.shape[1]] += table
    return top, first, merged
