"""Measure what each layer costs at the outputs: alone on few samples, then the first ones left out
one by one on more.

Work is counted in multiply-accumulates, so that what is measured does not depend on how busy the
machine is. Many layers are not run alone one by one, since to open a session takes longer than a
run of a small network: of groups of layers that follow each other the noisiest are halved until
single layers are left (adaptive group testing; Hwang, JASA 67 (1972) 605).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from qdebug.analyse.compared import Compared
from qdebug.analyse.effect.sets import Outcome, Sets, sets_of
from qdebug.analyse.layer_results import effect_notes, ranked_by_effect
from qdebug.execute.context import Context, emulates_fp16, sized
from qdebug.metrics.effect import (
    Effect,
    EffectMode,
    EffectRuns,
    EffectSummary,
    certain_ranks,
    effects_of,
    rank_key,
)
from qdebug.network.macs import macs_per_sample
from qdebug.network.samples.subset import SampleSubset, is_whole, spread, whole
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import LayerResult
from qdebug.run.executor import cut_evenly
from qdebug.types import Array

CURVE_RUNS = 44
"""Sets of several layers that a curve, and the choice of the layers to keep, may run."""
_LEAST_MACS, _MOST_MACS = 7e10, 1e12
"""The work of all runs together: tiny networks are measured on all samples, large ones in a minute
or so."""
_LEAST_RUNS, _MOST_RUNS = 240, 1200
"""Of one sample, whatever the work; on 1 and 4 samples culprits of a classifier that fail on some
samples only were not found, on 4 and 16 they were."""
_EMULATED = 4.0
"""How much longer FP16 kernels take that are emulated, about: 1.3 to 16 times on the networks of
docs/validation/public-networks.md."""
_LEAST_LEADERS, _MOST_LEADERS = 8, 13
_LEAST_SAMPLES, _ENOUGH_SAMPLES = 4, 128
_ALONE_SAMPLES = (8, 4, 2, 1)
"""The most of these that take no more than a third of the work."""
_SPREAD = 8
"""Data may be sorted: samples are taken from so many places."""
_EACH = 100
"""Up to so many layers, each is run alone: where all groups make much noise, as in a text detector
of 64 layers at 4 dB, the halves hid the layer that mattered."""
_FIRST_GROUPS, _HALVED_AT_ONCE = 16, 4
_QUIET = 1e-3
"""Groups that make less of the outputs' noise are not halved. That a layer's own error is small
says nothing: a sum of squares at 45 dB in front of a reciprocal root ruined a classifier."""

NameT = TypeVar("NameT", str, tuple[str, ...])
Group = tuple[str, ...]
"""Layers that follow each other."""


@dataclass(frozen=True)
class Amounts:
    """How many groups of layers are run alone, on how many samples; how many layers are left out,
    on how many."""

    groups: int
    alone_samples: int
    left_out: int
    samples: int


def amounts(macs: float, layers: int, samples: int) -> Amounts:
    """What the work pays for of so many layers.

    Args:
        macs: of a run of one sample.
    """
    halvings = math.ceil(math.log2(max(1.0, layers / _FIRST_GROUPS)))
    groups = _FIRST_GROUPS + 2 * _HALVED_AT_ONCE * (halvings + 1)
    groups = layers if layers <= _EACH else groups
    if macs * samples * (2 * layers + CURVE_RUNS) <= _LEAST_MACS:
        return Amounts(groups, min(samples, _ALONE_SAMPLES[0]), layers, samples)
    runs = max(_LEAST_MACS / macs, _LEAST_RUNS, min(_MOST_MACS / macs, _MOST_RUNS))
    few = min(samples, next((k for k in _ALONE_SAMPLES if k * groups <= runs / 3), 1))
    runs -= few * groups
    fitting = int(runs / (2 * _LEAST_LEADERS + CURVE_RUNS))
    many = min(samples, max(_LEAST_SAMPLES, min(_ENOUGH_SAMPLES, fitting)))
    leaders = max(_LEAST_LEADERS, int(runs / many) - CURVE_RUNS)
    return Amounts(groups, few, min(layers, leaders, _MOST_LEADERS), many)


def noise_alone(context: Context, pair: ModelPair, subset: SampleSubset) -> dict[str, float]:
    """The outputs' noise Σerr²/Σref² with each layer alone as planned, by name, on few samples:
    where a search for culprits starts. That of a group is divided evenly. Nothing where no layer
    can be left out.

    Raises:
        QdebugError: a model does not run.
        OutOfTimeError: it takes longer than it may.
    """
    subset = sized(context, pair.reference, subset)
    sets = sets_of(context, pair, subset)
    if sets is None:
        return {}
    found = amounts(_macs(context, pair, subset), len(sets.candidates.names), subset.count)
    few = sets.on(*_drawn(subset, found.alone_samples))
    return _by_layer(_alone(few, found.groups), {})


def ranked(compared: Compared, mode: EffectMode) -> Compared:
    """With its layers ranked by what each costs at the outputs of the simulation. Without that
    where no layer can be left out, or no output is floating-point.

    Raises:
        QdebugError: the model does not run in FP32.
    """
    context, pair = compared.context, compared.pair
    subset = sized(context, pair.reference, compared.subset)
    measures = mode is not EffectMode.NONE
    sets = sets_of(context, pair, subset, compared.metric) if measures else None
    if sets is None:
        return compared.found(effect=None)
    names, count = sets.candidates.names, subset.count
    found = amounts(_macs(context, pair, subset), len(names), count)
    if mode is EffectMode.EXACT:
        found = Amounts(len(names), count, len(names), count)
    elif compared.gate.judges_effects:
        found = replace(found, groups=len(names))
    if found.samples < count:
        sets = sets.on(*_drawn(subset, found.samples, compared.measured.noise))
    few = sets
    if found.alone_samples < sets.samples:
        few = sets.on(*_drawn(subset, found.alone_samples, compared.measured.noise))
    (whole_alone,) = few([()])
    groups = _alone(few, found.groups)
    alone_noise = _by_layer(groups, own_errors(compared.result.layers))
    leaders = sorted(alone_noise, key=lambda n: -alone_noise[n])
    leaders = list(dict.fromkeys([*leaders, *names]))[: found.left_out]
    planned, *left_out = sets([(), *([n] for n in leaders)])
    if planned is None or whole_alone is None:
        return compared.found(effect=None)
    alone = {group[0]: one for group, one in groups.items() if len(group) == 1}
    pinned = _known(leaders, left_out)
    runs = EffectRuns(
        planned.noise,
        {n: one.noise for n, one in pinned.items()},
        {n: one.noise for n, one in alone.items()},
        whole_alone.noise,
        sets.unseen,
    )
    effects, noise = effects_of(runs), float(planned.noise.sum())
    effects = {n: effects[n] for n in sorted(effects, key=lambda n: rank_key(effects[n], noise))}
    effects = {n: _with_metric(x, planned, pinned.get(n)) for n, x in effects.items()}
    summary = EffectSummary(
        noise=noise,
        samples=sets.samples,
        alone_samples=few.samples,
        layers=len(pinned),
        of_layers=len(names),
        certain_ranks=certain_ranks([*effects.values()], noise),
        grouped_layers=len(names) - len(effects),
    )
    layers = ranked_by_effect(compared.result.layers, effects, noise)
    notes = (*sets.candidates.notes, *effect_notes(summary, layers, count))
    compared = compared.found(*notes, layers=layers, effect=summary)
    return replace(compared, sets=sets)


def own_errors(layers: Sequence[LayerResult]) -> dict[str, float]:
    """The error Σerr²/Σref² that each layer adds by itself, where it is known; of one that is
    broken, as its readers see it."""
    found: dict[str, float] = {}
    for layer in layers:
        local = layer.local_sqnr_db
        if local is not None:
            broken = 0.0 if layer.readers_sqnr_db is None else layer.readers_sqnr_db
            found[layer.name] = 10 ** (-(broken if math.isnan(local) else local) / 10)
    return found


def _alone(sets: Sets, most: int) -> dict[Group, Outcome]:
    """What groups give alone as planned with all others in FP32, so many of them at the most; none
    of the groups has a layer in common. Layers that cannot be run are in none."""
    names, everything = sets.candidates.names, sets.candidates.everything
    first = len(names) if most >= len(names) else min(most, _FIRST_GROUPS)
    due: list[Group] = [names[cut.start : cut.stop] for cut in cut_evenly(len(names), first)]
    (whole,) = sets([()])
    least = _QUIET * float(whole.noise.sum()) if whole else 0.0
    known: dict[Group, Outcome] = {}
    while due:
        known |= _known(due, sets([everything - {*group} for group in due]))
        most -= len(due)
        noise = {g: float(one.noise.sum()) for g, one in known.items() if len(g) > 1}
        # Where several hold NaN or Inf, the smallest: one culprit after the other is found.
        noisy = sorted(noise, key=lambda g: (-noise[g], len(g)))[: min(_HALVED_AT_ONCE, most // 2)]
        noisy = [g for g in noisy if noise[g] >= least or math.isinf(noise[g])]
        due = [half for g in noisy for half in (g[: len(g) // 2], g[len(g) // 2 :])]
        for group in noisy:
            del known[group]
    return known


def _by_layer(groups: Mapping[Group, Outcome], own: Mapping[str, float]) -> dict[str, float]:
    """The noise that each layer makes alone: that of a group is divided as the layers' `own` errors
    are, where these are known, or evenly."""
    found: dict[str, float] = {}
    for group, given in groups.items():
        noise, total = float(given.noise.sum()), sum(own.get(n, 0.0) for n in group)
        for name in group:
            is_known = 0 < total < math.inf and noise < math.inf
            part = own.get(name, 0.0) / total if is_known else 1 / len(group)
            found[name] = noise * part
    return found


def _known(names: Sequence[NameT], given: Sequence[Outcome | None]) -> dict[NameT, Outcome]:
    return {n: one for n, one in zip(names, given, strict=True) if one is not None}


def _with_metric(effect: Effect, planned: Outcome, given: Outcome | None) -> Effect:
    """With what the metric gains by the layer."""
    if given is None or given.score is None or planned.score is None:
        return effect
    return replace(effect, metric_gain=given.score - planned.score)


def _macs(context: Context, pair: ModelPair, subset: SampleSubset) -> float:
    """The work of a run of one sample."""
    slower = _EMULATED if emulates_fp16(context, pair.precisions.values()) else 1.0
    return slower * max(1.0, macs_per_sample(pair.layers, subset))


def _drawn(
    subset: SampleSubset, count: int, noise: Array | None = None
) -> tuple[SampleSubset, Array | float]:
    """About so many of the samples and how many of all each stands for: from places that lie far
    apart, and where their `noise` as planned is known, preferably those with much.

    Source: systematic sampling; Madow, Annals of Mathematical Statistics 20 (1949) 333.
    """
    if count >= subset.count:
        return subset, 1.0
    is_free = is_whole(subset) and subset.samples.batch_is_free
    if noise is None or not is_free or not 0 < noise.sum() < math.inf:
        if is_free:
            size = min(subset.samples.batch_size, max(1, count // _SPREAD))
            subset = whole(subset.samples.with_batch_size(size))
        few = spread(subset, count)
        return few, subset.count / few.count
    # Half by the part in the noise, half all alike, so that none has a great weight.
    wanted = count / 2 * (noise / noise.sum() + 1 / len(noise))
    chances = np.minimum(1.0, wanted)
    places = np.floor(np.cumsum(chances) + 0.5)
    drawn = np.flatnonzero(np.diff(places, prepend=0.0))
    each = whole(subset.samples.with_batch_size(1))
    return replace(each, batches=tuple(each.batches[k] for k in drawn)), 1 / chances[drawn]
