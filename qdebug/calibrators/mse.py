"""mse: the range whose codes represent the values with the least squared error.

In INT8:

    E(amax) = Σ (x − s · clamp(round(x / s), −128, 127))²,   s = amax / 127

The same amax has the highest SQNR, 10 · log10(Σx² / E). With the k-th boundary at (k − ½) · s a
value gets as code the number of boundaries that it reaches, so that for positive values

    E = Σx² − 2s · Σ_k S(k) + s² · Σ_k (2k − 1) · N(k),   k = 1 … 127

where N(k) values, of sum S(k), reach boundary k; likewise for negative ones with k = 1 … 128. Of
other codes c(k), such as FP8's, the terms are 2s · (c(k) − c(k−1)) · S(k) and
s² · (c(k)² − c(k−1)²) · N(k), the boundaries in the middle between two codes. Of 16 bits it is the
largest magnitude: with 32767 steps nothing is won by clipping.
Rounding and clipping are both in it, and so are data on a grid, for which s² / 12 would be wrong.

The minimum is searched among the ranges up to the exact amax. The error of clipping rules out small
ranges; a geometric grid finds the valleys; ranges that put amax on a code find the narrow ones (of
data that lie on a grid themselves); the best are refined. A range beyond the exact amax is taken
only where it fits a grid that none below it fits. Searches of the step by the squared error are in
Sung et al., "Resiliency of deep neural networks under quantization", 2015, arXiv:1511.06488.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from qdebug.calibrators.histogram import Float64, Spread, TensorHistogram, one_side
from qdebug.formats.base import Format, Kind
from qdebug.formats.registry import FP32, INT8

_PER_OCTAVE = 32
_OCTAVES = 40
_REFINED = 3  # valleys
_FINER = 6  # points on either side of a valley's lowest, each of three times
_FEW_BINS = 640  # data on a grid that INT8 can match have no more distinct magnitudes
_ON_GRID = 0.01  # of s² / 12 for each value: a smaller error means that the values are on codes
_CHUNK = 64  # ranges that are handled together: what they need stays in a core's cache


def mse_amax(histogram: TensorHistogram, form: Format = INT8) -> float:
    """The amax of least expected squared error in a format; 0 for a tensor without values other
    than 0.

    The exact amax where that puts all values on codes, and where its scale is the smallest there
    is.
    """
    amax = histogram.amax
    if amax <= form.largest * FP32.smallest_normal or form.bits > INT8.bits:
        return amax
    error = SquaredError(histogram, form)
    at_amax = float(error.of(np.array([amax]))[0])
    if at_amax <= _on_grid(histogram, amax, form):
        return amax
    on_codes = _on_codes(histogram, form)
    grid = amax * 2.0 ** (-np.arange(_OCTAVES * _PER_OCTAVE) / _PER_OCTAVE)
    grid = np.append(grid, on_codes[on_codes < amax])
    found, least = _refined(error, grid[error.clipped(grid) < at_amax], amax)
    wider = on_codes[(on_codes > amax) & (on_codes <= error.largest_clipping)]
    if len(wider) and least > _on_grid(histogram, found, form):
        errors = error.of(wider)
        first = int(np.argmin(errors))
        if errors[first] <= _on_grid(histogram, float(wider[first]), form):
            return float(wider[first])
    return found


def _refined(error: SquaredError, candidates: Float64, amax: float) -> tuple[float, float]:
    """The best range at or near `candidates`, at most `amax`, and its error."""
    highest = min(amax, error.largest_clipping)
    candidates = np.append(candidates[candidates < highest], amax)
    errors = error.of(candidates)
    step = 2 ** (1 / _PER_OCTAVE)
    for _ in range(3):
        best = _valleys(candidates, errors)
        finer = np.outer(best, step ** np.linspace(-1, 1, 2 * _FINER + 1))
        finer = np.unique(finer[finer < highest])
        candidates = np.append(candidates, finer)
        errors = np.append(errors, error.of(finer))
        step = step ** (1 / _FINER)
    first = int(np.argmin(errors))
    return float(candidates[first]), float(errors[first])


def _valleys(candidates: Float64, errors: Float64) -> Float64:
    """The lowest candidates that are lower than their neighbours."""
    order = np.argsort(candidates)
    sorted_errors = np.concatenate([[np.inf], errors[order], [np.inf]])
    middle = sorted_errors[1:-1]
    lowest = order[(middle <= sorted_errors[:-2]) & (middle <= sorted_errors[2:])]
    return candidates[lowest[np.argsort(errors[lowest])[:_REFINED]]]


def _on_grid(histogram: TensorHistogram, amax: float, form: Format) -> float:
    return _ON_GRID * (histogram.count - histogram.zeros) * (amax / form.largest) ** 2 / 12


def _on_codes(histogram: TensorHistogram, form: Format) -> Float64:
    """The ranges that make amax an integer or half-integer multiple of the step, from 160 down to
    64, which is the widest first; of INT8 alone."""
    many = np.count_nonzero(histogram.table[0] + histogram.table[1]) > _FEW_BINS
    if many or form is not INT8:
        return np.zeros(0)
    return INT8.largest * histogram.amax / np.arange(160, 63.5, -0.5)


class _Codes(NamedTuple):
    """The codes of a format on one side of 0, from the smallest on.

    Attributes:
        bounds: where the next code begins: in the middle.
        steps: how much larger it is; None where it is 1 everywhere.
        squares: how much larger its square is.
    """

    bounds: Float64
    steps: Float64 | None
    squares: Float64


@cache
def _codes(form: Format, negative: bool) -> _Codes:
    if form.kind is Kind.INTEGER:
        k = np.arange(1, (-form.lowest if negative else form.largest) + 1, dtype=np.float64)
        return _Codes(k - 0.5, None, 2.0 * k - 1)
    codes = form.magnitudes
    return _Codes((codes[1:] + codes[:-1]) / 2, np.diff(codes), np.diff(codes**2))


class SquaredError:
    """E(amax) of a histogram's values in a format.

    Attributes:
        largest_clipping: the largest amax; beyond, the lowest code is -Inf.
    """

    def __init__(self, histogram: TensorHistogram, form: Format = INT8) -> None:
        self._form = form
        self.largest_clipping = FP32.largest / max(-form.lowest, form.largest) * form.largest
        sides = ((one_side(histogram, negative), negative) for negative in (False, True))
        self._sides = [(side, negative) for side, negative in sides if side is not None]
        self._square_sums = [side.square_sum for side, _ in self._sides]

    def of(self, amax: Float64) -> Float64:
        """E for each candidate amax, all above 0: float64 [n]."""
        scale = self._form.scale_of(amax).astype(np.float64)
        parts = [scale[i : i + _CHUNK] for i in range(0, len(scale), _CHUNK)]
        return np.concatenate([np.zeros(0), *(self._rounded(part) for part in parts)])

    def clipped(self, amax: Float64) -> Float64:
        """The part of E that clipping alone makes, and that no rounding can lower."""
        scale = self._form.scale_of(amax).astype(np.float64)
        found = np.zeros(len(scale))
        for side, negative in self._sides:
            codes = -self._form.lowest if negative else self._form.largest
            limit = scale * (codes + 0.5)
            count, total = side.above(limit)
            found += np.maximum(total - codes * scale * count, 0.0) ** 2 / np.maximum(count, 1.0)
        return found

    def _rounded(self, scale: Float64) -> Float64:
        found = np.zeros(len(scale))
        for (side, negative), square_sum in zip(self._sides, self._square_sums, strict=True):
            terms = _code_terms(side, scale, _codes(self._form, negative))
            found += np.maximum(square_sum + terms, 0.0)
        return found


def _code_terms(side: Spread, scale: Float64, codes: _Codes) -> Float64:
    count, total = side.above(np.outer(scale, codes.bounds))
    sums = total.sum(axis=1) if codes.steps is None else total @ codes.steps
    terms: Float64 = scale * (count @ codes.squares) - 2 * sums
    return scale * terms
