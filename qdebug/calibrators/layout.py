"""How the bins of a histogram are laid out: relative width everywhere, absolute near the top.

A magnitude's bin comes from its float32 bit pattern. `top` is the exponent field of the largest
magnitude. In its octave a bin keeps 11 bits of the mantissa, in each octave below one bit less,
down to 7, which then holds for all smaller magnitudes:

    [2^t, 2^(t+1)) 2048 bins, below 1024, 512, 256, then 128 in every octave

So the upper five octaves have bins of one absolute width, 1/2048 to 1/4096 of amax and a sixteenth
to a thirty-second of an INT8 step; and no bin is wider than 1/128 of its values. A larger `top`
only merges bins (16 into 1 at most), so histograms of different ranges add up exactly, whatever
the order.
"""

from __future__ import annotations

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


def top_of(amax_bits: int) -> int:
    """The `top` of a histogram whose largest magnitude has these float32 bits."""
    return max(amax_bits >> MANTISSA_BITS, SMALLEST_TOP)


def magnitude_bits(magnitude: npt.NDArray[np.floating[Any]]) -> Int32:
    """float32 bit patterns of magnitudes, at most the largest finite one."""
    with np.errstate(over="ignore"):
        bits = magnitude.astype(np.float32).view(np.int32)
    return np.minimum(bits, LARGEST_BITS)


def bin_numbers(bits: Int32, top: int) -> Int32:
    """The number of the bin of each bit pattern; the pattern's order is the numbers' order."""
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
    """The smallest bit pattern of each of `count` bins from number `first`."""
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
    """Lower edges of `count` bins from number `first`, and the upper edge of the last."""
    bits = lower_bits(first, count + 1, top)
    values = bits.view(np.float32).astype(np.float64)
    values[bits > LARGEST_BITS] = 2.0**128
    return values


def means(first: int, counts: Int64, dropped: Int64, top: int) -> Float64:
    """The exact mean of each bin's values, from their count and the sum of their dropped bits; the
    lower edge of an empty bin."""
    bits = lower_bits(first, len(counts), top)
    ulp = np.ldexp(1.0, np.maximum(bits >> MANTISSA_BITS, 1) - (127 + MANTISSA_BITS))
    low = bits.view(np.float32).astype(np.float64)
    found: Float64 = low + dropped / np.maximum(counts, 1) * ulp
    return found


def is_even(counts: Int64, mean: Float64, low: Float64, high: Float64) -> npt.NDArray[np.bool_]:
    """Whether values spread evenly over [low, high) could have that mean; not for a few, which are
    better taken to be at their mean."""
    allowed = np.maximum(_FIT, _SIGMAS / np.sqrt(12.0 * np.maximum(counts, 1))) * (high - low)
    return (counts > _FEW) & (high > low) & (np.abs(mean - (low + high) / 2) <= allowed)


def coarsen(table: Int64, first: int, top: int, new_top: int) -> tuple[Int64, int]:
    """A table (see TensorHistogram) laid out for `top`, for the larger `new_top`, and its first
    bin's new number."""
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
