"""Measure what each layer costs at the outputs: leave one out, and one alone.

Work is counted in passes of one sample through the FP32 model, so that what is measured does not
depend on how busy the machine is. All layers are first measured alone, on few samples, or where
that takes too much, in groups that are divided; those that may lead are then left out one by one,
on as many samples as the rest of the work pays for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from qdebug.analyse.effect.leave_out import Candidates, High, candidates_of
from qdebug.analyse.effect.runs import (
    ALONE,
    LEFT_OUT,
    LEFT_OUT_ON_KERNELS,
    PREPARING_MACS,
    Drawn,
    Energies,
    Reference,
    Runs,
)
from qdebug.analyse.effect.screening import Group, groups_of, screened
from qdebug.backends.base import Session
from qdebug.backends.sizing import probe
from qdebug.errors import BackendError, ModelError
from qdebug.execute.context import Context, emulates_fp16
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ErrorTotals, ExecutedBatch
from qdebug.metrics.candidate import CLOSE_DB
from qdebug.metrics.effect import (
    Effect,
    EffectMode,
    EffectRuns,
    EffectSummary,
    certain_ranks,
    chances_of,
    drawn,
    effects_of,
    noise_by_sample,
    output_energies,
    rank_key,
)
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tensor import noise_db
from qdebug.network.macs import macs_per_sample
from qdebug.network.samples.subset import SampleSubset, is_whole, whole
from qdebug.plan.pair import ModelPair
from qdebug.types import Array, Feeds

_LEAST_SAMPLES = 4
"""What leaders of a large model are left out on, at the least."""
_PASSES, _OF_SAMPLES, _MOST_MACS = 40, 16, 3e12
"""Passes over so many samples that the measurement may take, whatever else is done, and the work of
them all: a minute or so."""
_MOST_S = 60.0
"""And their CPU time: convolutions over seconds of sound at 16 kHz take a multiple of what their
multiply-accumulates tell."""
_PASSES_OF_COMPARE = 5
"""About what a comparison takes by itself, over all samples."""
_PASSES_ON_KERNELS, _OF_COMPARE_ON_KERNELS = 11, 2
"""The same on INT8 kernels, a run of which takes a third. On the networks of `Division` the first
five layers held 93 % of the best five's gain, and 96 % in 3.6 times the passes as they are
written."""
_RUNS_PAY_MACS = 1e9
"""Work on its samples above which a candidate takes longer to run than a session to open. For less
nothing is saved: FP32 runs by itself, candidates as they are written down, and figures are those of
`exact` to the bit."""
CHEAP_MACS = 3e10
"""Work of a second or so: tiny networks are measured on more samples."""
_FOR_ALONE = 1 / 3
"""The most of the work that goes into the errors alone."""
_LEAST_ALONE = 2
"""Samples that layers are measured alone on, at the least."""
_TOO_MUCH = 3
"""Layers are measured in groups where each alone takes more than so many times _MOST_MACS."""
_GROUPS_SAVE = 2
"""And where groups take less than a half of that."""
_EMULATED = 2.0
"""How much longer FP16 kernels take that are emulated, at the least: 1.3 to 1.7 times as long on
small networks, 3 to 7 times in detectors, recognizers and classifiers of 0.3 to 3 GMACs, 16 times
where activations have 74 MB (docs/validation/public-networks.md)."""
_TIMED_MACS = 3e8
"""Networks of so many multiply-accumulates are timed: their runs take longer than what surrounds
them. The ratio is rounded to a power of two, so that a busy machine changes little."""
_MOST_PREPARING = 1 / 3
"""Of all work, what is set aside for preparing candidates at most."""
_LEAST_LEADERS = 8
_NEARLY_ALL = 3 / 4
"""Where so many of the samples are paid for, all are taken: then there is no sampling error."""
_GROUPS = 8
"""Data may be sorted: samples are taken from so many places."""


@dataclass(frozen=True)
class Effects:
    """The effects by layer, the costliest first, and how they were measured.

    Attributes:
        worst_part: those on the noisiest part of the outputs alone; None where there is one part.
        scores: the metric when only this layer runs in FP32, by name, and with none under "".
        loss: those on the metric's loss: gain and alone are sums of what samples lose more than in
            FP32; None where the metric has no loss, or nothing is lost.
        passes: about what it took, in passes of one sample through the FP32 model.
    """

    layers: Mapping[str, Effect]
    summary: EffectSummary
    notes: tuple[str, ...] = ()
    worst_part: Effects | None = None
    loss: Effects | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    passes: float = 0.0


@dataclass(frozen=True)
class Known:
    """What a comparison found before the effects.

    Attributes:
        energies: of the outputs as planned, as of `output_energies`, of all samples in order; None
            where they cannot be told by sample.
    """

    energies: Array | None = None

    @property
    def noise(self) -> Array | None:
        """Of the outputs as planned, float64 [samples]; None as above."""
        return None if self.energies is None else noise_by_sample(self.energies)


NOTHING_KNOWN = Known()


@dataclass(frozen=True)
class Rating:
    """Where a search for culprits starts.

    Attributes:
        alone: the outputs' noise Σerr²/Σref² with only this layer as planned, by name.
        groups: with only these layers as planned, none of which is in `alone`.
    """

    alone: Mapping[str, float]
    groups: Mapping[Group, float] = field(default_factory=dict)

    def noise(self, local: Mapping[str, float]) -> dict[str, float]:
        """An estimate for each of these layers: that of a group is divided in proportion to the
        layers' own errors, or evenly where these are not known."""
        shared: dict[str, float] = {}
        for group, noise in self.groups.items():
            own = [local.get(name, 0.0) for name in group]
            total = sum(own)
            known = 0 < total < math.inf
            parts = [x / total for x in own] if known else [1 / len(group)] * len(group)
            shared |= {name: noise * part for name, part in zip(group, parts, strict=True)}
        return {**shared, **self.alone}


