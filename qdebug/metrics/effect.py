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
from dataclasses import dataclass, field
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
        metric_gain: what the end-to-end metric gains when only this layer runs in FP32: on the
            samples of the gain, where these are all, else that of the first layers on those of the
            curve; null where it was not measured.
        loss_share: the part of what the metric's loss rises by that pinning it takes away, as
            `output_share` is of the noise; null where the metric has no loss, or next to
            nothing is lost by it.
        worst_part_share: the same of the noise of the noisiest part of the outputs; null where they
            are of one piece, or that part holds NaN or Inf.
    """

    gain: float | None
    alone: float | None
    output_share: float | None
    output_share_std: float | None
    metric_gain: float | None = None
    loss_share: float | None = None
    worst_part_share: float | None = None


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
            each other, since one by one would take too long: they have no effect of their own.
        group_share: what the noisiest such group makes alone, as a part of the outputs' noise on
            the `alone_samples`; +inf where that alone gives NaN or Inf; null where there is none,
            or the outputs hold NaN or Inf.
        on_kernels: layers were left out on ONNX Runtime's INT8 kernels, where the noise was that of
            the simulation within 1 dB: a share may be off by some hundredths, beside its standard
            error.
    """

    noise: float
    samples: int
    alone_samples: int
    layers: int
    of_layers: int
    certain_ranks: int
    grouped_layers: int = 0
    group_share: float | None = None
    on_kernels: bool = False


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


def noise_by_sample(energies: Array, chances: Array | float = 1.0) -> Array:
    """The part of each sample in the outputs' noise, from `output_energies`; of all samples their
    sum is `ErrorTotals.noise`, of drawn ones an estimate of it.

    Args:
        energies: float64 [outputs, 2, samples].
        chances: that the sample was drawn (Horvitz & Thompson, JASA 47 (1952) 663), [samples].

    Returns:
        float64 [samples].
    """
    errors, signals = energies[:, 0] / chances, energies[:, 1] / chances
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(errors == 0, 0.0, errors / signals.sum(axis=1, keepdims=True))
    return np.asarray(parts.mean(axis=0))


def chances_of(noise: Array, count: float) -> Array:
    """The chances to draw units so that `count` are on average: half by their part in the noise,
    half all alike. So what makes most of the noise is not missed, and none has a great weight.

    Args:
        noise: of each unit, finite, float64 [units].

    Returns:
        float64 [units], above 0 and at most 1.
    """
    size = len(noise)
    total = float(noise.sum())
    weights = np.full(size, 1 / size)
    if total > 0:
        weights = weights / 2 + noise / total / 2
    chances = np.minimum(1.0, count * weights)
    while True:
        free = chances < 1
        left = count - float((~free).sum())
        scaled = left * weights[free] / weights[free].sum() if free.any() else weights[free]
        chances[free] = np.minimum(1.0, scaled)
        if not (scaled > 1).any():
            return chances


def drawn(chances: Array) -> list[int]:
    """Units drawn with these chances, in order and spread over all: systematic sampling (Madow,
    Annals of Mathematical Statistics 20 (1949) 333), the same every time."""
    passed = np.floor(np.cumsum(chances) + 0.5 + 1e-9)
    return [int(k) for k in np.flatnonzero(np.diff(passed, prepend=0.0) >= 1)]


@dataclass(frozen=True)
class EffectRuns:
    """The outputs' noise in each run, by sample, or what a metric loses: float64 [samples].

    Attributes:
        whole: everything as planned.
        pinned: only this layer in FP32.
        alone: only this layer as planned, perhaps on fewer samples; `whole_alone`: everything as
            planned on these.
        unseen: the chance that a sample of `whole` was not drawn, or one for all.
        groups: only these layers as planned, none of which was run alone, on the samples of
            `alone`.
    """

    whole: Array
    pinned: Mapping[str, Array]
    alone: Mapping[str, Array]
    whole_alone: Array
    unseen: Array | float
    groups: Mapping[tuple[str, ...], Array] = field(default_factory=dict)

    @property
    def group_share(self) -> float | None:
        """What the noisiest of `groups` of which not all layers are in `pinned` makes, as a part
        of all noise on these samples; +inf where it alone gives NaN or Inf. None where there is
        none, or all layers together give NaN or Inf, or no noise."""
        whole = float(self.whole_alone.sum())
        each = [float(x.sum()) for group, x in self.groups.items() if {*group} - {*self.pinned}]
        return max(each) / whole if each and 0 < whole < math.inf else None


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
    measured, by moments (empirical Bayes; Efron & Morris, JASA 68 (1973) 117). Where only a group
    of n layers was measured alone, with share g, a_i is g/n, and the prior's variance has
    g² (n-1)/n² besides: that of the part of a layer if one of them, any, makes all of it. The
    variance of a gain is that of its mean over samples, of which all are known in the end (finite
    population; Cochran, Sampling Techniques, 1977, §2.6).
    """
    # A loss, other than noise, may be negative: less than FP32's.
    alone = {n: max(0.0, float(x.sum()) / total_alone) for n, x in runs.alone.items()}
    measured = {
        n: _mean_share(runs.whole - runs.pinned[n], total, runs.unseen)
        for n in runs.pinned
        if np.isfinite(runs.pinned[n]).all()
    }
    both = [n for n in measured if math.isfinite(alone.get(n, math.nan))]
    excess = sum((measured[n][0] - alone[n]) ** 2 - measured[n][1] for n in both)
    weight = sum(alone[n] for n in both)
    spread = max(LEAST_CORRELATION**2, excess / weight if weight > 0 else 0.0)
    priors = {n: (share, 0.0) for n, share in alone.items()} | _priors(runs.groups, total_alone)
    return {n: _posterior(priors.get(n), measured.get(n), spread) for n in names}


def _priors(
    groups: Mapping[tuple[str, ...], Array], total: float
) -> dict[str, tuple[float, float]]:
    """The share of each layer of a group before it is measured, and the variance of that."""
    found: dict[str, tuple[float, float]] = {}
    for group, noise in groups.items():
        share, n = float(noise.sum()) / total, len(group)
        found |= dict.fromkeys(group, (share / n, share**2 * (n - 1) / n**2))
    return found


def _mean_share(differences: Array, total: float, unseen: Array | float) -> tuple[float, float]:
    """A gain as a share of `total`, and the variance of that (Hájek, Annals of Mathematical
    Statistics 35 (1964) 1491; where all chances are equal, that of the mean)."""
    count = len(differences)
    share = float(differences.sum()) / total
    weights = np.broadcast_to(np.asarray(unseen, np.float64), differences.shape)
    weight = float(weights.sum())
    if weight <= 0:
        return share, 0.0
    if count < 2:
        return share, math.inf
    mean = float((weights * differences).sum()) / weight
    squares = float((weights * (differences - mean) ** 2).sum())
    return share, squares * count / (count - 1) / total**2


def _posterior(
    prior_share: tuple[float, float] | None, measured: tuple[float, float] | None, spread: float
) -> tuple[float, float]:
    alone, unknown = prior_share or (math.nan, 0.0)
    if not math.isfinite(alone):
        share, variance = measured or (math.nan, math.nan)
        return share, math.sqrt(variance)
    prior = spread * alone + unknown
    if measured is None or math.isinf(measured[1]):
        return alone, math.sqrt(prior)
    share, variance = measured
    if variance == 0:
        return share, 0.0
    trust = prior / (prior + variance)
    return alone + trust * (share - alone), math.sqrt(trust * variance)


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
