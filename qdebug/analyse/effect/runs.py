"""Candidates on some samples: what each gives at the outputs, found here or by workers.

Workers divide a rectangle, samples by layers. Where samples are divided, what candidates start from
is run only once for each; where layers are, fewer sessions are opened: what takes less is chosen.
What a sample gives does not depend on the others, so neither do the results on how it was cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from qdebug.analyse.effect.leave_out import Candidates, High, candidates_of
from qdebug.backends.base import Session
from qdebug.backends.stream import map_in_order
from qdebug.errors import BackendError, MetricError, ModelError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import KeptReference, OutputKeeper, Sink, evaluate, run_of
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ErrorTotals, ExecutedBatch
from qdebug.metrics.effect import noise_by_sample, output_energies
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.losses import tells_apart
from qdebug.network.macs import macs_per_sample
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import ModelPair
from qdebug.run.executor import Shard, cut_evenly, part_of, workers_note
from qdebug.run.outputs import joined
from qdebug.run.timelimit import OutOfTimeError, check_time
from qdebug.types import Array, Progress, Tensors

ALONE, LEFT_OUT = 0.5, 0.8
"""What a sample takes in one run, in FP32 passes, about: the layers before the one in question,
half of all on average, are as in another run, and known."""
LEFT_OUT_ON_KERNELS = 0.3
"""The same on INT8 kernels, whole 0.4 to 0.62 of an FP32 pass on the three networks of
scripts/bench/nets.py."""
PREPARING_MACS = 1e9
"""What it takes per layer to prepare candidates and to open their sessions, as work. Measured: 7e8
to 8e8."""
_BEGINNING = 2.0
"""What a sample takes before any candidate, in FP32 passes: FP32, and what they start from."""
_WORTH_IT = 2
"""Workers: with a single one this process, which may use several cores, is as fast."""
_KEPT_SHARE = 1 / 64
"""Of the memory for activations, for the outputs of a candidate until the metric is known: with
workers those of all candidates are kept at once."""
_TELLING, _SURELY = 4, 1.25
"""After so many candidates it is known how long one takes; and how many times longer than there is
time for all of them are to take before they are given up."""


class Energies(NamedTuple):
    """What a candidate gives on some samples.

    Attributes:
        outputs: as of `output_energies`, float64 [outputs, 2, rows].
        chances: that each row was drawn, [rows].
        kept: the outputs themselves, by batch, where there is a metric, until that is known.
        score: the metric; None without one, or where it cannot judge these outputs.
        losses: by how much each sample loses more than in FP32, divided by its chance, float64
            [samples]; None without a loss.
        tells: the losses, or the score, are others than FP32's by more than the last bits.
    """

    outputs: Array
    chances: Array
    kept: Mapping[Batch, Tensors]
    score: float | None = None
    losses: Array | None = None
    tells: bool = False

    @classmethod
    def joined(cls, parts: Sequence[Energies]) -> Energies:
        """Those of several samples, in order."""
        outputs = np.concatenate([part.outputs for part in parts], axis=2)
        kept = {batch: one for part in parts for batch, one in part.kept.items()}
        return cls(outputs, np.concatenate([part.chances for part in parts]), kept)

    def noise(self, part: int | None = None) -> Array:
        """See `noise_by_sample`; of all outputs, or of one of them (each part counts as one)."""
        chosen = slice(None) if part is None else slice(part, part + 1)
        return noise_by_sample(self.outputs[chosen], self.chances)


@dataclass(frozen=True)
class Reference:
    """The FP32 model of a pair, which its session runs on samples as they are needed; `outputs` are
    those to compare, `known` what it gave already."""

    pair: ModelPair
    session: Session
    outputs: Sequence[str]
    metric: TaskMetric | None = None
    known: Mapping[Batch, Tensors] = field(default_factory=dict)

    def on(self, context: Context, subset: SampleSubset) -> KeptReference:
        """What it gives. Raises as KeptReference."""
        return KeptReference(
            context,
            self.pair.reference,
            self.session,
            subset,
            self.metric,
            stage="",
            resize=False,
            known=self.known,
        )


@dataclass(frozen=True)
class Drawn:
    """Samples to measure on, and the chance that a batch of them was drawn, by its index, or one
    for all."""

    subset: SampleSubset
    chances: Mapping[int, float] | float = 1.0

    def part(self, shard: Shard) -> Drawn:
        """The executions of a shard."""
        return Drawn(part_of(self.subset, shard), self.chances)


class Runs:
    """Candidates on some samples.

    Attributes:
        subset: the samples, `count` of them.
        names, everything: see Candidates.
        known: what others started from.
    """

    def __init__(
        self,
        context: Context,
        candidates: Candidates,
        reference: Reference,
        drawn: Drawn,
        cache_bytes: int,
        *,
        keeps_outputs: bool = False,
    ) -> None:
        """`keeps_outputs`: for a metric that others compute.
        When the context's time is over, `run` gives up."""
        pair, subset = reference.pair, drawn.subset
        self._ends_at = context.ends_at
        self._context, self._candidates = context, candidates
        self._cache_bytes, self._preparing = cache_bytes, _preparing(context, pair, subset)
        self._drawn, self.subset = drawn, subset
        self._of, self._outputs = reference, reference.outputs
        self._keeps_outputs = keeps_outputs
        self.names, self.everything = candidates.names, candidates.everything
        self.count = subset.count
        self.known: dict[High, Energies] = {}

    @cached_property
    def _is_judged(self) -> bool:
        """Whether there is a metric, and the outputs that it takes can be kept."""
        if self._of.metric is None:
            return False
        kept = self._reference.outputs.by_batch.values()
        size = sum(array.nbytes for outputs in kept for array in outputs.values())
        return size <= _KEPT_SHARE * self._cache_bytes

    @property
    def _kept_outputs(self) -> Sequence[str]:
        """Those that the metric takes; none without one."""
        keeps = self._is_judged or self._keeps_outputs
        return [t for t in self._of.pair.reference.outputs if keeps]

    @cached_property
    def _reference(self) -> KeptReference:
        """FP32 is run here only if this process needs it."""
        return self._of.on(self._context, self.subset)

    def run(
        self, sets: Sequence[High], beside: High, counted: tuple[int, int] | None = None
    ) -> list[Energies | None]:
        """What each set of layers in FP32 gives; None where the runtime takes no such model. The
        others start from what they share with the set `beside`, which is run first, and known then.

        Args:
            counted: how many sets were run before, and are to be run in all, for the progress.

        Raises:
            OutOfTimeError: it takes longer than it may.
        """
        before, total = counted or (0, len(sets))
        if self._preparing is not None:
            return self._elsewhere(self._preparing, sets, beside, before, total)
        if beside not in self.known:
            self.begin(beside)
        found: list[Energies | None] = []
        began = time.monotonic()
        for one in self.each(sets, beside):
            found.append(None if one is None else self._judged(one))
            self._context.progress(Progress("effects", before + len(found), total))
            check_time(self._ends_at)
            self._give_up_early(began, len(found), len(sets))
        return found

    def _give_up_early(self, began: float, done: int, of: int) -> None:
        """What is surely not done in time is of no use, and the time is."""
        now = time.monotonic()
        takes = (now - began) / done * (of - done)
        if done == _TELLING and takes > _SURELY * (self._ends_at - now):
            raise OutOfTimeError

    def begin(self, beside: High) -> None:
        """Run what others start from."""
        energies = self.energies(beside, self._context.parallel.workers)
        self.known[beside] = self._judged(energies)

    def each(self, sets: Sequence[High], beside: High) -> Iterator[Energies | None]:
        """Of each of `sets`, one after the other; None as in `run`; `beside` has been run."""
        yield from map_in_order(self._energies_or_none, sets, self._context.parallel.workers)

    def _elsewhere(
        self, preparing: float, sets: Sequence[High], beside: High, before: int, total: int
    ) -> list[Energies | None]:
        """The same on several workers; candidates that share a session stay together."""
        work = partial(
            open_effects,
            context=self._context,
            pair=self._of.pair,
            drawn=self._drawn,
            outputs=tuple(self._outputs),
            cache_bytes=self._cache_bytes,
            beside=beside,
            keeps_outputs=self._is_judged,
            on_kernels=self._candidates.on_kernels,
        )
        parts = self._parts([(high,) for high in sets], beside, preparing)
        found: dict[High, list[Energies | None]] = {}
        done, executions = 0, len(self.subset.batches)
        with closing(self._context.executor.map(work, parts)) as results:
            for part, energies in zip(parts, results, strict=True):
                for high, one in zip(part.sets, energies, strict=True):
                    found.setdefault(high, []).append(one)
                done += len(part.sets) * (part.shard.stop - part.shard.start)
                now, note = before + done // executions, workers_note(self._context.executor)
                self._context.progress(Progress("effects", min(total, now), total, note))
                check_time(self._ends_at)
        together = {high: _joined(each) for high, each in found.items()}
        if beside not in self.known:
            begun = together[beside]
            assert begun is not None  # else `begin` raised
            self.known[beside] = self._judged(begun)
        each_set = (together[high] for high in sets)
        return [None if one is None else self._judged(one) for one in each_set]

    def _parts(
        self, groups: Sequence[Sequence[High]], beside: High, preparing: float
    ) -> list[EffectPart]:
        """The shards of the samples in order, and of each what to do in how many bundles."""
        executions, workers = len(self.subset.batches), self._context.executor.workers
        shards, bundles = 1, len(groups)
        if math.isinf(self._ends_at):  # else each part is to be short
            sizes = executions, self.count, len(groups), sum(map(len, groups))
            shards, bundles = cut(*sizes, workers, preparing)
        parts = []
        for shard in cut_evenly(executions, shards):
            for k in range(max(1, bundles)):
                sets = [high for group in groups[k :: max(1, bundles)] for high in group]
                first = () if k or beside in self.known else (beside,)
                parts.append(EffectPart(shard, (*first, *sets)))
        return parts

    def _energies_or_none(self, high: High) -> Energies | None:
        try:
            return self.energies(high, 1)
        except (ModelError, BackendError):
            return None

    def energies(self, high: High, workers: int) -> Energies:
        """Those of a candidate, with so many executions in flight."""
        parts: list[Energies] = []
        keeper = OutputKeeper(CANDIDATE, self._kept_outputs)

        def add(executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
            count = executed.batch.count
            candidate = executed.of(CANDIDATE)
            pair = executed.reference, candidate
            outputs = output_energies(*pair, self._outputs, count, self._of.pair.parts)
            chance = self._drawn.chances
            if not isinstance(chance, float):
                chance = chance[executed.batch.index]
            parts.append(Energies(outputs, np.full(outputs.shape[2], chance), {}))

        sinks: list[Sink] = [add, keeper] if self._kept_outputs else [add]
        self._run(high, workers, sinks)
        return Energies.joined(parts)._replace(kept=keeper.by_batch)

    def _judged(self, energies: Energies) -> Energies:
        """With what the metric says of the outputs, in their place; unchanged where these are not
        kept."""
        kept, chances = energies.kept, self._drawn.chances
        if self._of.metric is None or not kept:
            return energies
        each = [chances if isinstance(chances, float) else chances[b.index] for b in kept]
        counts = [batch.count for batch in kept]
        score, losses, tells = None, None, False
        with suppress(MetricError):  # broken outputs, or too few samples
            task = self._reference.task
            assert task is not None
            outputs = joined(kept)
            score = task(outputs)
            found, before = task.losses(outputs), task.losses(task.reference)
            if found is not None and before is not None:
                losses = (found - before) / np.repeat(each, counts)
                tells = tells_apart(found, before, score, task.of_reference())
        return energies._replace(kept={}, score=score, losses=losses, tells=tells)

    def _run(self, high: High, workers: int, sinks: Sequence[Sink]) -> None:
        with closing(self._candidates.open(high)) as session:
            runs = {REFERENCE: self._reference.run, CANDIDATE: run_of(session)}
            evaluate(
                self.subset,
                runs,
                {},
                self._context,
                workers=workers,
                feeds=self._reference.feeds,
                sinks=sinks,
            )


def _preparing(context: Context, pair: ModelPair, subset: SampleSubset) -> float | None:
    """What it takes workers to prepare a candidate of one layer, in FP32 passes of a sample; None
    where this process does all of the work."""
    if context.executor.workers < _WORTH_IT:
        return None
    return PREPARING_MACS / max(1.0, macs_per_sample(pair.layers, subset))


def _joined(parts: Sequence[Energies | None]) -> Energies | None:
    """Those of all shards; None where the runtime did not take the model for one of them."""
    known = [part for part in parts if part is not None]
    return Energies.joined(known) if len(known) == len(parts) else None


def cut(
    executions: int, samples: int, groups: int, layers: int, workers: int, preparing: float
) -> tuple[int, int]:
    """Into how many shards of the samples, and for each into how many bundles of groups of layers,
    the work is cut so that the workers are done first.

    Args:
        executions: of the samples, which are not divided.
        groups: of the layers, which are not divided either.
        preparing: of a layer, in FP32 passes of a sample.
    """

    def passes(parts: tuple[int, int]) -> float:
        shards, bundles = parts
        share = layers / bundles
        running = samples / executions * math.ceil(executions / shards)
        rounds = math.ceil(shards * bundles / workers)
        return rounds * ((share + 1) * preparing + running * (_BEGINNING + LEFT_OUT * share))

    most = [range(1, max(1, min(n, 2 * workers)) + 1) for n in (executions, groups)]
    return min(product(most[0], most[1]), key=passes)


@dataclass(frozen=True)
class EffectPart:
    """Some sets of layers in FP32, on a shard of the samples."""

    shard: Shard
    sets: tuple[High, ...]


def open_effects(
    stack: ExitStack,
    *,
    context: Context,
    pair: ModelPair,
    drawn: Drawn,
    outputs: Sequence[str],
    cache_bytes: int,
    beside: High,
    keeps_outputs: bool,
    on_kernels: bool,
) -> Callable[[EffectPart], list[Energies | None]]:
    """Candidates on some samples, for an executor. See Runs; the sets start from `beside`."""
    graph = pair.reference
    candidates = candidates_of(context, pair, on_kernels=on_kernels)
    assert candidates is not None  # there are sets of them
    session = stack.enter_context(closing(context.backend.open(graph.proto, ())))

    @lru_cache(maxsize=1)
    def begun(shard: Shard) -> Runs:
        reference = Reference(pair, session, outputs)
        few = drawn.part(shard)
        how = {"keeps_outputs": keeps_outputs}
        runs = Runs(context, candidates, reference, few, cache_bytes, **how)
        runs.begin(beside)
        return runs

    def run(part: EffectPart) -> list[Energies | None]:
        runs = begun(part.shard)
        others = [high for high in part.sets if high != beside]
        found = dict(zip(others, runs.each(others, beside), strict=True))
        return [runs.known[h] if h == beside else found[h] for h in part.sets]

    return run