@dataclass(frozen=True)
class Division:
    """How work is divided between measuring layers alone and leaving them out.

    Over 44 networks of 3 to 92 layers, 60 samples each (docs/validation/effect.md), few leaders
    left out on 40 samples found the first layer in 84 % of the draws, more of them on 16, in the
    same work, in 73 %.

    Attributes:
        left_out: samples that leaders are left out on, at the least.
        alone: samples that every layer is measured alone on, at most, where more would be at the
            cost of that.
        rated: the same where none is left out after that, or all are, on all samples.
    """

    left_out: int = 40
    alone: int = 2
    rated: int = 8

    def amounts(
        self,
        work: float,
        layers: int,
        samples: int,
        left_out_passes: float,
        *,
        macs: float = 0.0,
        is_large: bool = False,
    ) -> Amounts:
        """What so much work pays for, in passes of one sample through the FP32 model.

        Args:
            left_out_passes: what a sample takes with a layer left out.
            macs: of a pass; where each layer alone takes too many, groups of them are measured.
            is_large: the work was cut for a large model: leaders are left out on fewer samples.
        """
        fitting = int(work * _FOR_ALONE / (ALONE * layers))
        spare = int((work - left_out_passes * layers * _NEARLY_ALL * samples) / (ALONE * layers))
        most = max(self.alone, min(spare, self.rated))
        alone = min(samples, max(_LEAST_ALONE, min(fitting, most)))
        needed = ALONE * layers * alone
        groups = _groups(layers, needed * macs) if needed > work else None
        left = work - ALONE * (groups or layers) * alone
        each = int(left / (left_out_passes * layers))
        if each >= _NEARLY_ALL * samples:
            return Amounts(alone, layers, samples)
        if each >= self.left_out:
            return Amounts(alone, layers, each)
        few = min(samples, self.left_out)
        if is_large:
            few = min(few, max(_LEAST_SAMPLES, int(left / (left_out_passes * _LEAST_LEADERS))))
        leaders = max(_LEAST_LEADERS, int(left / (left_out_passes * few)))
        return Amounts(alone, min(layers, leaders), few, groups)


_DIVISION = Division()


@dataclass(frozen=True)
class Amounts:
    """How many samples layers are measured alone on; how many leaders are left out, on how many
    samples; how many groups are measured alone, or None for every layer by itself."""

    alone: int
    leaders: int
    left_out: int
    groups: int | None = None


