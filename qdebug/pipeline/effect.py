"""Measure what each layer costs at the outputs: leave one out, and one alone.

Work is counted in passes of one sample through the FP32 model, so that what is measured does not
depend on how busy the machine is. All layers are first measured alone, on few samples; those that
may lead are then left out one by one, on as many samples as the rest of the work pays for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from qdebug.errors import BackendError, MetricError, ModelError
from qdebug.measure.compare import CANDIDATE, REFERENCE, ErrorTotals, ExecutedBatch
from qdebug.measure.effect import (
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
from qdebug.measure.task import TaskMetric
from qdebug.model.macs import macs_per_sample
from qdebug.model.samples import Batch
from qdebug.model.samples.subset import SampleSubset, is_whole, whole
from qdebug.pipeline.cluster.recipe import PairRecipe
from qdebug.pipeline.cluster.unit import Place, SharedSubset
from qdebug.pipeline.context import Context, simulation_context
from qdebug.pipeline.evaluator import KeptReference, OutputKeeper, Run, Sink, evaluate, run_of
from qdebug.pipeline.leave_out import Candidates, High, SwitchedSession, candidates_of
from qdebug.plan.pair import ModelPair
from qdebug.run.base import Session
from qdebug.run.ort_fast.prefix_cache import ResumedSession
from qdebug.run.sizing import Parallelism, probe
from qdebug.run.stream import map_in_order
from qdebug.types import Array, Fp16Kernels, Precision, Progress, Tensors, ignore_progress

_SAMPLES, _ALONE_SAMPLES = 16, 8
"""What leaders are left out on, at the least; what every layer is measured alone on, at most."""
_LEAST_SAMPLES = 4
"""What leaders of a large model are left out on, at the least."""
_PASSES, _MOST_MACS = 60, 3e12
"""Passes over so many samples that the measurement may take, whatever else is done, and the work of
them all: a minute or so."""
_PASSES_OF_COMPARE = 5
"""About what a comparison takes by itself, over all samples."""
_CHEAP_MACS = 3e10
"""Work of a second or so: tiny networks are measured on more samples."""
_ALONE, _LEFT_OUT = 0.5, 0.8
"""What a sample takes in one run, in FP32 passes, about: the layers before the one in question,
half of all on average, are as in another run, and known."""
_FOR_ALONE = 1 / 3
"""The most of the work that goes into the errors alone."""
_EMULATED = 2.0
"""How much longer FP16 kernels take that are emulated: 1.3 to 1.7 times as long, measured."""
_PREPARING_MACS, _MOST_PREPARING = 1e9, 1 / 3
"""What it takes per layer to prepare candidates and to open their sessions, as work, and the most
of all work that is set aside for it. Measured: 7e8 to 8e8."""
_LEAST_LEADERS = 8
_NEARLY_ALL = 3 / 4
"""Where so many of the samples are paid for, all are taken: then there is no sampling error."""
_FRONT = 3
"""How many of the first layers are measured by the user's metric too."""
_GROUPS = 8
"""Data may be sorted: samples are taken from so many places."""
_WORTH_IT = 2
"""Workers: with a single one this process, which may use several cores, is as fast."""
_CACHE_SHARE = 1 / 4
"""Of the memory budget, for activations to start from."""


@dataclass(frozen=True)
class Effects:
    """The effects by layer, and how they were measured."""

    layers: Mapping[str, Effect]
    summary: EffectSummary
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Amounts:
    """How many samples every layer is measured alone on; how many leaders are left out, on how
    many samples."""

    alone: int
    leaders: int
    left_out: int


def noise_alone(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    cache_bytes: int,
    ends_at: float = math.inf,
) -> dict[str, float] | None:
    """The outputs' noise Σerr²/Σref² with each layer alone as planned, by name, on few samples:
    where a search for culprits starts. None where `measure_effects` gives none, and where it is not
    done in time.

    Args:
        cache_bytes: memory for activations to start from.
        ends_at: when to give up, on the clock of `time.monotonic`.

    Raises:
        QdebugError: a model does not run.
    """
    candidates = candidates_of(context, pair)
    if candidates is None:
        return None
    with closing(context.backend.open(pair.reference.proto, ())) as session:
        outputs = _outputs(pair, session)
        if not outputs:
            return None
        subset = _sized(context, session, subset)
        few = _spread(subset, _fitting_alone(pair, subset, len(candidates.names)))
        reference = KeptReference(context, pair.reference, session, few, None, stage="")
        spread = recipe_for(context, pair)
        runs = _Runs(
            context, candidates, reference, outputs, cache_bytes, spread=spread, ends_at=ends_at
        )
        try:
            alone = _alone_of(runs)
        except _OutOfTimeError:
            return None
    return {name: float(noise.sum()) for name, noise in alone.items()}


