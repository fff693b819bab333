"""The two passes over a tensor's values that fill its histogram (extremes and sums, then the bins),
and the addition of bins.

Compiled, both together read 4 GB/s on one core, without the interpreter's lock. Where the
compiled module could not be built, numpy does the same with the same bins.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qdebug.calibrate.layout import (
    LOW_BITS,
    MANTISSA_BITS,
    MAX_BINS,
    TOP_BITS,
    Int64,
    bin_numbers,
    coarsen,
)

try:
    from qdebug.calibrate import _native as native
except ImportError:  # there was no C compiler when qdebug was installed
    native = None  # type: ignore[assignment]

Float32 = npt.NDArray[np.float32]

_SPARE = 64  # as in _native.c
_BLOCK = 1 << 16
_ABS_BITS = np.int32(0x7FFFFFFF)
_local = threading.local()


class Scan(NamedTuple):
    """What the first pass finds. NaN and Inf are counted and left out of everything else.

    `amax_bits` and `smallest_bits` are the float32 bit patterns of the largest and the smallest
    magnitude that is not 0, or 0. `samples` counts those with finite values, and
    `sample_amax_total` sums their largest magnitudes.
    """

    low: float
    high: float
    zeros: int
    nan_count: int
    inf_count: int
    total: float
    total_sq: float
    amax_bits: int
    smallest_bits: int
    samples: int
    sample_amax_total: float


def scan(flat: Float32, samples: int) -> Scan:
    """The first pass over contiguous values, a multiple of `samples`."""
    return Scan(*native.scan(flat, samples)) if native is not None else numpy_scan(flat, samples)


def count(flat: Float32, top: int, first: int, table: Int64) -> None:
    """The second pass: adds the values to `table`, int64 [4, bins], whose bins from number `first`
    hold every finite value that is not 0."""
    if native is None:
        numpy_count(flat, top, first, table)
    else:
        native.count(flat, top, first, _scratch(), table)


def add(into: Int64, into_first: int, into_top: int, table: Int64, first: int, top: int) -> None:
    """Adds a table laid out for `top` to one that covers it, laid out for a `top` no smaller."""
    if native is not None and top != into_top:
        native.add(into, into_first, into_top, table, first, top)
        return
    table, first = coarsen(table, first, top, into_top)
    start = first - into_first
    into[:, start : start + table.shape[1]] += table


def _scratch() -> npt.NDArray[np.uint64]:
    """This thread's counters, zeros: memory that is new at every tensor would cost more."""
    found: npt.NDArray[np.uint64] | None = getattr(_local, "scratch", None)
    if found is None:
        found = _local.scratch = np.zeros(2 * MAX_BINS + _SPARE, np.uint64)
    return found


def numpy_scan(flat: Float32, samples: int) -> Scan:
    """`scan` in numpy."""
    magnitude = np.abs(flat)
    finite = np.isfinite(flat)
    nan_count = int(np.count_nonzero(np.isnan(flat)))
    values = flat[finite]
    bits = magnitude[finite].view(np.uint32)
    rows, usable = magnitude.reshape(samples, -1), finite.reshape(samples, -1)
    peaks = rows.max(axis=1, where=usable, initial=0)
    wide = values.astype(np.float64)
    return Scan(
        float(values.min(initial=np.inf)),
        float(values.max(initial=-np.inf)),
        int(values.size - np.count_nonzero(values)),
        nan_count,
        int(flat.size - values.size) - nan_count,
        float(wide.sum()),
        float(np.dot(wide, wide)),
        int(bits.max(initial=0)),
        (int((bits - np.uint32(1)).min(initial=2**32 - 1)) + 1) % 2**32,
        int(np.count_nonzero(usable.any(axis=1))),
        float(peaks.astype(np.float64).sum()),
    )


def numpy_count(flat: Float32, top: int, first: int, table: Int64) -> None:
    """`count` in numpy."""
    bins = table.shape[1]
    for start in range(0, flat.size, _BLOCK):
        signed = flat[start : start + _BLOCK].view(np.int32)
        bits = signed & _ABS_BITS
        kept = np.isfinite(flat[start : start + _BLOCK]) & (bits != 0)
        bits, negative = bits[kept], signed[kept] < 0
        at = bin_numbers(bits, top) - first + negative * bins
        step = np.clip(top - (bits >> MANTISSA_BITS), 0, TOP_BITS - LOW_BITS)
        dropped = bits & ((1 << (step + (MANTISSA_BITS - TOP_BITS))) - 1)
        table[:2] += np.bincount(at, minlength=2 * bins).reshape(2, bins)
        sums = np.bincount(at, weights=dropped, minlength=2 * bins)  # exact: under 2^53
        table[2:] += sums.reshape(2, bins).astype(np.int64)