def noise_alone(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    ends_at: float = math.inf,
) -> Rating | None:
    """The outputs' noise with each layer alone as planned, on few samples: where a search for
    culprits starts. None where `measure_effects` gives none, and where the time is over at once.

    Args:
        ends_at: when to give up, on the clock of `time.monotonic`.

    Raises:
        QdebugError: a model does not run.
    """
    context = context.until(min(context.ends_at, ends_at))
    candidates = candidates_of(context, pair)
    if candidates is None:
        return None
    with closing(context.backend.open(pair.reference.proto, ())) as session:
        outputs = float_outputs(pair, session)
        if not outputs:
            return None
        subset = sized(context, session, subset)
        samples, groups = _fitting_alone(pair, subset, len(candidates.names))
        few = Drawn(spread(subset, samples))
        found = _alone_of(Runs(context, candidates, Reference(pair, outputs), few), groups)
    if found is None:
        return None
    noise = {group: float(one.noise().sum()) for group, one in found.energies.items()}
    alone = {group[0]: x for group, x in noise.items() if len(group) == 1}
    return Rating(alone, {group: x for group, x in noise.items() if len(group) > 1})


def measure_effects(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    mode: EffectMode,
    *,
    metric: TaskMetric | None = None,
    known: Known = NOTHING_KNOWN,
    literally: bool = False,
) -> Effects | None:
    """What every layer that does not run in FP32 costs at the outputs of the simulation.

    None where that cannot be said: no such layer, or no floating-point output.

    Args:
        known: of both models; where not all samples can be used, those with much noise as planned
            are preferred.
        literally: measure each layer alone, however long it takes, none in groups only, and none on
            INT8 kernels.

    Raises:
        QdebugError: the model does not run in FP32, or not as planned.
    """
    candidates = None if mode is EffectMode.NONE else candidates_of(context, pair)
    if candidates is None:
        return None
    names = candidates.names
    with closing(context.backend.open(pair.reference.proto, ())) as session:
        outputs = float_outputs(pair, session)
        if not outputs:
            return None
        subset = sized(context, session, subset)
        slowdown = _slowdown(context, pair, session, subset)
        pass_s = _pass_seconds(pair, session, subset) if mode is EffectMode.FAST else 0.0

        def amounts_of(*, on_kernels: bool) -> Amounts:
            how = slowdown, pass_s
            found = _amounts(pair, subset, len(names), mode, *how, on_kernels=on_kernels)
            return replace(found, groups=None) if literally else found

        amounts, many = amounts_of(on_kernels=True), None
        work = macs_per_sample(pair.layers, subset) * amounts.left_out
        saves = mode is EffectMode.FAST and not literally and work > _RUNS_PAY_MACS
        reference = Reference(pair, outputs, metric)

        def on(samples: int, made: Candidates) -> Runs:
            chosen = _drawn(subset, samples, known.noise)
            return Runs(context, made, reference, chosen)

        if saves and known.energies is not None:
            fast = candidates_of(context, pair, on_kernels=True)
            many = on(amounts.left_out, fast) if fast else None
            many = many if many and _agrees(many, known.energies) else None
        on_kernels = many is not None
        if many is None:
            amounts = amounts_of(on_kernels=False)
        all_of_them = amounts.left_out >= subset.count
        few = on(amounts.alone, candidates)
        if many is None:
            same = amounts.left_out == amounts.alone and not (metric is not None and all_of_them)
            many = few if same else on(amounts.left_out, candidates)
        found = _run_all(few, many, amounts)
        counts = many.count, few.count, len(names)
        effects, summary = _ranked(found.runs(Energies.noise), *counts)
        summary = replace(summary, on_kernels=on_kernels)
    worst = found.worst_part
    in_worst = None if worst is None else found.runs(lambda one: one.noise(worst))
    worst_part = None if in_worst is None else Effects(*_ranked(in_worst, *counts))
    losing = found.losses()
    loss = None if losing is None else Effects(*_ranked(losing, *counts))
    scores = found.scores
    on_all = scores if all_of_them else {}  # those of samples with much noise say less
    effects = {
        n: replace(
            effect,
            worst_part_share=_share(worst_part, n),
            loss_share=_share(loss, n),
            metric_gain=on_all[n] - on_all[""] if n in on_all else None,
        )
        for n, effect in effects.items()
    }
    alone_passes = ALONE * len(found.alone.energies) * few.count
    return Effects(
        effects,
        summary,
        candidates.notes,
        worst_part=worst_part,
        loss=loss,
        scores=scores,
        passes=alone_passes + left_out_passes(on_kernels) * len(found.pinned) * many.count,
    )


