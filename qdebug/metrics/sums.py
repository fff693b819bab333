"""Error sums of one tensor: one pass over the data, float64 totals, mergeable by addition."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qdebug.metrics.kernel import (
    Float64,
    Parts,
    RowSums,
    channel_energies,
    difference_energy,
    exact_parts,
    fast_parts,
)
from qdebug.types import Array


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
    by_sample: tuple[float, ...] = field(default=(), compare=False)
    """Σerr²/Σref² of each sample, of a single execution; totals keep none."""

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

    def worst_channel(self) -> WorstChannel | None:
        """The channel with the lowest SQNR; None where channels were not measured, where none has a
        signal, or where the candidate holds NaN or Inf that do not belong there."""
        errors, signals = self.channel_sq_err, self.channel_ref_sq
        if errors is None or signals is None or self.mismatched_non_finite:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(errors == 0, 0.0, errors / signals)
        # A channel without a signal has no SQNR: the noise that it carries says little.
        ratio = np.where((signals == 0) & (errors > 0), -1.0, ratio)
        worst = int(np.argmax(ratio))
        if ratio[worst] < 0:  # none has a signal
            return None
        return WorstChannel(worst, float(signals[worst]), float(errors[worst]))


class WorstChannel(NamedTuple):
    """A channel, with Σref² and Σerr² of its values."""

    channel: int
    ref_sq: float
    sq_err: float


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure besides the totals.

    Attributes:
        clip_limit: magnitude beyond which the candidate's values are clipped, or None.
        clip_bounds: the same for a range that is not symmetric: below the first, above the second.
        channel_axis: axis of the channels, counted from the sample axis, or None.
        most_channels: a longer axis has none.
        part_starts: see ErrorSums; along `channel_axis`.
    """

    clip_limit: float | None = None
    channel_axis: int | None = None
    clip_bounds: tuple[float, float] | None = None
    most_channels: float = math.inf
    part_starts: tuple[int, ...] = ()

    def clipped(self, values: Array) -> int | None:
        """How many of `values` are beyond `clip_bounds`; None where there are none."""
        if self.clip_bounds is None:
            return None
        low, high = (np.float32(x) for x in self.clip_bounds)
        return int(np.count_nonzero(values < low) + np.count_nonzero(values > high))


