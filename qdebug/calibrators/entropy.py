"""entropy: TensorRT's calibration, the range whose 128 levels in INT8 lose the least information.

Of 2048 equal bins over [0, amax], the first i = 128 … 2048 are kept. P is those, with everything
beyond added to the last. Q is the same bins without what lies beyond, merged into 128 equal levels:
each bin that is not empty gets its level's mean over such bins. The i with the least

    KL(P ‖ Q) = Σ p · log(p / q),   p = P / ΣP,   q = Q / ΣQ

gives amax · i / 2048; of equals, the largest. An i whose last bin is empty while values lie beyond
is ruled out, since q would be 0 where p is not.

Of FP8 the levels are those of its codes, with bounds in the middle between them. Of 16 bits there
are more levels than bins, so that none is lost with all of them: it is the largest magnitude.

Source: Migacz, "8-bit inference with TensorRT", GTC 2017 (s7310), and what NVIDIA published of it
in pytorch-quantization and ModelOpt (HistogramCalibrator): these also give the first bin the second
one's count, so that the zeros of a ReLU do not decide. ONNX Runtime's variant (EntropyCalibrater)
keeps the zeros, and cuts i bins into 127 levels of i // 128 and a last one with the rest.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.histogram import Float64, TensorHistogram, magnitudes
from qdebug.formats.base import Format, Kind
from qdebug.formats.registry import INT8

BINS = 2048
LEVELS = 128

_TINY = float(np.finfo(np.float64).tiny)
_ROUNDING = 1e-12  # of the largest divergence
_ROWS = 64  # values of i that are handled together: what they need stays in a core's cache


def entropy_amax(histogram: TensorHistogram, form: Format = INT8) -> float:
    """The amax of least KL divergence in a format; 0 for a tensor without values other than 0."""
    amax = histogram.amax
    if amax == 0 or form.bits > INT8.bits:
        return amax
    kept = LEVELS + _last_smallest(divergences(linear_bins(histogram), form))
    return amax * kept / BINS


def linear_bins(histogram: TensorHistogram) -> Float64:
    """Whole counts of |x| in 2048 equal bins over [0, amax], float64 [2048]; the last has amax.
    Their edges are within 1/4096 of amax of the exact ones."""
    cuts = histogram.amax / BINS * np.arange(1, BINS, dtype=np.float64)
    above, _ = magnitudes(histogram).above(cuts)
    total = histogram.count
    return np.diff(total - np.rint(above), prepend=0.0, append=total)


def divergences(bins: Float64, form: Format = INT8) -> Float64:
    """ΣP · KL(P ‖ Q) for i = 128 … 2048, float64 [1921]; inf where Q is 0 and P is not."""
    bins = bins.copy()
    bins[0] = bins[1]
    log_bins = _x_log_x(bins)
    counts, full = _sums(bins), _sums(bins > 0)
    sizes = np.arange(LEVELS, BINS + 1)
    inside, last = counts[sizes], bins[sizes - 1]
    beyond = counts[-1] - inside
    own = _sums(log_bins)[sizes] - log_bins[sizes - 1] + _x_log_x(last + beyond)
    levels, log_last = _level_terms(counts, full, form)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_scale = np.log(inside) - np.log(counts[-1])
        found = own - levels - beyond * log_last + counts[-1] * log_scale
    return np.where((last == 0) & (beyond > 0) | (inside == 0), np.inf, found)


def _level_terms(counts: Float64, full: Float64, form: Format) -> tuple[Float64, Float64]:
    """For each i: Σ over levels of L · log(L / bins that are not empty), and that log for the last
    level."""
    index = _level_starts(form)
    terms, last = np.empty(len(index)), np.empty(len(index))
    for row in range(0, len(index), _ROWS):
        ends = index[row : row + _ROWS]
        level = _between(counts, ends)
        share = _between(full, ends)
        np.divide(level, np.maximum(share, 1, out=share), out=share)
        np.log(np.maximum(share, _TINY, out=share), out=share)
        terms[row : row + _ROWS] = np.vecdot(level, share)
        last[row : row + _ROWS] = share[:, -1]
    return terms, last


def _between(sums: Float64, ends: npt.NDArray[np.int64]) -> Float64:
    at = sums.take(ends, mode="clip")  # faster than with a check
    return at[:, 1:] - at[:, :-1]


@cache
def _level_starts(form: Format) -> npt.NDArray[np.int64]:
    """The first bin of each level, and the end, for i = 128 … 2048: int64 [1921, levels + 1]; there
    are 128 levels in INT8."""
    sizes = np.arange(LEVELS, BINS + 1)[:, None]
    if form.kind is Kind.INTEGER:
        return -(-np.arange(LEVELS + 1) * sizes // LEVELS)
    codes = form.magnitudes
    bounds = np.concatenate([[0.0], (codes[1:] + codes[:-1]) / 2, codes[-1:]]) / codes[-1]
    starts: npt.NDArray[np.int64] = np.ceil(bounds * sizes).astype(np.int64)
    return starts


def _sums(values: npt.NDArray[Any]) -> Float64:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _x_log_x(values: Float64) -> Float64:
    return values * np.log(np.maximum(values, 1.0))


def _last_smallest(values: Float64) -> int:
    """The last of those that only rounding keeps from being the smallest."""
    largest = np.max(values, where=np.isfinite(values), initial=0.0)
    return int(np.flatnonzero(values <= values.min() + _ROUNDING * largest)[-1])