def measure_effects(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    mode: EffectMode,
    *,
    metric: TaskMetric | None = None,
    memory_budget: int = 2 << 30,
    known_noise: Array | None = None,
) -> Effects | None:
    """What every layer that does not run in FP32 costs at the outputs of the simulation.

    None where that cannot be said: no such layer, or no floating-point output.

    Args:
        known_noise: of the outputs with everything as planned, where it is known, float64
            [samples]: where not all samples can be used, those with much noise are preferred.

    Raises:
        QdebugError: the model does not run in FP32, or not as planned.
    """
    candidates = None if mode is EffectMode.NONE else candidates_of(context, pair)
    if candidates is None:
        return None
    names = candidates.names
    with closing(context.backend.open(pair.reference.proto, ())) as session:
        outputs = _outputs(pair, session)
        if not outputs:
            return None
        subset = _sized(context, session, subset)
        slowdown = _EMULATED if _emulates_fp16(context, pair) else 1.0
        amounts = _amounts(pair, subset, len(names), mode, slowdown)

        def on(chosen: _Drawn, metric: TaskMetric | None = None) -> _Runs:
            few = chosen.subset
            reference = KeptReference(context, pair.reference, session, few, metric, stage="")
            cache_bytes = int(memory_budget * _CACHE_SHARE)
            spread = recipe_for(context, pair)
            return _Runs(
                context, candidates, reference, outputs, cache_bytes, chosen.chances, spread
            )

        all_of_them = amounts.left_out >= subset.count
        few = many = on(_drawn(subset, amounts.alone, known_noise))
        if amounts.left_out != amounts.alone or (metric is not None and all_of_them):
            chosen = _drawn(subset, amounts.left_out, known_noise)
            many = on(chosen, metric if all_of_them else None)
        judged = many
        if metric is not None and not all_of_them:  # it is judged on samples that are like all
            judged = on(_Drawn(_spread(subset, amounts.left_out)), metric)
        runs = _noise_of(few, many, amounts.leaders)
        effects = effects_of(runs)
        noise = float(runs.whole.sum())
        ranked = sorted(effects, key=lambda n: rank_key(effects[n], noise))
        if metric is not None:
            front = [n for n in ranked if n in runs.pinned][:_FRONT]
            effects |= _with_metric(judged, {n: effects[n] for n in front})
    summary = EffectSummary(
        noise=noise,
        samples=many.count,
        alone_samples=few.count,
        layers=len(runs.pinned),
        of_layers=len(names),
        certain_ranks=certain_ranks([effects[n] for n in ranked], noise),
    )
    return Effects(effects, summary, candidates.notes)


class NoiseSink:
    """A sink that keeps the noise of the outputs by sample. See `pipeline.evaluator.Sink`."""

    def __init__(self, pair: ModelPair) -> None:
        graph, both = pair.reference, {*pair.candidate.outputs}
        self._outputs = [t for t in graph.outputs if t in both and graph.is_float(t)]
        self._energies: dict[int, Array] = {}
        self._split = bool(self._outputs)

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """Take a batch; outputs that are not there, or not split by samples, say nothing."""
        reference, candidate = executed.of(REFERENCE), executed.of(CANDIDATE)
        if not self._split or any(t not in reference for t in self._outputs):
            self._split = False
            return
        count = executed.batch.count
        found = output_energies(reference, candidate, self._outputs, count)
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
        if not self._split or not self._energies:
            return None
        parts = [self._energies[start] for start in sorted(self._energies)]
        return noise_by_sample(np.concatenate(parts, axis=2))


def _noise_of(few: _Runs, many: _Runs, leaders: int) -> EffectRuns:
    """Each layer alone on `few` samples; so many leaders left out on `many`."""
    alone, names = _alone_of(few), few.names
    leading = sorted(names, key=lambda n: -float(alone[n].sum()) if n in alone else 0.0)[:leaders]
    pinned = _known(leading, many.noise([High({n}) for n in leading], beside=High()))
    whole = many.known[High()]
    whole_alone = few.known.get(High())
    if whole_alone is None:
        few.noise([], beside=High())
        whole_alone = few.known[High()]
    return EffectRuns(whole, pinned, alone, whole_alone, many.unseen)