_NOTHING_ELSE = MeasureOptions()


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
        options: what to measure besides the totals.

    Raises:
        ValueError: the shapes differ.
    """
    options = options or _NOTHING_ELSE
    if reference.shape != candidate.shape:
        raise ValueError(f"shape {reference.shape} against {candidate.shape}")
    if reference.size == 0:
        counted = options.clip_limit is not None or options.clip_bounds is not None
        return ErrorSums(clipped=0 if counted else None)
    rows = samples if reference.ndim and reference.shape[0] % samples == 0 else 1
    ref = np.ascontiguousarray(reference).reshape(rows, -1)
    cand = np.ascontiguousarray(candidate).reshape(rows, -1)
    if ref.dtype == np.float32 and cand.dtype in (np.float32, np.float16):
        with np.errstate(all="ignore"):  # what overflows is found by is_safe and summed again
            parts = fast_parts(ref, cand, options.clip_limit)
            channels = _channels(ref, cand, reference.shape, options)
        if parts.is_safe():
            totals = _totals(parts, ref.size, first_sample, None, channels)
            return _with_options(totals, cand, options)
    clean = _cleaned(ref, cand)
    parts = exact_parts(clean.ref, clean.cand, options.clip_limit)
    channels = _channels(clean.ref, clean.cand, reference.shape, options)
    return _with_options(_totals(parts, ref.size, first_sample, clean, channels), cand, options)


def _with_options(totals: ErrorSums, cand: Array, options: MeasureOptions) -> ErrorSums:
    if options.clip_bounds:
        totals = replace(totals, clipped=options.clipped(cand))
    return replace(totals, part_starts=options.part_starts) if options.part_starts else totals


def error_energy(reference: Array, other: Array) -> float:
    """Σ(reference − other)²; NaN where `other` is not finite although the reference is."""
    ref = np.ascontiguousarray(reference).reshape(-1)
    values = np.ascontiguousarray(other).reshape(-1)
    if ref.dtype == np.float32 and values.dtype in (np.float32, np.float16):
        with np.errstate(all="ignore"):  # what overflows is summed again in float64
            total = difference_energy(ref, values)
        if math.isfinite(total) and total > 1e-30:
            return total
        if total == 0 and np.array_equal(ref, values):
            return 0.0
    clean = _cleaned(ref.reshape(1, -1), values.reshape(1, -1))
    if clean.mismatched[0]:
        return math.nan
    return float(np.square(clean.ref - clean.cand).sum())


def signal_energy(values: Array) -> float:
    """Σv² of the finite `values`."""
    wide = values.astype(np.float64)
    return float(np.square(wide, where=np.isfinite(wide), out=np.zeros_like(wide)).sum())


def sample_ratios(reference: Array, candidate: Array, samples: int) -> list[float]:
    """Σerr²/Σref² of each sample; +inf where the candidate is not finite."""
    rows = samples if reference.ndim and reference.shape[0] % samples == 0 else 1
    clean = _cleaned(reference.reshape(rows, -1), candidate.reshape(rows, -1))
    parts = exact_parts(clean.ref, clean.cand, None)
    ratios = [
        _ratio(row, bad) for row, bad in zip(parts.rows, clean.mismatched.tolist(), strict=True)
    ]
    return ratios if rows == samples else ratios * samples


def sample_energies(reference: Array, candidate: Array, rows: int) -> Float64:
    """Σerr² and Σref² of each of `rows` equal parts of the first axis, float64 [2, rows]; Σerr² is
    +inf where the candidate is not finite although the reference is."""
    clean = _cleaned(reference.reshape(rows, -1), candidate.reshape(rows, -1))
    errors = np.square(clean.ref - clean.cand).sum(axis=1)
    errors[clean.mismatched > 0] = np.inf
    return np.stack([errors, np.square(clean.ref).sum(axis=1)])


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


def _totals(
    parts: Parts,
    count: int,
    first_sample: int,
    clean: _Cleaned | None,
    channels: tuple[Float64 | None, Float64 | None],
) -> ErrorSums:
    mismatched = clean.mismatched.tolist() if clean else [0] * len(parts.rows)
    ratios = [_ratio(row, bad) for row, bad in zip(parts.rows, mismatched, strict=True)]
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    return ErrorSums(
        count=count,
        abs_err=sum(row.abs_err for row in parts.rows),
        sq_err=sum(row.sq_err for row in parts.rows),
        ref_sq=sum(row.ref_sq for row in parts.rows),
        cand_sq=sum(row.cand_sq for row in parts.rows),
        dot=sum(row.dot for row in parts.rows),
        max_abs_err=parts.max_abs_err,
        ref_amax=clean.ref_amax if clean else parts.ref_amax,
        cand_amax=clean.cand_amax if clean else parts.cand_amax,
        clipped=parts.clipped,
        nan_count=clean.nan_count if clean else 0,
        inf_count=clean.inf_count if clean else 0,
        mismatched_non_finite=sum(mismatched),
        worst_sample=first_sample + worst,
        worst_ratio=ratios[worst],
        channel_sq_err=channels[0],
        channel_ref_sq=channels[1],
        by_sample=tuple(ratios),
    )


def _ratio(row: RowSums, mismatched: int) -> float:
    """Σerr²/Σref², by which samples compare; +inf for one that is not finite where it should."""
    if mismatched:
        return math.inf
    if row.sq_err == 0:
        return 0.0
    return row.sq_err / row.ref_sq if row.ref_sq else math.inf


def _channels(
    ref: Array, cand: Array, shape: tuple[int, ...], options: MeasureOptions
) -> tuple[Float64 | None, Float64 | None]:
    """Σerr² and Σref² per channel."""
    axis = options.channel_axis
    if axis is None or len(shape) < 2 or not -len(shape) <= axis < len(shape):
        return None, None
    if shape[axis] > options.most_channels:
        return None, None
    return channel_energies(ref.reshape(shape), cand.reshape(shape), axis)


def _add(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _add_channels(a: Float64 | None, b: Float64 | None) -> Float64 | None:
    if a is None or b is None:
        return b if a is None else a
    # A data-dependent channel count has no channel of its own to compare.
    return a + b if a.shape == b.shape else None
