"""What each layer's precision costs at the model's outputs.

Two figures, as noise power Σerr²/Σref² of the outputs. *Gain* is the noise that goes when only this
layer runs in FP32 and all others as planned (leave-one-out). *Alone* is the noise when only this
layer runs as planned and all others in FP32. With small errors and v_i for what layer i adds to the
outputs,

    alone_i = |v_i|²,    gain_i = |v_i|² + 2 v_i · Σ_{j≠i} v_j.

The gain is what pinning the layer gives. It is noisy on few samples: a change anywhere shifts the
values that every later layer rounds, and so redraws their rounding errors. Alone is precise, but
misses the products with the errors of other layers. `output_share` weighs both by how certain they
are, so it is the measured gain itself where all samples took part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from qdebug.metrics.sums import sample_energies
from qdebug.network.outputparts import OutputParts, parts_of
from qdebug.types import Array, Tensors


class EffectMode(StrEnum):
    """How much is measured: every layer on all samples, the leading ones within a bound on the
    work, or nothing."""

    EXACT = "exact"
    FAST = "fast"
    NONE = "none"


NO_PARTS: Mapping[str, OutputParts] = MappingProxyType({})
_AS_MUCH = 0.9
"""Harm of all, but for what other layers add: where values are gone, it does not grow."""
_MOST_ESTIMATED = 0.999
"""What was not measured on all samples does not make outputs exact."""
_MASKED = 0.5
"""A layer whose pinning takes away more of the noise is not masked by another."""
LEAST_CORRELATION = 0.1
"""Errors of two layers are taken to correlate at least so much at the outputs."""


@dataclass(frozen=True)
class Effect:
    """What one layer costs at the outputs.

    Attributes:
        gain: noise power that goes when only this layer runs in FP32; negative where its error
            makes up for others'; +inf where that makes broken outputs finite; null where it was
            not measured.
        alone: noise power when only this layer runs as planned; null where it was not measured.
        output_share: the part of the outputs' noise that pinning it takes away, the best estimate
            from both; null where the outputs hold NaN or Inf.
        output_share_std: standard error of it: 0 where every sample took part.
        metric_gain: what the end-to-end metric gains when only this layer runs in FP32, on the
            samples of the gain; null where it was not measured.
    """

    gain: float | None
    alone: float | None
    output_share: float | None
    output_share_std: float | None
    metric_gain: float | None = None


@dataclass(frozen=True)
class EffectSummary:
    """How the effects of the layers were measured.

    Attributes:
        noise: Σerr²/Σref² of the outputs, the mean over them, on the samples of the gains. Each
            part of an output that has parts counts as an output.
        samples: those of the gains; `alone_samples`: those of the errors alone.
        layers: how many have a gain, of `of_layers` that do not run in FP32.
        certain_ranks: how many of the first layers stand in an order that is certain: each leads
            the next by its standard error, at the least.
        grouped_layers: how many of `of_layers` were measured only in groups of layers that follow
            each other, whose noise is small against that of others: they have no effect of their
            own.
    """

    noise: float
    samples: int
    alone_samples: int
    layers: int
    of_layers: int
    certain_ranks: int
    grouped_layers: int = 0


def output_energies(
    reference: Tensors,
    candidate: Tensors,
    outputs: Sequence[str],
    samples: int,
    parts: Mapping[str, OutputParts] = NO_PARTS,
) -> Array:
    """Σerr² and Σref² of each output for each sample of a batch, float64 [outputs, 2, rows].

    An output that has `parts` is as many outputs here, so that none hides the others. There is a
    row per sample where the first axis of every output is a multiple of the samples, else one for
    all of them. Where the candidate holds NaN or Inf that the reference does not, or has another
    shape, Σerr² is +inf.
    """
    rows = samples if all(_splits(reference[t], samples) for t in outputs) else 1
    found = []
    for name in outputs:
        expected, given = reference[name], candidate.get(name)
        if given is None or given.shape != expected.shape:
            given = None
        pair = expected, expected if given is None else given
        both = (parts_of(parts.get(name), x) for x in pair)
        for one, other in zip(*both, strict=True):
            energies = sample_energies(one, other, rows)
            if given is None:
                energies[0] = np.inf
            found.append(energies)
    return np.stack(found)


def _splits(array: Array, samples: int) -> bool:
    return bool(array.ndim) and array.size > 0 and array.shape[0] % samples == 0


def noise_by_sample(energies: Array) -> Array:
    """The part of each sample in the outputs' noise, from `output_energies`; their sum is
    `ErrorTotals.noise`.

    Args:
        energies: float64 [outputs, 2, samples].

    Returns:
        float64 [samples].
    """
    errors, signals = energies[:, 0], energies[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(errors == 0, 0.0, errors / signals.sum(axis=1, keepdims=True))
    return np.asarray(parts.mean(axis=0))


@dataclass(frozen=True)
class EffectRuns:
    """The outputs' noise in each run, by sample: float64 [samples].

    Attributes:
        whole: everything as planned.
        pinned: only this layer in FP32.
        alone: only this layer as planned, perhaps on fewer samples; `whole_alone`: everything as
            planned on these.
        unseen: the part of all samples that are not among those of `whole`.
    """

    whole: Array
    pinned: Mapping[str, Array]
    alone: Mapping[str, Array]
    whole_alone: Array
    unseen: float


def effects_of(runs: EffectRuns) -> dict[str, Effect]:
    """The effect of every layer that was measured either way, by name."""
    names = list(dict.fromkeys([*runs.alone, *runs.pinned]))
    total, total_alone = float(runs.whole.sum()), float(runs.whole_alone.sum())
    estimates: dict[str, tuple[float, float]] | dict[str, tuple[None, None]]
    if not (math.isfinite(total) and math.isfinite(total_alone)):
        estimates = dict.fromkeys(names, (None, None))
    elif total <= 0 or total_alone <= 0:  # exact: nothing to share out
        estimates = dict.fromkeys(names, (0.0, 0.0))
    else:
        estimates = _shares(runs, names, total, total_alone)
    return {name: Effect(_gain(runs, name), _alone(runs, name), *estimates[name]) for name in names}


def _gain(runs: EffectRuns, name: str) -> float | None:
    if name not in runs.pinned:
        return None
    whole, rest = float(runs.whole.sum()), float(runs.pinned[name].sum())
    return None if math.isinf(whole) and math.isinf(rest) else whole - rest


def _alone(runs: EffectRuns, name: str) -> float | None:
    return float(runs.alone[name].sum()) if name in runs.alone else None


def _shares(
    runs: EffectRuns, names: Sequence[str], total: float, total_alone: float
) -> dict[str, tuple[float, float]]:
    """Share and standard error of each layer: the posterior mean and deviation of its gain.

    A normal prior around the share alone a_i, with variance ρ² a_i, since the product with other
    errors, 2 v_i · Σ v_j, is at most of the order of |v_i| · |Σ v_j|; ρ² from the gains that were
    measured, by moments (empirical Bayes; Efron & Morris, JASA 68 (1973) 117).
    """
    alone = {n: float(x.sum()) / total_alone for n, x in runs.alone.items()}
    measured = {
        n: mean_share(runs.whole - runs.pinned[n], total, runs.unseen)
        for n in runs.pinned
        if np.isfinite(runs.pinned[n]).all()
    }
    both = [n for n in measured if math.isfinite(alone.get(n, math.nan))]
    excess = sum((measured[n][0] - alone[n]) ** 2 - measured[n][1] for n in both)
    weight = sum(alone[n] for n in both)
    spread = max(LEAST_CORRELATION**2, excess / weight if weight > 0 else 0.0)
    return {n: _posterior(alone.get(n, math.nan), measured.get(n), spread) for n in names}


def mean_share(differences: Array, total: float, unseen: float) -> tuple[float, float]:
    """A gain, given by sample, as a share of `total`, and the variance of that: of its mean over
    samples, of which all are known in the end (finite population; Cochran, Sampling Techniques,
    1977, §2.6)."""
    count = len(differences)
    share = float(differences.sum()) / total
    if unseen <= 0:
        return share, 0.0
    if count < 2:
        return share, math.inf
    return share, unseen * count * float(differences.var(ddof=1)) / total**2


def _posterior(
    alone: float, measured: tuple[float, float] | None, spread: float
) -> tuple[float, float]:
    if not math.isfinite(alone):
        share, variance = measured or (math.nan, math.nan)
        return share, math.sqrt(variance)
    prior = spread * alone
    if measured is None or math.isinf(measured[1]):
        return min(alone, _MOST_ESTIMATED), math.sqrt(prior)
    share, variance = measured
    if variance == 0:
        return share, 0.0
    trust = prior / (prior + variance)
    most = share if _MOST_ESTIMATED < share < 1 else _MOST_ESTIMATED
    return min(most, alone + trust * (share - alone)), math.sqrt(trust * variance)


def gain_db(share: float) -> float:
    """By how much an SQNR rises when this share of the noise power goes, in dB: +inf where all of
    it goes, negative where noise is added."""
    return math.inf if share >= 1 else -10 * math.log10(1 - share)


def rank_key(effect: Effect, noise: float) -> tuple[float, float]:
    """Sort key, the costliest first: layers that alone make the outputs finite when pinned; then
    those that do as much harm alone as all together, which others mask: pinning one of them gives
    nothing as long as another is left; then by share.

    Args:
        noise: of the outputs, with everything as planned.
    """
    if effect.gain == math.inf:
        return (0.0, 0.0)
    alone, share = effect.alone or 0.0, effect.output_share
    if is_masked(effect, noise):
        return (1.0, -alone)
    return (2.0, -alone if share is None else -share)


def is_masked(effect: Effect, noise: float) -> bool:
    """Whether the layer does as much harm alone as all together, and yet pinning it gives little:
    another does the same harm."""
    alone, share = effect.alone or 0.0, effect.output_share
    return math.isinf(alone) or (
        alone >= _AS_MUCH * noise > 0 and (share is None or share < _MASKED)
    )


def certain_ranks(ranked: Sequence[Effect], noise: float) -> int:
    """How many of the first layers lead the next by the standard error of the difference."""
    for k, (one, other) in enumerate(pairwise(ranked)):
        if rank_key(one, noise)[0] < rank_key(other, noise)[0]:
            continue
        shares = one.output_share, other.output_share
        if shares[0] is None or shares[1] is None:
            return k
        deviation = math.hypot(one.output_share_std or 0.0, other.output_share_std or 0.0)
        if shares[0] - shares[1] < deviation:
            return k
    return len(ranked)