def left_out_passes(on_kernels: bool) -> float:
    """What a sample takes with a layer left out, in FP32 passes, about."""
    return LEFT_OUT_ON_KERNELS if on_kernels else LEFT_OUT


def _agrees(runs: Runs, energies: Array) -> bool:
    """Whether the model as planned has as much noise in each of its outputs as is known of it,
    `energies`. See KernelAgreement. False where it does not run.

    Raises:
        OutOfTimeError: it takes longer than it may.
    """
    rows = [row for b in runs.subset.batches for row in range(b.start, b.start + b.count)]
    try:
        runs.run([], beside=High())
    except (ModelError, BackendError):
        return False
    found = runs.known[High()].outputs[:, 0]
    expected = energies[:, 0, rows]
    if found.shape != expected.shape:  # not told by sample
        return False
    pairs = zip(found.sum(axis=1), expected.sum(axis=1), strict=True)
    return all(x == y or abs(noise_db(x) - noise_db(y)) <= CLOSE_DB for x, y in pairs)


def _share(effects: Effects | None, layer: str) -> float | None:
    return effects.layers[layer].output_share if effects and layer in effects.layers else None


def _ranked(
    runs: EffectRuns, samples: int, alone_samples: int, layers: int
) -> tuple[dict[str, Effect], EffectSummary]:
    """The effects, the costliest first, and how they were measured."""
    effects, noise = effects_of(runs), float(runs.whole.sum())
    names = sorted(effects, key=lambda n: rank_key(effects[n], noise))
    effects = {n: effects[n] for n in names}
    summary = EffectSummary(
        noise=noise,
        samples=samples,
        alone_samples=alone_samples,
        layers=len(runs.pinned),
        of_layers=layers,
        certain_ranks=certain_ranks([*effects.values()], noise),
        grouped_layers=layers - len(effects) if runs.groups else 0,
        group_share=runs.group_share,
    )
    return effects, summary


class NoiseSink:
    """A sink that keeps the noise of the outputs by sample. See evaluator.Sink."""

    def __init__(self, pair: ModelPair) -> None:
        graph, both = pair.reference, {*pair.candidate.outputs}
        self._outputs = [t for t in graph.outputs if t in both and graph.is_float(t)]
        self._parts = pair.parts
        self._energies: dict[int, Array] = {}
        self._split = bool(self._outputs)

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """Take a batch; outputs that are not there, or not split by samples, say nothing."""
        reference, candidate = executed.of(REFERENCE), executed.of(CANDIDATE)
        if not self._split or any(t not in reference for t in self._outputs):
            self._split = False
            return
        count = executed.batch.count
        found = output_energies(reference, candidate, self._outputs, count, self._parts)
        self._energies[executed.batch.start] = found
        self._split = found.shape[2] == count

    @property
    def kept(self) -> dict[int, Array] | None:
        """By the number of a batch's first sample, for `merge`; None where it cannot be told."""
        return self._energies if self._split else None

    def merge(self, other: Mapping[int, Array] | None) -> None:
        """Add what another sink kept over other batches."""
        self._split = self._split and other is not None
        self._energies |= other or {}

    @property
    def noise(self) -> Array | None:
        """Float64 [samples]; None where it cannot be told by sample."""
        energies = self.energies
        return None if energies is None else noise_by_sample(energies)

    @property
    def energies(self) -> Array | None:
        """Those of `output_energies` for all samples, in order; None where they cannot be told by
        sample."""
        if not self._split or not self._energies:
            return None
        return np.concatenate([self._energies[start] for start in sorted(self._energies)], axis=2)


@dataclass(frozen=True)
class _Alone:
    """What layers give that run as planned with all others in FP32, one by one or in groups. None
    of the groups has a layer in common; the layers of a group that cannot be run are in none.
    `ranked`: see Screened."""

    energies: Mapping[Group, Energies]
    ranked: Sequence[str]


