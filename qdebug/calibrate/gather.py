"""The pass over a tensor's values that fills its histogram: extremes, sums and the bins' counters.

Compiled, it reads 4 GB/s on one core, without the interpreter's lock. Where the compiled module
could not be built, numpy does the same with the same bins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qdebug.calibrate.layout import (
    LOW_BITS,
    MANTISSA_BITS,
    TOP_BITS,
    Int64,
    bin_numbers,
)

try:
    from qdebug.calibrate import _native as native
except ImportError:  # there was no C compiler when qdebug was installed
    native = None  # type: ignore[assignment]

Float32 = npt.NDArray[np.float32]
Counters = npt.NDArray[np.uint64]

ROOM = 1 << 23
"""Values that counters can take before they must be emptied: 2^23 · 2^16 < 2^40."""

_SPARE = 64  # as in _native.c
_COUNT_SHIFT = np.uint64(40)
_DROPPED = np.uint64((1 << 40) - 1)
_BLOCK = 1 << 16
_ABS_BITS = np.int32(0x7FFFFFFF)


class Scan(NamedTuple):
    """What the pass finds. NaN and Inf are counted and left out of everything else.

    `amax_bits` and `smallest_bits` are the float32 bit patterns of the largest and the smallest
    magnitude that is not 0, or 0. `samples` counts those with finite values, `peak_total` adds up
    their largest magnitudes. The first `tallied` values have been counted.
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
        """That of both."""
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
    """Zeros for so many bins: a counter for each one's positive values, then for the negative ones.
    Its upper 24 bits count, those below add up the mantissa bits that the bin drops."""
    return np.zeros(2 * bins + _SPARE, np.uint64)


def emptied(counters: Counters) -> Int64:
    """A histogram's table, int64 [4, bins], of what has been counted; sets it back to 0."""
    filled = counters[:-_SPARE].reshape(2, -1)
    table = np.concatenate([filled >> _COUNT_SHIFT, filled & _DROPPED]).astype(np.int64)
    counters[:] = 0
    return table


def gather(
    flat: Float32, peaks: Float32, room: int, top: int, first: int, counters: Counters
) -> Scan:
    """Scan contiguous values, as many for each place of `peaks`, which gets their largest finite
    magnitude; and count those before the first that have no bin, but at most `room`.

    `counters` are those of the bins from number `first`, in the layout for `top` and up to the end
    of its octave.
    """
    if native is None:
        return numpy_scan(flat, peaks)
    return Scan(*native.gather(flat, len(peaks), room, top, first, counters, peaks))


def count(flat: Float32, top: int, first: int, counters: Counters) -> None:
    """Count values that all have a bin, except for zeros, NaN and Inf."""
    if native is None:
        numpy_count(flat, top, first, counters)
    else:
        native.count(flat, top, first, counters)


def numpy_scan(flat: Float32, peaks: Float32) -> Scan:
    """`gather` in numpy, which counts nothing: it gains nothing by doing both at once."""
    magnitude = np.abs(flat)
    finite = np.isfinite(flat)
    nan_count = int(np.count_nonzero(np.isnan(flat)))
    values = flat[finite]
    bits = magnitude[finite].view(np.uint32)
    rows, usable = magnitude.reshape(len(peaks), -1), finite.reshape(len(peaks), -1)
    peaks[:] = rows.max(axis=1, where=usable, initial=0)
    wide = values.astype(np.float64)
    return Scan(
        float(values.min(initial=np.inf)),
        float(values.max(initial=-np.inf)),
        nan_count,
        int(flat.size - values.size) - nan_count,
        float(np.dot(wide, wide)),
        int(bits.max(initial=0)),
        (int((bits - np.uint32(1)).min(initial=2**32 - 1)) + 1) % 2**32,
        int(np.count_nonzero(usable.any(axis=1))),
        float(peaks.sum(dtype=np.float64)),
        0,
    )


def numpy_count(flat: Float32, top: int, first: int, counters: Counters) -> None:
    """`count` in numpy."""
    size = len(counters) - _SPARE
    for start in range(0, flat.size, _BLOCK):
        signed = flat[start : start + _BLOCK].view(np.int32)
        bits = signed & _ABS_BITS
        kept = np.isfinite(flat[start : start + _BLOCK]) & (bits != 0)
        bits, negative = bits[kept], signed[kept] < 0
        at = bin_numbers(bits, top) - first + negative * (size // 2)
        step = np.clip(top - (bits >> MANTISSA_BITS), 0, TOP_BITS - LOW_BITS)
        dropped = bits & ((1 << (step + (MANTISSA_BITS - TOP_BITS))) - 1)
        sums = np.bincount(at, weights=dropped, minlength=size)  # exact: under 2^53
        counters[:size] += np.bincount(at, minlength=size).astype(np.uint64) << _COUNT_SHIFT
        counters[:size] += sums.astype(np.uint64)
