"""Error sums of one tensor: one pass over the data, float64 totals, mergeable by addition."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdebug.types import Array

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Elements handled at a time: three float32 arrays of this size stay in a core's own cache.
_BLOCK = 1 << 15
# Elements summed in float32 before float64 takes over: keeps the sums within 1e-6 of exact.
_PIECE = 1 << 12
# Squares of magnitudes outside of this leave float32's normal range.
_SAFE = (1e-15, 1e15)


@dataclass(frozen=True)
class ErrorSums:
    """Totals over some samples of one tensor.

    Positions at which reference and candidate hold the same NaN or Inf (a mask's -inf) count as
    equal; others at which either is not finite are counted in `mismatched_non_finite` and left
    out of the sums.
    """

    count: int = 0
    abs_err: float = 0.0
    sq_err: float = 0.0
    ref_sq: float = 0.0
    cand_sq: float = 0.0
    dot: float = 0.0
    max_abs_err: float = 0.0
    ref_amax: float = 0.0
    cand_amax: float = 0.0
    clipped: int | None = None
    nan_count: int = 0
    inf_count: int = 0
    mismatched_non_finite: int = 0
    worst_sample: int | None = None
    worst_ratio: float = -1.0
    """Σerr²/Σref² of the worst sample; +inf where it holds NaN or Inf that do not belong there."""
    channel_sq_err: Float64 | None = None
    channel_ref_sq: Float64 | None = None

    def merge(self, other: ErrorSums) -> ErrorSums:
        """The totals over both. Associative up to float64 rounding; ties keep the first sample."""
        worse = other.worst_ratio > self.worst_ratio or (
            other.worst_ratio == self.worst_ratio
            and other.worst_sample is not None
            and (self.worst_sample is None or other.worst_sample < self.worst_sample)
        )
        worst = other if worse else self
        return ErrorSums(
            count=self.count + other.count,
            abs_err=self.abs_err + other.abs_err,
            sq_err=self.sq_err + other.sq_err,
            ref_sq=self.ref_sq + other.ref_sq,
            cand_sq=self.cand_sq + other.cand_sq,
            dot=self.dot + other.dot,
            max_abs_err=max(self.max_abs_err, other.max_abs_err),
            ref_amax=max(self.ref_amax, other.ref_amax),
            cand_amax=max(self.cand_amax, other.cand_amax),
            clipped=_add(self.clipped, other.clipped),
            nan_count=self.nan_count + other.nan_count,
            inf_count=self.inf_count + other.inf_count,
            mismatched_non_finite=self.mismatched_non_finite + other.mismatched_non_finite,
            worst_sample=worst.worst_sample,
            worst_ratio=worst.worst_ratio,
            channel_sq_err=_add_channels(self.channel_sq_err, other.channel_sq_err),
            channel_ref_sq=_add_channels(self.channel_ref_sq, other.channel_ref_sq),
        )


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure beside the totals.

    Attributes:
        clip_limit: magnitude beyond which the candidate's values are clipped, or None.
        channel_axis: axis of the channels, counted from the sample axis, or None.
    """

    clip_limit: float | None = None
    channel_axis: int | None = None


def measure(
    reference: Array,
    candidate: Array,
    *,
    first_sample: int = 0,
    samples: int = 1,
    options: MeasureOptions | None = None,
) -> ErrorSums:
    """The sums over one execution.

    Args:
        reference, candidate: same shape, any floating type. The leading axis is split evenly
            among the samples; where that is impossible the array counts as one sample.
        first_sample: number of the first sample in it.
        samples: how many samples the arrays hold.
        options: what to measure beside the totals.

    Raises:
        ValueError: the shapes differ.
    """
    options = options or MeasureOptions()
    if reference.shape != candidate.shape:
        raise ValueError(f"shape {reference.shape} against {candidate.shape}")
    rows = samples if reference.ndim and reference.shape[0] % samples == 0 else 1
    ref = np.ascontiguousarray(reference).reshape(rows, -1)
    cand = np.ascontiguousarray(candidate).reshape(rows, -1)
    if ref.size == 0:
        return ErrorSums(clipped=None if options.clip_limit is None else 0)
    parts = None
    if ref.dtype == np.float32 and cand.dtype in (np.float32, np.float16):
        with np.errstate(all="ignore"):  # what overflows is found below and summed again in float64
            parts = _fast_parts(ref, cand, options.clip_limit)
    mismatched = np.zeros(rows, np.int64)
    nan_count = inf_count = 0
    if parts is None or not parts.is_safe():
        clean = _cleaned(ref, cand)
        ref, cand, mismatched = clean.ref, clean.cand, clean.mismatched
        parts = replace(
            _exact_parts(ref, cand, options.clip_limit),
            ref_amax=clean.ref_amax,
            cand_amax=clean.cand_amax,
        )
        nan_count, inf_count = clean.nan_count, clean.inf_count
    sums = _totals(parts, ref.size, first_sample, mismatched)
    sums = replace(sums, nan_count=nan_count, inf_count=inf_count)
    if options.channel_axis is None or reference.ndim < 2:
        return sums
    return _with_channels(sums, ref, cand, reference.shape, options.channel_axis)


def error_energy(reference: Array, other: Array) -> float:
    """Σ(reference − other)²; NaN where `other` is not finite although the reference is."""
    ref = np.ascontiguousarray(reference).reshape(1, -1)
    values = np.ascontiguousarray(other).reshape(1, -1)
    total = 0.0
    with np.errstate(all="ignore"):  # what overflows is summed again in float64
        for left in range(0, ref.size, _BLOCK):
            block = (slice(None), slice(left, left + _BLOCK))
            difference = ref[block].astype(np.float32, copy=False) - values[block]
            total += float(_piecewise_dot(difference, difference)[0])
    if math.isfinite(total) and total > _SAFE[0] ** 2:
        return total
    clean = _cleaned(ref, values)
    if clean.mismatched[0]:
        return math.nan
    return float(np.square(clean.ref - clean.cand).sum())


def sample_ratios(reference: Array, candidate: Array, samples: int) -> Float64:
    """Σerr²/Σref² of each sample, float64 [samples]; +inf where the candidate is not finite."""
    rows = samples if reference.ndim and reference.shape[0] % samples == 0 else 1
    clean = _cleaned(reference.reshape(rows, -1), candidate.reshape(rows, -1))
    error = np.square(clean.ref - clean.cand).sum(axis=1)
    signal = np.square(clean.ref).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / signal)
    return np.resize(np.where(clean.mismatched > 0, np.inf, ratio), samples)