@dataclass(frozen=True)
class _Found:
    """What each run gives.

    Attributes:
        whole: everything as planned.
        pinned: only this layer in FP32.
        alone: on fewer samples perhaps; `whole_alone`: everything as planned on these.
    """

    whole: Energies
    pinned: Mapping[str, Energies]
    alone: _Alone
    whole_alone: Energies

    @property
    def worst_part(self) -> int | None:
        """The part of the outputs with the most noise as planned; None where there is one."""
        if len(self.whole.outputs) < 2:
            return None
        return int(np.argmax([self.whole.noise(k).sum() for k in range(len(self.whole.outputs))]))

    def runs(self, values: Callable[[Energies], Array]) -> EffectRuns:
        """What the effects follow from, given the values of a run by sample."""
        alone = {group: values(one) for group, one in self.alone.energies.items()}
        whole = values(self.whole)
        same = len(whole) == len(self.whole.chances)
        return EffectRuns(
            whole=whole,
            pinned={name: values(one) for name, one in self.pinned.items()},
            alone={group[0]: value for group, value in alone.items() if len(group) == 1},
            whole_alone=values(self.whole_alone),
            unseen=1 - (self.whole.chances if same else self.whole.chances.mean()),
            groups={group: value for group, value in alone.items() if len(group) > 1},
        )

    @property
    def scores(self) -> dict[str, float]:
        """See Effects; none where the metric could not judge the model as planned."""
        if self.whole.score is None:
            return {}
        each = {"": self.whole, **self.pinned}
        return {name: one.score for name, one in each.items() if one.score is not None}

    def losses(self) -> EffectRuns | None:
        """The same of the metric's losses; None where there are none, or nothing is lost, or next
        to nothing."""
        every = [self.whole, self.whole_alone, *self.pinned.values(), *self.alone.energies.values()]
        if any(one.losses is None for one in every):
            return None
        if not (self.whole.tells and self.whole_alone.tells):
            return None
        runs = self.runs(lambda one: np.asarray(one.losses))
        return runs if min(runs.whole.sum(), runs.whole_alone.sum()) > 0 else None


def _run_all(few: Runs, many: Runs, amounts: Amounts) -> _Found:
    """Layers alone on `few` samples, leaders left out on `many`."""
    alone = _alone_of(few, amounts.groups) or _Alone({}, ())
    ranked = [*alone.ranked, *few.names]  # those that do not run alone are last
    leading = list(dict.fromkeys(ranked))[: amounts.leaders]
    each = many.run([High({n}) for n in leading], beside=High())
    if High() not in few.known:
        few.run([], beside=High())
    pinned = {n: one for n, one in zip(leading, each, strict=True) if one is not None}
    return _Found(many.known[High()], pinned, alone, few.known[High()])


def _alone_of(runs: Runs, groups: int | None) -> _Alone | None:
    """Each layer alone as planned, or about so many groups of them; None where the time was over at
    once."""
    everything = runs.everything
    energies: dict[Group, Energies] = {}

    def measure(due: Sequence[Group]) -> list[Array | None]:
        found = runs.run([everything - {*group} for group in due], beside=everything)
        energies.update({g: one for g, one in zip(due, found, strict=True) if one is not None})
        return [None if one is None else one.noise() for one in found]

    found = screened(runs.names, groups, measure)
    if found is None:
        return None
    return _Alone({group: energies[group] for group in found.groups}, found.ranked)


def _amounts(
    pair: ModelPair,
    subset: SampleSubset,
    layers: int,
    mode: EffectMode,
    slowdown: float = 1.0,
    pass_s: float = 0.0,
    *,
    on_kernels: bool = False,
) -> Amounts:
    """What the work pays for.

    Args:
        slowdown: how much longer a run takes than it would in INT8.
        pass_s: see `_pass_seconds`.
        on_kernels: see `candidates_of`.
    """
    count = subset.count
    if mode is EffectMode.EXACT:
        return Amounts(count, layers, count)
    passes, of_compare = _PASSES, _PASSES_OF_COMPARE
    if on_kernels:
        passes, of_compare = _PASSES_ON_KERNELS, _OF_COMPARE_ON_KERNELS
    bound, left_out = passes * min(count, _OF_SAMPLES), left_out_passes(on_kernels)
    macs = max(1.0, macs_per_sample(pair.layers, subset))
    whole = min(bound, _MOST_MACS / macs)
    whole = min(whole, _MOST_S / pass_s) if pass_s else whole
    running = whole - min(layers * PREPARING_MACS / macs, _MOST_PREPARING * whole)
    left = max(running, of_compare * count, CHEAP_MACS / macs) / slowdown
    return _DIVISION.amounts(
        left, layers, count, left_out, macs=macs * slowdown, is_large=whole < bound
    )


