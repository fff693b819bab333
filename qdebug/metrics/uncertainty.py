"""How far a score on some samples may be from that on all, and whether a change is one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from qdebug.result import MaybeText

Float64 = npt.NDArray[np.float64]
Interval = tuple[float, float]

_LEVEL = 0.95
_RESAMPLES = 2000
"""Of a bootstrap: its 2.5 % are then known to a tenth of their size (Efron and Tibshirani 1993, ch.
13 take 1000 to 2000)."""

_AT_ONCE = 100
"""Resamples that are drawn together: memory is that of so many copies of the samples' numbers."""


@dataclass(frozen=True)
class Uncertainty:
    """Of a candidate's score, and of its change from the reference's, on the same samples.

    Attributes:
        interval: of the score, 95 %.
        change: of candidate minus reference, 95 %.
        p_value: of a change as large by chance, two-sided; null where the reference is the truth,
            from which any change is one.
        test: how that was found, for people; null without.
    """

    interval: Interval
    change: Interval
    p_value: float | None
    test: MaybeText


def of_share(reference: Float64, candidate: Float64) -> Uncertainty:
    """Of samples that are right (1) or wrong (0): the score interval (Wilson 1927), the interval of
    a difference of paired shares (Newcombe 1998, method 10), and the exact test of McNemar
    (1947)."""
    from scipy.special import bdtr  # here, as scipy takes its time at every start

    n = len(candidate)
    lost = int(((reference == 1) & (candidate == 0)).sum())
    won = int(((reference == 0) & (candidate == 1)).sum())
    before, after = float(reference.mean()), float(candidate.mean())
    p_value = min(1.0, 2 * float(bdtr(min(lost, won), lost + won, 0.5)))
    own, first = share_interval(after, n), share_interval(before, n)
    change = _of_difference((before, first), (after, own), _correlation(reference, candidate))
    return Uncertainty(own, change, p_value, "McNemar's test")


def of_mean(reference: Float64, candidate: Float64) -> Uncertainty:
    """Of scores of single samples of which the mean is the score: the bootstrap of samples, drawn
    in pairs (Efron and Tibshirani 1993, ch. 13)."""
    random, n = np.random.default_rng(0), len(candidate)
    pairs = np.stack([candidate, candidate - reference])
    drawn = np.array([pairs[:, random.integers(0, n, n)].mean(axis=1) for _ in range(_RESAMPLES)])
    changes = drawn[:, 1]
    # An observation is counted among those that chance would give (Davison and Hinkley 1997, 4.2).
    extreme = min((changes <= 0).sum(), (changes >= 0).sum())
    p_value = min(1.0, 2 * (float(extreme) + 1) / (_RESAMPLES + 1))
    return Uncertainty(_middle(drawn[:, 0]), _middle(changes), p_value, "paired bootstrap")


def share_interval(share: float, n: float, z: float | None = None) -> Interval:
    """The 95 % score interval of a share of `n` samples (Wilson 1927); `z` is another quantile than
    that of the normal distribution."""
    z = NormalDist().inv_cdf((1 + _LEVEL) / 2) if z is None else z
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def of_groups(
    score: float,
    change: float,
    left_out: Float64,
    reference_left_out: Float64,
    bounds: Interval | None = None,
    *,
    is_truth: bool = False,
) -> Uncertainty | None:
    """Of any score: the jackknife over groups of samples (Efron and Tibshirani 1993, 11.5), with
    Student's t.

    A score within bounds has the interval of a share (Wilson 1927) of as many samples as would have
    the jackknife's standard error (Korn and Graubard 1998, Survey Methodology 24, 193): it stays
    within the bounds, however few samples there are. A change has the jackknife's own interval, as
    its p has: the difference of two intervals of scores is many times as wide where both go up and
    down together, since they are not alike to both sides. Where no group changes it, and from a
    truth, it is that difference (Zou and Donner 2008, Statistics in Medicine 27, 1693).

    Args:
        left_out: the score without each group in turn, float64 [groups].
        reference_left_out: the reference's likewise.
        bounds: the least and the largest score that there is, where both are known.
        is_truth: the reference is the truth, so that its score has no error, nor has one that is
            the same whatever is left out.
    """
    from scipy.special import stdtr, stdtrit

    groups = len(left_out)
    if groups < 2:
        return None
    within = float(stdtrit(groups - 1, (1 + _LEVEL) / 2))
    error = _jackknife(left_out)
    of_change = _jackknife(left_out - reference_left_out)
    if of_change:
        p_value = float(2 * stdtr(groups - 1, -abs(change) / of_change))
    else:
        p_value = 1.0 if change == 0 else 0.0
    of_both = change - within * of_change, change + within * of_change
    if bounds is None:
        own = score - within * error, score + within * error
    else:
        before = score - change
        own = score, score
        if error or not is_truth:
            own = _bounded(score, error, groups, within, bounds)
        first = before, before
        if not is_truth:
            first = _bounded(before, _jackknife(reference_left_out), groups, within, bounds)
        if is_truth or not of_change:
            agreed = _correlation(reference_left_out, left_out)
            of_both = _of_difference((before, first), (score, own), agreed)
        most = bounds[1] - bounds[0]
        of_both = max(of_both[0], -most), min(of_both[1], most)
    return Uncertainty(own, of_both, p_value, "paired jackknife")


