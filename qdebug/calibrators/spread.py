"""Where values lie within their bins: a distribution that calibrators can cut anywhere.

A bin knows its count and the exact mean of its values. Where these fit evenly spread values, and a
bin beside it has values too, those are assumed; otherwise (one value, or discrete data) all of it
is taken to be at the mean. So discrete data are exact as long as no two distinct values share a bin
or lie in bins side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.layout import (
    Float64,
    Int64,
    bin_numbers,
    edges,
    is_even,
    magnitude_bits,
    means,
)

_POINT = 1e-9  # relative width of what is "at" a value


@dataclass(frozen=True)
class Spread:
    """Magnitudes that are not 0, spread evenly over intervals [low, high), one for each bin.

    Every array has an empty bin more at either end. `counts_after[i]` and `sums_after[i]` are those
    of the bins above i.
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
        """How many values are at `cut` or above, and their sum; of `cut`'s shape."""
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