@dataclass(frozen=True)
class _Parts:
    """Sums per sample, float64 [rows], and extremes over all."""

    abs_err: Float64
    sq_err: Float64
    ref_sq: Float64
    cand_sq: Float64
    dot: Float64
    max_abs_err: float
    ref_amax: float
    cand_amax: float
    clipped: int | None

    def is_safe(self) -> bool:
        """Whether float32 squares neither overflowed nor vanished, and nothing was NaN or Inf."""
        low, high = _SAFE
        magnitudes = (self.ref_amax, self.cand_amax, self.max_abs_err)
        if not all(math.isfinite(m) and m < high and (m > low or m == 0) for m in magnitudes):
            return False
        return bool(np.isfinite(self.sq_err.sum() + self.dot.sum()))


def _fast_parts(ref: Array, cand: Array, clip_limit: float | None) -> _Parts:
    """Sums in float32 over pieces that fit the cache, float64 over the pieces.

    Measured 5 times as fast as float64 throughout; max() propagates NaN, so that is_safe sees it.
    """
    rows, width = ref.shape
    totals = np.zeros((5, rows), np.float64)
    peak = np.zeros(3, np.float64)
    clipped = 0
    height = max(1, _BLOCK // width)
    for top in range(0, rows, height):
        bottom = min(rows, top + height)
        step = max(_PIECE, _BLOCK // (bottom - top) // _PIECE * _PIECE)
        for left in range(0, width, step):
            block = (slice(top, bottom), slice(left, left + step))
            r, c = ref[block], cand[block].astype(np.float32, copy=False)
            difference = np.abs(r - c)
            for total, (a, b) in zip(
                totals[1:], ((difference, difference), (r, r), (c, c), (r, c)), strict=True
            ):
                total[top:bottom] += _piecewise_dot(a, b)
            totals[0, top:bottom] += difference.sum(axis=1)
            magnitude = np.abs(c)
            extremes = (difference.max(), np.abs(r).max(), magnitude.max())
            peak = np.maximum(peak, extremes)
            if clip_limit is not None:
                clipped += int(np.count_nonzero(magnitude > np.float32(clip_limit)))
    abs_err, sq_err, ref_sq, cand_sq, dot = totals
    max_abs_err, ref_amax, cand_amax = (float(p) for p in peak)
    return _Parts(
        abs_err,
        sq_err,
        ref_sq,
        cand_sq,
        dot,
        max_abs_err,
        ref_amax,
        cand_amax,
        None if clip_limit is None else clipped,
    )


def _piecewise_dot(a: Float32, b: Float32) -> Float64:
    """Row-wise Σab of [rows, width]: float32 inside pieces, float64 across them."""
    rows, width = a.shape
    whole = width // _PIECE * _PIECE
    total = np.zeros(rows, np.float64)
    if whole:
        shape = (rows, whole // _PIECE, _PIECE)
        pieces = np.vecdot(a[:, :whole].reshape(shape), b[:, :whole].reshape(shape))
        total += np.sum(pieces, axis=1, dtype=np.float64)
    if whole < width:
        total += np.vecdot(a[:, whole:], b[:, whole:])
    return total


@dataclass(frozen=True)
class _Cleaned:
    """Float64 copies of both arrays with every position zeroed at which either is not finite."""

    ref: Float64
    cand: Float64
    mismatched: npt.NDArray[np.int64]
    """Per row, positions that are not finite and do not hold the same in both."""
    nan_count: int
    inf_count: int
    ref_amax: float
    cand_amax: float


def _cleaned(ref: Array, cand: Array) -> _Cleaned:
    r, c = ref.astype(np.float64), cand.astype(np.float64)
    bad = ~(np.isfinite(r) & np.isfinite(c))
    same = (r == c) | (np.isnan(r) & np.isnan(c))
    amax = [float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) for x in (r, c)]
    nan_count, inf_count = int(np.isnan(c).sum()), int(np.isinf(c).sum())
    r[bad] = 0.0
    c[bad] = 0.0
    return _Cleaned(r, c, (bad & ~same).sum(axis=1), nan_count, inf_count, *amax)


def _exact_parts(ref: Float64, cand: Float64, clip_limit: float | None) -> _Parts:
    difference = np.abs(ref - cand)
    magnitude = np.abs(cand)
    return _Parts(
        abs_err=difference.sum(axis=1),
        sq_err=np.vecdot(difference, difference),
        ref_sq=np.vecdot(ref, ref),
        cand_sq=np.vecdot(cand, cand),
        dot=np.vecdot(ref, cand),
        max_abs_err=float(difference.max()),
        ref_amax=float(np.abs(ref).max()),
        cand_amax=float(magnitude.max()),
        clipped=None if clip_limit is None else int(np.count_nonzero(magnitude > clip_limit)),
    )


def _totals(
    parts: _Parts, count: int, first_sample: int, mismatched: npt.NDArray[np.int64]
) -> ErrorSums:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(parts.sq_err == 0, 0.0, parts.sq_err / parts.ref_sq)
    ratio = np.where(mismatched > 0, np.inf, ratio)
    worst = int(np.argmax(ratio))
    return ErrorSums(
        count=count,
        abs_err=float(parts.abs_err.sum()),
        sq_err=float(parts.sq_err.sum()),
        ref_sq=float(parts.ref_sq.sum()),
        cand_sq=float(parts.cand_sq.sum()),
        dot=float(parts.dot.sum()),
        max_abs_err=parts.max_abs_err,
        ref_amax=parts.ref_amax,
        cand_amax=parts.cand_amax,
        clipped=parts.clipped,
        mismatched_non_finite=int(mismatched.sum()),
        worst_sample=first_sample + worst,
        worst_ratio=float(ratio[worst]),
    )


def _with_channels(
    sums: ErrorSums, ref: Array, cand: Array, shape: tuple[int, ...], axis: int
) -> ErrorSums:
    r = ref.reshape(shape)
    difference = r - cand.reshape(shape).astype(r.dtype, copy=False)
    return replace(
        sums,
        channel_sq_err=_channel_energy(difference, axis),
        channel_ref_sq=_channel_energy(r, axis),
    )


def _channel_energy(values: Array, axis: int) -> Float64:
    """Σv² along every axis but `axis`; float64 [channels]."""
    axis %= values.ndim
    if axis == values.ndim - 1:
        flat = values.reshape(-1, values.shape[-1])
        return np.asarray(np.einsum("ic,ic->c", flat, flat), np.float64)
    rows = values.reshape(int(np.prod(values.shape[:axis])), values.shape[axis], -1)
    return np.asarray(np.vecdot(rows, rows).sum(axis=0, dtype=np.float64))


def _add(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _add_channels(a: Float64 | None, b: Float64 | None) -> Float64 | None:
    if a is None or b is None:
        return b if a is None else a
    # A data-dependent channel count has no channel of its own to compare.
    return a + b if a.shape == b.shape else None
