"""The pass over an array's values that fills its histogram.

Compiled, it reads 4 GB/s on one core, without the interpreter's lock. Where the compiled module
could not be built, numpy does the same with the same bins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.histogram import (
    LOW_BITS,
    MANTISSA_BITS,
    SMALLEST_TOP,
    TOP_BITS,
    Float32,
    Float64,
    Int32,
    Int64,
    TensorHistogram,
    bin_number,
    end_of,
    top_of,
)
from qdebug.native import compiled as native
from qdebug.types import Array

Counters = npt.NDArray[np.uint64]

ROOM = 1 << 23
"""Values that counters can take before they must be emptied: 2^23 · 2^16 < 2^40."""

_SPARE = 64  # as in native/histograms.c
_COUNT_SHIFT = np.uint64(40)
_DROPPED = np.uint64((1 << 40) - 1)
_ABS_BITS = np.int32(0x7FFFFFFF)
_INF_BITS = 0x7F800000
_BLOCK = 1 << 15  # values that numpy handles together: what they need stays in a core's cache
_ADDED = 1 << 18  # values whose counts a float64 adds up exactly: 2^18 · (2^34 + 2^16) < 2^53
_ADDED_SHIFT = np.uint64(34)
_PIECE = 512
_SLACK = 512
"""Spare bins (four octaves) below the smallest magnitude: more values bring smaller ones, and each
new layout of the bins costs as much as counting a small tensor."""


class Layout(NamedTuple):
    """Bins that a histogram has: those of `top` from number `first` on, to the end of its octave;
    none where `top` is 0. What is counted does not depend on it: where it does not cover an array,
    the values are read twice."""

    top: int = 0
    first: int = 0

    def counters(self) -> Counters:
        """Of its bins; see `new_counters`."""
        return new_counters(end_of(self.top) - self.first if self.top else 0)

    def covers(self, scan: Scan) -> bool:
        """Whether every value that was found has a bin."""
        return self.top >= top_of(scan.amax_bits) and self.first <= self._first_of(scan)

    def covering(self, scan: Scan) -> Layout:
        """That of these and of the values that were found."""
        top = max(self.top, top_of(scan.amax_bits))
        return Layout(top, Layout(top)._first_of(scan))

    def _first_of(self, scan: Scan) -> int:
        return bin_number(scan.smallest_bits, self.top)

    def widened(self, found: TensorHistogram) -> Layout:
        """The layout for more arrays of a tensor, after one that was counted by this one."""
        if not found.top or (found.top == self.top and found.first >= self.first):
            return self
        return Layout(found.top, max(0, found.first - _SLACK))


NO_BINS = Layout()


def histogram_of(values: Array, samples: int = 1) -> TensorHistogram:
    """The histogram of an array; see `histogram_and_peaks`."""
    return histogram_and_peaks(values, samples)[0]


def histogram_and_peaks(
    values: Array, samples: int = 1, layout: Layout = NO_BINS
) -> tuple[TensorHistogram, Float32]:
    """The histogram of an array, and the largest finite magnitude of each sample, float32
    [samples].

    Args:
        values: of any floating type and shape. float64 is rounded to float32, in which INT8 scales
            are kept; what lies beyond its range then counts as Inf.
        samples: how many samples the leading axis holds, one after the other. Where it does not
            split evenly, the tensor has no batch axis: it counts as one sample, and each sample has
            its largest magnitude.
        layout: that of other arrays of the tensor.
    """
    flat = _flat(values)
    splits = samples > 0 and values.ndim > 0 and values.shape[0] % samples == 0
    peaks = np.zeros(samples if splits else 1, np.float32)
    scan = NOTHING
    counters = layout.counters()
    if flat.size:
        scan = gather(flat, peaks, ROOM, layout.top or SMALLEST_TOP, layout.first, counters)
    rest = flat[scan.tallied :]
    if not scan.amax_bits:
        layout, table = NO_BINS, np.zeros((4, 0), np.int64)
    else:
        if rest.size and not layout.covers(scan):
            layout, rest = layout.covering(scan), flat
            counters = layout.counters()
        first = bin_number(scan.smallest_bits, layout.top)
        end = bin_number(scan.amax_bits, layout.top) + 1
        bins = slice(first - layout.first, end - layout.first)
        table = emptied(counters, bins)
        for part in np.split(rest, range(ROOM, rest.size, ROOM)) if rest.size else ():
            count(part, *layout, counters)
            table += emptied(counters, bins)
        layout = Layout(layout.top, first)
    finite = flat.size - scan.nan_count - scan.inf_count
    found = TensorHistogram(
        low=scan.low + 0.0,  # -0 becomes 0
        high=scan.high + 0.0,
        count=finite,
        zeros=finite - int(table[:2].sum()),
        nan_count=scan.nan_count,
        inf_count=scan.inf_count,
        total_sq=scan.total_sq,
        samples=scan.samples,
        sample_amax_total=scan.peak_total,
        top=layout.top,
        first=layout.first,
        table=table,
    )
    return found, peaks if splits else np.full(samples, peaks)


def _flat(values: Array) -> Float32:
    if values.dtype == np.float32 and values.flags.c_contiguous:
        return values.reshape(-1)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32).reshape(-1)


class Scan(NamedTuple):
    """What one pass over an array finds. NaN and Inf are counted and left out of everything else.

    Attributes:
        low, high: smallest and largest finite value; +inf and -inf where there is none.
        nan_count, inf_count: values left out.
        total_sq: Σx².
        amax_bits, smallest_bits: float32 bit patterns of the largest magnitude, and of the smallest
            other than 0; 0 where there is none.
        samples: those with finite values.
        peak_total: the sum of their largest magnitudes.
        tallied: how many values, from the first on, were also counted in bins.
    """

    low: float
    high: float
    nan_count: int
    inf_count: int
    total_sq: float
    amax_bits: int
    smallest_bits: int
    samples: int
    peak_total: float
    tallied: int

    def join(self, other: Scan) -> Scan:
        """The scan of both arrays."""
        return Scan(
            min(self.low, other.low),
            max(self.high, other.high),
            self.nan_count + other.nan_count,
            self.inf_count + other.inf_count,
            self.total_sq + other.total_sq,
            max(self.amax_bits, other.amax_bits),
            min(
                self.smallest_bits or other.smallest_bits, other.smallest_bits or self.smallest_bits
            ),
            self.samples + other.samples,
            self.peak_total + other.peak_total,
            self.tallied + other.tallied,
        )


NOTHING = Scan(np.inf, -np.inf, 0, 0, 0.0, 0, 0, 0, 0.0, 0)


def new_counters(bins: int) -> Counters:
    """Counters for `bins` bins, all 0, uint64 [2 · bins + spare]: for the positive values of each,
    then for the negative ones. The upper 24 bits count; the lower 40 add up the mantissa bits that
    the bin drops."""
    return np.zeros(2 * bins + _SPARE, np.uint64)


def emptied(counters: Counters, bins: slice) -> Int64:
    """What was counted in some bins, as a histogram's table, int64 [4, bins]; the counters are set
    to 0."""
    filled = counters[:-_SPARE].reshape(2, -1)[:, bins]
    table = np.concatenate([filled >> _COUNT_SHIFT, filled & _DROPPED]).view(np.int64)
    counters[:] = 0
    return table


def gather(
    flat: Float32, peaks: Float32, room: int, top: int, first: int, counters: Counters
) -> Scan:
    """Scan contiguous values, and count them in bins up to the first that has no bin.

    Args:
        flat: the values, float32 [n].
        peaks: float32 [samples]; gets the largest finite magnitude of each n / samples values.
        room: how many values may be counted at most.
        top, first: the layout of the bins, and the number of the first of them; they reach to the
            end of `top`'s octave.
        counters: those of the bins; see `new_counters`.
    """
    if native is None:
        return numpy_scan(flat, peaks)
    return Scan(*native.gather(flat, len(peaks), room, top, first, counters, peaks))


def count(flat: Float32, top: int, first: int, counters: Counters) -> None:
    """Count values, float32 [n], all of which have a bin but zeros, NaN and Inf; see `gather`."""
    if native is None:
        numpy_count(flat, top, first, counters)
    else:
        native.count(flat, top, first, counters)


def numpy_scan(flat: Float32, peaks: Float32) -> Scan:
    """`gather` in NumPy. It counts nothing: doing both in one pass saves no time here."""
    matrix = flat.reshape(len(peaks), -1)
    height = max(1, _BLOCK // max(matrix.shape[1], 1))
    scan = NOTHING
    for row in range(0, len(peaks), height):
        rows = matrix[row : row + height]
        largest, filled = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.bool_)
        for column in range(0, rows.shape[1], _BLOCK):
            found, peak, some = _scan_block(rows[:, column : column + _BLOCK])
            scan = scan.join(found)
            np.maximum(largest, peak, out=largest)
            filled |= some
        peaks[row : row + height] = largest.view(np.float32)
        scan = scan._replace(samples=scan.samples + int(np.count_nonzero(filled)))
    return scan._replace(peak_total=float(peaks.sum(dtype=np.float64)))


def _scan_block(rows: Float32) -> tuple[Scan, Int32, npt.NDArray[np.bool_]]:
    """A scan without samples; and for each row the bits of its largest magnitude, and whether it
    has finite values."""
    bits = rows.view(np.int32) & _ABS_BITS
    peak = bits.max(axis=1)
    some: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
    nan_count = inf_count = 0
    if peak.max() < _INF_BITS:
        low, high = rows.min(), rows.max()
    else:
        finite = bits < _INF_BITS
        nan_count = int(np.count_nonzero(bits > _INF_BITS))
        inf_count = int(bits.size - np.count_nonzero(finite)) - nan_count
        low = rows.min(where=finite, initial=np.inf)
        high = rows.max(where=finite, initial=-np.inf)
        rows, bits = np.where(finite, rows, np.float32(0)), bits * finite
        peak, some = bits.max(axis=1), np.logical_or.reduce(finite, axis=1)
    smallest = int((bits.view(np.uint32) - np.uint32(1)).min())  # that of 0 is 2^32 - 1
    scan = Scan(
        low=float(low),
        high=float(high),
        nan_count=nan_count,
        inf_count=inf_count,
        total_sq=_square_sum(rows.reshape(-1)),
        amax_bits=int(peak.max()),
        smallest_bits=(smallest + 1) % 2**32,
        samples=0,
        peak_total=0.0,
        tallied=0,
    )
    return scan, peak, some


def _square_sum(values: Float32) -> float:
    """In pieces so short that BLAS starts no threads for them besides those of the caller."""
    wide = values.astype(np.float64)
    whole = len(wide) // _PIECE * _PIECE
    pieces, rest = wide[:whole].reshape(-1, _PIECE), wide[whole:]
    return float(np.vecdot(pieces, pieces).sum() + np.vecdot(rest, rest))


def numpy_count(flat: Float32, top: int, first: int, counters: Counters) -> None:
    """`count` in numpy."""
    size = (len(counters) - _SPARE) // 2
    for start in range(0, flat.size, _ADDED):
        added = np.zeros(2 * (size + 2))
        for begin in range(start, min(start + _ADDED, flat.size), _BLOCK):
            at, weights = _places(flat[begin : begin + _BLOCK], top, first, size)
            added += np.bincount(at, weights, len(added))
        counted = added.reshape(2, -1)[:, 1:-1].reshape(-1).astype(np.uint64)
        counted += (counted >> _ADDED_SHIFT) * np.uint64((1 << 40) - (1 << 34))
        counters[: 2 * size] += counted


def _places(flat: Float32, top: int, first: int, size: int) -> tuple[Int32, Float64]:
    """Where each value is counted, and what is added there: 2^34 and the bits that its bin drops.

    There is a place for what lies below the bins, one for each bin and one for what lies beyond
    them, and the same for negative values. As histogram.bin_numbers, without its temporary arrays:
    memory that is not in a core's cache is what numpy's time goes to.
    """
    signed = flat.view(np.int32)
    bits = signed & _ABS_BITS
    step = bits >> MANTISSA_BITS
    np.subtract(top, step, out=step)
    np.clip(step, 0, TOP_BITS - LOW_BITS, out=step)
    at = step + np.int32(1 - top)
    at <<= MANTISSA_BITS
    at += bits
    step += MANTISSA_BITS - TOP_BITS
    at >>= step
    at += np.int32((top - 5) * 128 - first + 1)
    np.clip(at, 0, size + 1, out=at)
    side = signed >> 31
    side &= np.int32(size + 2)
    at += side
    np.left_shift(np.int32(-1), step, out=step)
    np.invert(step, out=step)
    step &= bits
    weights = step.astype(np.float64)
    weights += 1 << 34
    if first == 0:  # zeros have no bin, but would fall into this one
        weights[bits == 0] = 0
    return at, weights