def _alone_of(runs: _Runs) -> dict[str, Array]:
    """The noise by sample with each layer alone as planned."""
    names, everything = runs.names, runs.everything
    return _known(names, runs.noise([everything - {n} for n in names], beside=everything))


def _known(names: Sequence[str], each: Sequence[Array | None]) -> dict[str, Array]:
    return {n: noise for n, noise in zip(names, each, strict=True) if noise is not None}


def _with_metric(runs: _Runs, effects: Mapping[str, Effect]) -> dict[str, Effect]:
    """`effects` with what the metric gains by each layer."""
    try:
        before, *after = runs.metrics([High(), *(High({n}) for n in effects)])
    except MetricError:
        return {}  # one that cannot judge so few samples; on all of them it has been called
    return {
        n: replace(effects[n], metric_gain=value - before)
        for n, value in zip(effects, after, strict=True)
    }


def _emulates_fp16(context: Context, pair: ModelPair) -> bool:
    half = Precision.FP16 in pair.precisions.values()
    return half and context.fp16_kernels is not Fp16Kernels.EXACT


def _amounts(
    pair: ModelPair, subset: SampleSubset, layers: int, mode: EffectMode, slowdown: float = 1.0
) -> _Amounts:
    """What the work pays for; `slowdown` is how much longer a run takes than it would in INT8."""
    count = subset.count
    if mode is EffectMode.EXACT:
        return _Amounts(count, layers, count)
    macs = max(1.0, macs_per_sample(pair.layers, subset))
    whole = min(_PASSES * min(count, _SAMPLES), _MOST_MACS / macs)
    running = whole - min(layers * _PREPARING_MACS / macs, _MOST_PREPARING * whole)
    passes = max(running, _PASSES_OF_COMPARE * count, _CHEAP_MACS / macs) / slowdown
    fitting = int(passes * _FOR_ALONE / (_ALONE * layers))
    alone = min(count, max(2, min(fitting, _ALONE_SAMPLES)))
    passes -= _ALONE * layers * alone
    each = int(passes / (_LEFT_OUT * layers))
    if each >= _NEARLY_ALL * count:
        return _Amounts(alone, layers, count)
    if each >= _SAMPLES:
        return _Amounts(alone, layers, each)
    few = min(count, _SAMPLES)
    if whole < _PASSES * few:  # a large model
        few = min(few, max(_LEAST_SAMPLES, int(passes / (_LEFT_OUT * _LEAST_LEADERS))))
    leaders = max(_LEAST_LEADERS, int(passes / (_LEFT_OUT * few)))
    return _Amounts(alone, min(layers, leaders), few)


def _fitting_alone(pair: ModelPair, subset: SampleSubset, layers: int) -> int:
    """How many samples every layer is measured alone on before a search."""
    macs = max(1.0, macs_per_sample(pair.layers, subset))
    return max(1, min(_ALONE_SAMPLES, int(_FOR_ALONE * _MOST_MACS / macs / (_ALONE * layers))))


class _OutOfTimeError(Exception):
    """The time is over before all is measured."""