def _slowdown(context: Context, pair: ModelPair, session: Session, subset: SampleSubset) -> float:
    """How much longer the candidate runs than it would in INT8: only FP16 that is emulated does."""
    if not emulates_fp16(context, pair.precisions.values()):
        return 1.0
    if macs_per_sample(pair.layers, subset) < _TIMED_MACS:
        return _EMULATED
    feeds = subset.samples.feeds(subset.batches[0].start, subset.batches[0].count)
    with closing(context.backend.open(pair.candidate.proto, ())) as candidate:
        fp32, emulated = (_seconds(s, feeds) for s in (session, candidate))
    return max(_EMULATED, 2.0 ** round(math.log2(max(emulated, 1e-6) / max(fp32, 1e-6))))


def _pass_seconds(pair: ModelPair, session: Session, subset: SampleSubset) -> float:
    """CPU time of a sample in FP32, rounded to a power of two; 0 where that is next to nothing."""
    if macs_per_sample(pair.layers, subset) < _TIMED_MACS:
        return 0.0
    first = subset.batches[0]
    feeds = subset.samples.feeds(first.start, first.count)
    session.run(feeds)  # the first run takes memory
    began = time.process_time()
    session.run(feeds)
    took = max(1e-6, time.process_time() - began) / first.count
    return 2.0 ** round(math.log2(took))


def _seconds(session: Session, feeds: Feeds) -> float:
    started = time.perf_counter()
    session.run(feeds)
    return time.perf_counter() - started


def _groups(layers: int, needed: float) -> int | None:
    """How many groups of layers are measured alone; None where measuring every layer by itself,
    which takes `needed` MACs, does not take too long."""
    groups = groups_of(layers)
    return groups if needed > _TOO_MUCH * _MOST_MACS and layers > _GROUPS_SAVE * groups else None


def _fitting_alone(pair: ModelPair, subset: SampleSubset, layers: int) -> tuple[int, int | None]:
    """How many samples layers are measured alone on before a search; see `_groups`."""
    macs = max(1.0, macs_per_sample(pair.layers, subset))
    fitting = int(_FOR_ALONE * _MOST_MACS / macs / (ALONE * layers))
    samples = max(1, min(_DIVISION.rated, fitting))
    return samples, _groups(layers, ALONE * layers * samples * macs)


def sized(context: Context, session: Session, subset: SampleSubset) -> SampleSubset:
    """`subset` in batches of a size that the model allows and that suits the machine."""
    if not is_whole(subset):
        return subset
    return whole(probe(session, subset.samples, context.batch_size).samples)


def _drawn(subset: SampleSubset, count: int, noise: Array | None) -> Drawn:
    """About so many of the samples, preferably with much `noise`, where that is known."""
    if count >= subset.count:
        return Drawn(subset)
    if noise is None or not is_whole(subset) or not np.isfinite(noise).all():
        few = spread(subset, count)
        return Drawn(few, few.count / subset.count)
    samples = subset.samples
    if samples.batch_is_free:
        subset = whole(samples.with_batch_size(1))
    starts = [b.start for b in subset.batches]
    by_batch = np.add.reduceat(noise, starts)
    wanted = max(1.0, count * len(starts) / subset.count)
    chances = chances_of(by_batch, wanted)
    chosen = tuple(subset.batches[k] for k in drawn(chances))
    by_index = {b.index: float(chances[b.index]) for b in chosen}
    return Drawn(SampleSubset(subset.samples, chosen), by_index)


def spread(subset: SampleSubset, count: int) -> SampleSubset:
    """About so many of the samples, from places that lie far apart."""
    if count >= subset.count:
        return subset
    samples = subset.samples
    if samples.batch_is_free and is_whole(subset):
        size = min(samples.batch_size, max(1, count // _GROUPS))
        subset = whole(samples.with_batch_size(size))
    size, total = subset.samples.batch_size, len(subset.batches)
    wanted = max(1, count // size)
    chosen = tuple(subset.batches[i * total // wanted] for i in range(wanted))
    return SampleSubset(subset.samples, chosen)


def float_outputs(pair: ModelPair, session: Session) -> list[str]:
    """The outputs that both models have, if they are floating point."""
    both = {*pair.candidate.outputs}
    return [t for t in pair.reference.outputs if t in both and _is_float(session, t)]


def _is_float(session: Session, tensor: str) -> bool:
    kind = session.dtypes.get(tensor)
    return kind is not None and bool(np.issubdtype(kind, np.floating))
