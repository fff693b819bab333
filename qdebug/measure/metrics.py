"""The error metrics of the contract, from sums that merge over batches, shards and machines."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from qdebug.measure.sums import ErrorSums


@dataclass(frozen=True)
class Metrics:
    """How far a candidate tensor is from its reference, over all samples.

    Attributes:
        max_abs_err, mean_abs_err, rmse: of reference − candidate, in the tensor's own units.
        sqnr_db: 10·log10(Σref² / Σ(ref − cand)²); +inf when equal.
        cosine: Σ ref·cand / √(Σref² · Σcand²).
        ref_amax, cand_amax: largest magnitudes.
        clipped_fraction: share of the candidate's values beyond the range of the Q/DQ pair that
            reads them; None where no Q/DQ pair reads the tensor.
        nan_count, inf_count: in the candidate.
        worst_sample: the sample with the lowest SQNR; None when no sample was measured.
        worst_sample_sqnr_db: its SQNR.
        worst_channel: the channel with the lowest SQNR; None where channels were not measured.
        worst_channel_sqnr_db: its SQNR.

    A metric is NaN when the candidate holds NaN or Inf where the reference does not.
    """

    max_abs_err: float
    mean_abs_err: float
    rmse: float
    sqnr_db: float
    cosine: float
    ref_amax: float
    cand_amax: float
    clipped_fraction: float | None
    nan_count: int
    inf_count: int
    worst_sample: int | None
    worst_sample_sqnr_db: float | None
    worst_channel: int | None
    worst_channel_sqnr_db: float | None

    @property
    def is_finite(self) -> bool:
        """Whether the candidate is finite wherever the reference is."""
        return not math.isnan(self.sqnr_db)


METRIC_NAMES = tuple(f.name for f in fields(Metrics))


def metrics_of(sums: ErrorSums) -> Metrics:
    """The metrics that follow from `sums`."""
    count = max(sums.count, 1)
    channel, channel_db = _worst_channel(sums)
    broken = sums.mismatched_non_finite > 0
    nan = math.nan

    def unless_broken(value: float) -> float:
        return nan if broken else value

    return Metrics(
        max_abs_err=unless_broken(sums.max_abs_err),
        mean_abs_err=unless_broken(sums.abs_err / count),
        rmse=unless_broken(math.sqrt(sums.sq_err / count)),
        sqnr_db=unless_broken(sqnr_db(sums.ref_sq, sums.sq_err)),
        cosine=unless_broken(_cosine(sums)),
        ref_amax=sums.ref_amax,
        cand_amax=sums.cand_amax,
        clipped_fraction=None if sums.clipped is None else sums.clipped / count,
        nan_count=sums.nan_count,
        inf_count=sums.inf_count,
        worst_sample=sums.worst_sample,
        worst_sample_sqnr_db=_ratio_db(sums),
        worst_channel=channel,
        worst_channel_sqnr_db=channel_db,
    )


def sqnr_db(signal_sq: float, error_sq: float) -> float:
    """Signal to quantization noise ratio in dB from two energies; +inf without any noise, and
    -inf for noise without a signal."""
    if error_sq == 0:
        return math.inf
    if signal_sq == 0:
        return -math.inf
    # Two logarithms: the ratio of two float64 energies may overflow, their logarithms cannot.
    return 10 * (math.log10(signal_sq) - math.log10(error_sq))


def _ratio_db(sums: ErrorSums) -> float | None:
    if sums.worst_sample is None:
        return None
    if math.isinf(sums.worst_ratio):
        return math.nan if sums.mismatched_non_finite else -math.inf
    return sqnr_db(1.0, sums.worst_ratio)


def _cosine(sums: ErrorSums) -> float:
    if sums.sq_err == 0:
        return 1.0
    norms = math.sqrt(sums.ref_sq) * math.sqrt(sums.cand_sq)
    return max(-1.0, min(1.0, sums.dot / norms)) if norms else 0.0


def _worst_channel(sums: ErrorSums) -> tuple[int | None, float | None]:
    if sums.channel_sq_err is None or sums.channel_ref_sq is None or sums.mismatched_non_finite:
        return None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = sums.channel_sq_err / sums.channel_ref_sq
    ratio = np.where(sums.channel_sq_err == 0, 0.0, ratio)
    # A channel without a signal has no SQNR; whatever noise it carries says little of the layer.
    ratio = np.where((sums.channel_ref_sq == 0) & (sums.channel_sq_err > 0), -1.0, ratio)
    worst = int(np.argmax(ratio))
    if ratio[worst] < 0:  # none has a signal
        return None, None
    return worst, sqnr_db(float(sums.channel_ref_sq[worst]), float(sums.channel_sq_err[worst]))