def of_noise(energies: Float64) -> Interval | None:
    """The 95 % interval of Σerr²/Σref², averaged over the outputs: the bootstrap of samples (Efron
    and Tibshirani 1993, ch. 13); None of a single sample, and where values are not finite.

    Args:
        energies: Σerr² and Σref² of each output and sample, float64 [outputs, 2, samples].
    """
    n = energies.shape[2]
    if n < 2 or not np.isfinite(energies).all():
        return None
    random, drawn = np.random.default_rng(0), []
    for _ in range(_RESAMPLES // _AT_ONCE):
        times = random.multinomial(n, np.full(n, 1 / n), size=_AT_ONCE).astype(np.float64)
        errors, signals = np.moveaxis(energies @ times.T, 1, 0)  # [outputs, resamples] each
        ratios = np.divide(errors, signals, out=np.zeros_like(errors), where=signals > 0)
        drawn.append(ratios.mean(axis=0))
    return _middle(np.concatenate(drawn))


def group_numbers(members: int, most: int) -> npt.NDArray[np.int64]:
    """The group of each of some members, from 0, int64 [members]: as many groups as `most`, of
    equal size within one. At random, the same every time: every so-many-th in one would be all of
    one kind where the kinds alternate, such as frames by day and by night."""
    return np.random.default_rng(0).permutation(members) % min(most, members)


def groups_of(samples: int, most: int) -> list[npt.NDArray[np.int64]]:
    """For each group of samples all others; see group_numbers."""
    if min(most, samples) < 2:
        return []
    numbers = group_numbers(samples, most)
    return [np.flatnonzero(numbers != group) for group in range(numbers.max() + 1)]


def _jackknife(left_out: Float64) -> float:
    count = len(left_out)
    spread = left_out - left_out.mean()
    return math.sqrt((count - 1) / count * float(spread @ spread))


def _of_difference(
    one: tuple[float, Interval], other: tuple[float, Interval], agreed: float
) -> Interval:
    """Of `other` minus `one`, each with its own interval, whose errors correlate by `agreed`."""
    (before, first), (after, own) = one, other

    def side(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up**2 - 2 * agreed * up * down + down**2))

    change = after - before
    low = change - side(after - own[0], first[1] - before)
    return low, change + side(own[1] - after, before - first[0])


def _bounded(score: float, error: float, groups: int, within: float, bounds: Interval) -> Interval:
    """Of a score with that standard error; of one without as of as many samples as groups."""
    least, width = bounds[0], bounds[1] - bounds[0]
    share, deviation = min(1.0, max(0.0, (score - least) / width)), error / width
    variance = share * (1 - share)
    samples = variance / deviation**2 if deviation > 0 and variance > 0 else groups
    low, high = share_interval(share, samples, within)
    return least + width * low, least + width * high


def _correlation(one: Float64, other: Float64) -> float:
    """Of two columns of 0 and 1; 0 where one of them does not vary."""
    spread = float(one.std() * other.std())
    if not spread:
        return 0.0
    return float(((one - one.mean()) * (other - other.mean())).mean()) / spread


def _middle(values: Float64) -> Interval:
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
