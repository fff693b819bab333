"""What one pass gathers about a tensor, and from which every calibrator starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qdebug.calibrate import gather, layout
from qdebug.types import Array


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
        total, total_sq: Σx and Σx².
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
    total: float = 0.0
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
            total=self.total + other.total,
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


def histogram_of(values: Array, samples: int = 1) -> TensorHistogram:
    """The histogram of an array of any floating type and shape; float64 is rounded to float32,
    in which INT8 scales are kept, so that what lies beyond its range counts as Inf.

    `samples` says how many samples the leading axis holds, one after the other. An axis that does
    not split into so many belongs to a tensor without a batch axis, which counts as one sample.
    """
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if flat.size == 0:
        return TensorHistogram()
    splits = samples > 0 and values.ndim > 0 and values.shape[0] % samples == 0
    found = gather.scan(flat, samples if splits else 1)
    top, first, table = _counted(flat, found)
    return TensorHistogram(
        low=found.low + 0.0,  # -0 becomes 0
        high=found.high + 0.0,
        count=flat.size - found.nan_count - found.inf_count,
        zeros=found.zeros,
        nan_count=found.nan_count,
        inf_count=found.inf_count,
        total=found.total,
        total_sq=found.total_sq,
        samples=found.samples,
        sample_amax_total=found.sample_amax_total,
        top=top,
        first=first,
        table=table,
    )


def sample_amax_of(values: Array, samples: int) -> npt.NDArray[np.float32]:
    """The largest finite magnitude of each sample on the leading axis, float32 [samples]; 0 for one
    without. A tensor without a batch axis (see histogram_of) gives its own for all."""
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    splits = values.ndim > 0 and values.shape[0] % samples == 0
    rows = flat.reshape(samples, -1) if splits else flat[None]
    bits = [gather.scan(row, 1).amax_bits for row in rows]
    return np.resize(np.array(bits, np.int32), samples).view(np.float32)


_Bins = tuple[int, int, npt.NDArray[np.int64]]
"""top, first, table."""


def _counted(flat: npt.NDArray[np.float32], found: gather.Scan) -> _Bins:
    if found.amax_bits == 0:
        return 0, 0, _no_bins()
    top = layout.top_of(found.amax_bits)
    first = layout.bin_number(found.smallest_bits, top)
    table = np.zeros((4, layout.bin_number(found.amax_bits, top) - first + 1), np.int64)
    gather.count(flat, top, first, table)
    return top, first, table


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
        gather.add(merged, first, top, histogram.table, histogram.first, histogram.top)
    return top, first, merged