class _Runs:
    """Candidates on some samples.

    Attributes:
        count: how many samples.
        names, everything: see Candidates.
        known: the noise by sample of what others started from.
        unseen: the chance of each sample not to be drawn.
    """

    def __init__(
        self,
        context: Context,
        candidates: Candidates,
        reference: KeptReference,
        outputs: Sequence[str],
        cache_bytes: int,
        chances: Mapping[int, float] | float = 1.0,
        spread: PairRecipe | None = None,
        ends_at: float = math.inf,
    ) -> None:
        """`chances`: that a batch was drawn, by its index, or one for all. `spread` is how the
        workers of a cluster make the pair; None where they take no part. `ends_at`: when `noise`
        gives up, on the clock of `time.monotonic`."""
        self._ends_at = ends_at
        self._context, self._candidates = context, candidates
        self._cache_bytes, self._spread = cache_bytes, spread
        self._reference, self._outputs = reference, outputs
        self._prefixes = candidates.prefixes(cache_bytes)
        self.names, self.everything = candidates.names, candidates.everything
        self.count = reference.subset.count
        self._switched: Mapping[High, SwitchedSession] = {}
        self.known: dict[High, Array] = {}
        self._chances = chances
        self.unseen: Array | float = 0.0

    def noise(self, sets: Sequence[High], beside: High | None = None) -> list[Array | None]:
        """The noise by sample, float64 [samples], with each set of layers in FP32; None where the
        runtime takes no such model. With `beside` the others start from what they share with that
        set, which is run first.

        Raises:
            _OutOfTimeError: it takes longer than it may.
        """
        if beside is not None:
            self.begin(beside)
        if self._spread is not None:
            return self._elsewhere(self._spread, sets, beside)
        found: list[Array | None] = []
        for one in self.each(sets, beside):
            found.append(one)
            self._context.progress(Progress("effects", len(found), len(sets)))
            if time.monotonic() >= self._ends_at:
                raise _OutOfTimeError
        return found

    def begin(self, beside: High) -> None:
        """Run what others start from."""
        self.known[beside] = self._noise(beside, self._context.parallel.workers, keep=True)

    def each(self, sets: Sequence[High], beside: High | None) -> Iterator[Array | None]:
        """As `noise`, one after the other; `beside` has been run."""
        if beside is not None:
            self._switched = self._candidates.switched(beside, sets, self._prefixes)
        yield from map_in_order(self._noise_or_none, sets, self._context.parallel.workers)
        self._switched = {}

    def _elsewhere(
        self, recipe: PairRecipe, sets: Sequence[High], beside: High | None
    ) -> list[Array | None]:
        """The same on the workers of a cluster; those that share a session go together."""
        cluster = self._context.cluster
        assert cluster is not None
        job = EffectJob(
            recipe,
            cluster.subset(self._reference.subset),
            self._context.fp16_kernels,
            tuple(self._outputs),
            self._cache_bytes,
            self._chances,
            beside,
            self._reference.outputs.by_batch,
        )
        groups = self._candidates.groups(beside, sets) if beside is not None else []
        parts = [tuple(group) for group in groups]
        grouped = {high for part in parts for high in part}
        parts += [(high,) for high in sets if high not in grouped]
        found: dict[High, Array | None] = {}
        with closing(cluster.map(job, parts, self._count(parts))) as results:
            for part, noise in zip(parts, results, strict=True):
                found |= dict(zip(part, noise, strict=True))
                if time.monotonic() >= self._ends_at:
                    raise _OutOfTimeError
        return [found[high] for high in sets]

    def _count(self, parts: Sequence[Sequence[High]]) -> Callable[[int], None]:
        """Reports progress when a part is done."""
        total, done = sum(map(len, parts)), 0

        def count(index: int) -> None:
            nonlocal done
            done += len(parts[index])
            self._context.progress(Progress("effects", done, total))

        return count

    def metrics(self, sets: Sequence[High]) -> list[float]:
        """The end-to-end metric with each set of layers in FP32."""
        task = self._reference.task
        assert task is not None
        found = []
        for high in sets:
            keeper = OutputKeeper(CANDIDATE, self._reference.outputs.outputs)
            self._run(high, self._context.parallel.workers, [keeper], keep=False)
            found.append(task(keeper.joined()))
        return found

    def _noise_or_none(self, high: High) -> Array | None:
        try:
            return self._noise(high, 1, keep=False)
        except (ModelError, BackendError):
            return None

    def _noise(self, high: High, workers: int, *, keep: bool) -> Array:
        energies: list[Array] = []
        chances: list[Array] = []

        def add(executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
            energies.append(
                output_energies(
                    executed.reference,
                    executed.of(CANDIDATE),
                    self._outputs,
                    executed.batch.count,
                )
            )
            chance = self._chances
            if not isinstance(chance, float):
                chance = chance[executed.batch.index]
            chances.append(np.full(energies[-1].shape[2], chance))

        self._run(high, workers, [add], keep=keep)
        together = np.concatenate(chances)
        self.unseen = 1 - together
        return noise_by_sample(np.concatenate(energies, axis=2), together)

    def _run(self, high: High, workers: int, sinks: Sequence[Sink], *, keep: bool) -> None:
        with self._opened(high, keep=keep) as run:
            runs = {REFERENCE: self._reference.run, CANDIDATE: run}
            evaluate(
                self._reference.subset,
                runs,
                {},
                self._context,
                workers=workers,
                feeds=self._reference.feeds,
                sinks=sinks,
            )

    @contextmanager
    def _opened(self, high: High, *, keep: bool) -> Iterator[Run]:
        switched = self._switched.get(high)
        if switched is not None and switched.opens():
            try:
                yield lambda executed: switched.run(high, executed.batch.index, executed.feeds)
            finally:
                switched.done(high)
            return
        session = self._candidates.open(high, self._prefixes, keep=keep)
        try:
            yield run_of(session)
            if isinstance(session, ResumedSession):
                session.keep()
        finally:
            session.close()


def recipe_for(context: Context, pair: ModelPair) -> PairRecipe | None:
    """How several workers make a pair; None where this process does not share the work."""
    cluster = context.cluster
    if cluster is None or not cluster.knows(pair) or cluster.workers < _WORTH_IT:
        return None
    return cluster.shared(pair, PairRecipe)


@dataclass(frozen=True)
class EffectJob:
    """Candidates on some samples, for a cluster. See unit.Job; a part is some sets of layers.

    Attributes:
        outputs, cache_bytes, chances: see _Runs.
        beside: what the sets start from.
        reference: what FP32 gives, by batch.
    """

    pair: PairRecipe
    subset: SharedSubset
    fp16_kernels: Fp16Kernels
    outputs: tuple[str, ...]
    cache_bytes: int
    chances: Mapping[int, float] | float
    beside: High | None
    reference: Mapping[Batch, Tensors]

    def open(
        self, place: Place, stack: ExitStack
    ) -> Callable[[Sequence[High]], list[Array | None]]:
        """See unit.Job."""
        pair = self.pair.made(place)
        graph = pair.reference
        subset = self.subset.opened(place, graph.inputs)
        context = simulation_context(
            Parallelism(place.threads, 1),
            ignore_progress,
            subset.samples.batch_size,
            self.fp16_kernels,
        )
        reference = KeptReference.known(subset, graph.outputs, self.reference)
        candidates = candidates_of(context, pair)
        assert candidates is not None  # the client has some
        runs = _Runs(context, candidates, reference, self.outputs, self.cache_bytes, self.chances)
        if self.beside is not None:
            runs.begin(self.beside)
        return lambda sets: list(runs.each(sets, self.beside))


def _sized(context: Context, session: Session, subset: SampleSubset) -> SampleSubset:
    """`subset` in batches of a size that the model allows and that suits the machine."""
    if not is_whole(subset):
        return subset
    return whole(probe(session, subset.samples, context.batch_size).samples)


@dataclass(frozen=True)
class _Drawn:
    """Samples to measure on, and the chance that a batch of them was drawn, by its index, or one
    for all."""

    subset: SampleSubset
    chances: Mapping[int, float] | float = 1.0


def _drawn(subset: SampleSubset, count: int, noise: Array | None) -> _Drawn:
    """About so many of the samples, preferably with much `noise`, where that is known."""
    if count >= subset.count:
        return _Drawn(subset)
    if noise is None or not is_whole(subset) or not np.isfinite(noise).all():
        spread = _spread(subset, count)
        return _Drawn(spread, spread.count / subset.count)
    samples = subset.samples
    if samples.batch_is_free:
        subset = whole(samples.with_batch_size(1))
    starts = [b.start for b in subset.batches]
    by_batch = np.add.reduceat(noise, starts)
    wanted = max(1.0, count * len(starts) / subset.count)
    chances = chances_of(by_batch, wanted)
    chosen = tuple(subset.batches[k] for k in drawn(chances))
    by_index = {b.index: float(chances[b.index]) for b in chosen}
    return _Drawn(SampleSubset(subset.samples, chosen), by_index)


def _spread(subset: SampleSubset, count: int) -> SampleSubset:
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


def _outputs(pair: ModelPair, session: Session) -> list[str]:
    """The outputs that both models have, if they are floating point."""
    both = {*pair.candidate.outputs}
    return [t for t in pair.reference.outputs if t in both and _is_float(session, t)]


def _is_float(session: Session, tensor: str) -> bool:
    kind = session.dtypes.get(tensor)
    return kind is not None and bool(np.issubdtype(kind, np.floating))
