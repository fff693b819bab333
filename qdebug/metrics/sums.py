"""Error sums of one tensor: one pass over the data, float64 totals, mergeable by addition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qdebug.types import Array

Float64 = npt.NDArray[np.float64]

_RUN = 1 << 12
"""Neighbours that float32 adds up before float64 takes over; BLAS starts no threads for so few."""
_TILE = 1 << 16
"""Values that are summed together: three float32 arrays of so many fit a core's own cache."""
_LEAST, _MOST = 1e-15, 1e15
"""Squares of magnitudes outside of this leave float32's normal range."""


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
    part_starts: tuple[int, ...] = ()
    """At which channels the parts of an output begin; () where it has none."""

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
            part_starts=self.part_starts or other.part_starts,
        )

    def part_energies(self) -> list[tuple[float, float]]:
        """Σref² and Σerr² of each part of an output that has parts, in order; else none."""
        errors, signals = self.channel_sq_err, self.channel_ref_sq
        if not self.part_starts or errors is None or signals is None:
            return []
        if self.part_starts[-1] >= len(errors):
            return []
        sums = (np.add.reduceat(x, self.part_starts).tolist() for x in (signals, errors))
        return list(zip(*sums, strict=True))

    def worst_channel(self) -> tuple[int, float] | None:
        """The channel with the lowest SQNR, and its Σerr²/Σref²; None where channels were not
        measured, where none has a signal, or where the candidate holds NaN or Inf that do not
        belong there."""
        errors, signals = self.channel_sq_err, self.channel_ref_sq
        if errors is None or signals is None or self.mismatched_non_finite:
            return None
        # A channel without a signal has no SQNR: the noise that it carries says little.
        ratio = np.where(errors > 0, -1.0, 0.0)
        np.divide(errors, signals, out=ratio, where=(errors > 0) & (signals > 0))
        worst = int(np.argmax(ratio))
        return None if ratio[worst] < 0 else (worst, float(ratio[worst]))


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure besides the totals.

    Attributes:
        bounds: values of the candidate below the first or above the second are clipped.
        channel_axis: axis of the channels, counted from the sample axis, or None.
        most_channels: a longer axis has none.
        part_starts: see ErrorSums; along `channel_axis`.
    """

    bounds: tuple[float, float] | None = None
    channel_axis: int | None = None
    most_channels: float = math.inf
    part_starts: tuple[int, ...] = ()

    def channels(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """How many channels an array of that shape has, and how many neighbours in memory belong to
        the same; 0 and 0 where it has none."""
        axis, rank = self.channel_axis, len(shape)
        if axis is None or rank < 2 or not -rank <= axis < rank or shape[axis] > self.most_channels:
            return 0, 0
        return shape[axis], math.prod(shape[axis % rank + 1 :])


_TOTALS_ALONE = MeasureOptions()


def measure(
    reference: Array,
    candidate: Array,
    *,
    first_sample: int = 0,
    samples: int = 1,
    options: MeasureOptions = _TOTALS_ALONE,
) -> ErrorSums:
    """The sums over one execution: within 2e-6 of exact where the reference is float32 and the
    candidate no wider, within float64 rounding else.

    Args:
        reference, candidate: same shape, any floating type. The leading axis is split evenly
            among the samples; where that is impossible the array counts as one sample.
        first_sample: number of the first sample in it.
        samples: how many samples the arrays hold.
        options: what to measure besides the totals.

    Raises:
        ValueError: the shapes differ.
    """
    shape, size = reference.shape, reference.size
    if shape != candidate.shape:
        raise ValueError(f"shape {shape} against {candidate.shape}")
    if size == 0:
        return ErrorSums(clipped=None if options.bounds is None else 0)
    if not shape or shape[0] % samples:
        samples = 1
    channels, neighbours = options.channels(shape)
    rows = size // neighbours if neighbours > 1 else samples
    ref, cand = (np.ascontiguousarray(x).reshape(rows, -1) for x in (reference, candidate))
    clean, found = None, None
    if ref.dtype == np.float32 and cand.dtype in (np.float32, np.float16):
        with np.errstate(all="ignore"):  # what overflows is summed again
            found = _sum_rows(ref, cand, options.bounds)
    if found is None or not found.is_safe():
        clean = _cleaned(ref, cand)
        ref, cand = clean.ref, clean.cand
        found = _sum_rows(ref, cand, options.bounds)
    by_channel: Float64 | None = None
    if neighbours > 1:
        by_channel = found.sums[1:3].reshape(2, -1, channels).sum(axis=1)
    elif channels:
        by_channel = _sum_columns(ref.reshape(-1, channels), cand.reshape(-1, channels))
    sums = found.sums.reshape(5, samples, -1).sum(axis=2)
    ratios = [noise_ratio(*both) for both in sums[1:3].T.tolist()]
    if clean:
        broken = clean.mismatched.reshape(samples, -1).any(axis=1)
        ratios = np.where(broken, math.inf, ratios).tolist()
    worst = max(range(samples), key=ratios.__getitem__)
    abs_err, sq_err, ref_sq, cand_sq, dot = sums.sum(axis=1).tolist()
    max_abs_err, ref_amax, cand_amax = found.peaks
    return ErrorSums(
        count=size,
        abs_err=abs_err,
        sq_err=sq_err,
        ref_sq=ref_sq,
        cand_sq=cand_sq,
        dot=dot,
        max_abs_err=max_abs_err,
        ref_amax=clean.ref_amax if clean else ref_amax,
        cand_amax=clean.cand_amax if clean else cand_amax,
        clipped=None if options.bounds is None else found.clipped,
        nan_count=clean.nan_count if clean else 0,
        inf_count=clean.inf_count if clean else 0,
        mismatched_non_finite=int(clean.mismatched.sum()) if clean else 0,
        worst_sample=first_sample + worst,
        worst_ratio=ratios[worst],
        channel_sq_err=None if by_channel is None else by_channel[0],
        channel_ref_sq=None if by_channel is None else by_channel[1],
        part_starts=options.part_starts,
    )


def noise_ratio(sq_err: float, ref_sq: float) -> float:
    """Σerr²/Σref²: 0 without an error, +inf of an error without a signal."""
    if sq_err == 0:
        return 0.0
    return sq_err / ref_sq if ref_sq else math.inf


def error_energy(reference: Array, other: Array) -> float:
    """Σ(reference − other)²; NaN where `other` is not finite although the reference is."""
    sums = measure(reference, other)
    return math.nan if sums.mismatched_non_finite else sums.sq_err


def signal_energy(values: Array) -> float:
    """Σv² of the finite `values`."""
    return measure(values, values).ref_sq


def sample_energies(reference: Array, candidate: Array, rows: int) -> Float64:
    """Σerr² and Σref² of each of `rows` equal parts of the first axis, float64 [2, rows]; Σerr² is
    +inf where the candidate is not finite although the reference is."""
    clean = _cleaned(reference.reshape(rows, -1), candidate.reshape(rows, -1))
    errors = np.square(clean.ref - clean.cand).sum(axis=1)
    errors[clean.mismatched > 0] = np.inf
    return np.stack([errors, np.square(clean.ref).sum(axis=1)])


class _Rows(NamedTuple):
    """What `_sum_rows` finds.

    Attributes:
        sums: of each row Σ|err|, Σerr², Σref², Σcand² and Σref·cand, float64 [5, rows].
        peaks: max |err|, max |ref| and max |cand| of all rows.
        clipped: how many values of the candidate are out of bounds.
    """

    sums: Float64
    peaks: tuple[float, float, float]
    clipped: int

    def is_safe(self) -> bool:
        """Whether float32 squares neither overflowed nor vanished, and nothing was NaN or Inf."""
        fit = all(_LEAST < peak < _MOST or peak == 0 for peak in self.peaks)
        return fit and bool(np.isfinite(self.sums).all())


def _sum_rows(ref: Array, cand: Array, bounds: tuple[float, float] | None) -> _Rows:
    """The sums of [rows, width], in the type of `ref` over each run, in float64 across."""
    low, high = bounds or (-math.inf, math.inf)
    sums, clipped = np.zeros((5, len(ref))), 0
    max_abs_err = ref_amax = cand_amax = 0.0
    for row, column in _tiles(*ref.shape):
        r = ref[row, column]
        c = cand[row, column].astype(ref.dtype, copy=False)
        d = r - c
        np.abs(d, out=d)
        least, most = float(c.min()), float(c.max())
        max_abs_err = max(max_abs_err, float(d.max()))
        ref_amax = max(ref_amax, float(r.max()), -float(r.min()))
        cand_amax = max(cand_amax, most, -least)
        if most > high:
            clipped += int(np.count_nonzero(c > high))
        if least < low:
            clipped += int(np.count_nonzero(c < low))
        r, c, d = (x.reshape(len(x), -1, min(_RUN, x.shape[1])) for x in (r, c, d))
        ones = np.ones(d.shape[2], d.dtype)  # BLAS is faster than `sum`
        pairs = (d, ones), (d, d), (r, r), (c, c), (r, c)
        found = np.array([np.vecdot(x, y) for x, y in pairs], np.float64)
        sums[:, row] += found.sum(axis=2)
    return _Rows(sums, (max_abs_err, ref_amax, cand_amax), clipped)


def _tiles(rows: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of tiles that are whole runs wide, or less than one."""
    whole = width // _RUN * _RUN
    for first, end in ((0, whole), (whole, width)):
        wide = min(end - first, _TILE)
        for column in range(first, end, wide or 1):
            for row in range(0, rows, _TILE // wide):
                yield slice(row, row + _TILE // wide), slice(column, min(column + wide, end))


def _sum_columns(ref: Array, cand: Array) -> Float64:
    """Σerr² and Σref² of each column of [rows, columns], float64 [2, columns]."""
    sums = np.zeros((2, ref.shape[1]))
    height = max(1, _TILE // ref.shape[1])
    for row in range(0, len(ref), height):
        r = ref[row : row + height]
        d = r - cand[row : row + height]
        sums += [np.einsum("ij,ij->j", x, x) for x in (d, r)]
    return sums


class _Clean(NamedTuple):
    """Float64 copies of both arrays, [rows, width], with 0 wherever either is not finite.

    Attributes:
        mismatched: positions that are not finite and do not hold the same in both, int64 [rows].
        nan_count, inf_count: of the candidate.
        ref_amax, cand_amax: largest finite magnitudes.
    """

    ref: Float64
    cand: Float64
    mismatched: npt.NDArray[np.int64]
    nan_count: int
    inf_count: int
    ref_amax: float
    cand_amax: float


def _cleaned(ref: Array, cand: Array) -> _Clean:
    r, c = ref.astype(np.float64), cand.astype(np.float64)
    bad = ~(np.isfinite(r) & np.isfinite(c))
    same = (r == c) | (np.isnan(r) & np.isnan(c))
    amax = [float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) for x in (r, c)]
    nan_count, inf_count = int(np.isnan(c).sum()), int(np.isinf(c).sum())
    r[bad] = 0.0
    c[bad] = 0.0
    return _Clean(r, c, (bad & ~same).sum(axis=1), nan_count, inf_count, *amax)


def _add(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _add_channels(a: Float64 | None, b: Float64 | None) -> Float64 | None:
    if a is None or b is None:
        return b if a is None else a
    # A data-dependent channel count has no channel of its own to compare.
    return a + b if a.shape == b.shape else None
