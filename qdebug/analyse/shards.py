"""The lockstep pass over all samples, on the workers of an executor: a shard of them is a part.

In this process, where what is kept need not travel, `lockstep.run_within` is the pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

from qdebug.analyse.effect.effects import NoiseSink
from qdebug.analyse.flips import Counted, FlipSink
from qdebug.analyse.run_file import EvidenceSink, KeptRow, Ratings, RowKeeper
from qdebug.backends.sizing import Sizing, capture_groups, probe
from qdebug.execute.context import Context
from qdebug.execute.evaluator import OutputKeeper, Sink
from qdebug.execute.lockstep import Due, due_of, open_lockstep
from qdebug.execute.over_shards import over_shards
from qdebug.metrics.accumulate import ErrorTotals, ExecutedBatch
from qdebug.network.samples import Batch, Samples
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.plan.pair import ModelPair
from qdebug.run.executor import Shard, part_of
from qdebug.store.schema import Keep
from qdebug.types import Array, Tensors

_HELD = 3
"""Executions whose tensors a worker holds: one, the next, and one for decomposed errors."""


@dataclass(frozen=True)
class Sinks:
    """What takes the batches of a pass, besides the errors' totals; `sized` is as of Measured."""

    flips: FlipSink
    noise: NoiseSink
    evidence: EvidenceSink | None
    keepers: tuple[OutputKeeper, ...]
    sized: Callable[[Mapping[str, float]], None] = lambda _: None

    @property
    def each(self) -> list[Sink]:
        """All of them."""
        return [
            self.flips,
            self.noise,
            *([self.evidence] if self.evidence else []),
            *self.keepers,
        ]


@dataclass(frozen=True)
class ShardFound:
    """What a pass over a shard gave: sums, and what is to be kept.

    Attributes:
        not_float: see Lockstep.
        flips, noise: what their sinks found.
        ratings: how bad the outputs of each sample are, where they are rated.
        rows: of the samples, where all are kept; `unsplit` is as of EvidenceSink.
        outputs: what each keeper kept, by batch.
    """

    errors: ErrorTotals
    not_float: tuple[str, ...]
    flips: Counted
    noise: Mapping[int, Array] | None
    ratings: Mapping[int, float]
    rows: Sequence[KeptRow] = ()
    unsplit: frozenset[str] = frozenset()
    outputs: Sequence[Mapping[Batch, Tensors]] = ()


@dataclass(frozen=True)
class RowsOf:
    """The part that gives the activations of a few samples: they run once more, since
    which are worth keeping is known when all have run, and activations are large."""

    samples: tuple[int, ...]


def open_pass(
    stack: ExitStack,
    *,
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    tensors: Sequence[str],
    rated: bool,
    due: Due,
    every_row: bool,
    kept: Sequence[tuple[str, Sequence[str]]],
) -> Callable[[Shard | RowsOf], ShardFound]:
    """The lockstep pass over one group of tensors, for an executor.

    Args:
        rated: samples are rated by the errors of their outputs.
        every_row: the activations of all samples are wanted.
        kept: the run and the outputs of each keeper.
    """
    one = open_lockstep(stack, context, pair, tensors, rated=rated, decomposed=True)

    def run(part: Shard | RowsOf) -> ShardFound:
        keeper, ratings = RowKeeper(), Ratings()
        rows = EvidenceSink(keeper, Keep("all"), pair.tensors)
        flips, noise = FlipSink(context, pair), NoiseSink(pair)
        keepers = [OutputKeeper(run, outputs) for run, outputs in kept]
        if isinstance(part, Shard):
            chosen, measured = part_of(subset, part), due
            sinks: list[Sink] = [flips, noise, *keepers]
            sinks += [ratings] if rated else []
            sinks += [rows] if every_row else []
        else:
            chosen, measured, sinks = _batches_of(subset, part.samples), Due(), [rows]
        errors = one.run(chosen, context, due=measured, sinks=sinks, stage="")
        found = keeper.kept
        if isinstance(part, RowsOf):  # an execution may hold others
            found = [row for row in found if row.sample in part.samples]
        return ShardFound(
            errors,
            one.not_float,
            flips.counted,
            noise.kept,
            ratings.badness,
            found,
            frozenset(rows.unsplit),
            [keeper.by_batch if keeper.outputs else {} for keeper in keepers],
        )

    return run


def _batches_of(subset: SampleSubset, samples: Sequence[int]) -> SampleSubset:
    """The executions that hold some samples."""
    found = (b for b in subset.batches if any(b.start <= s < b.start + b.count for s in samples))
    return SampleSubset(subset.samples, tuple(found))


def run_on_workers(
    memory_budget: int,
    local_samples: int | None,
    context: Context,
    pair: ModelPair,
    samples: Samples,
    sinks: Sinks,
) -> tuple[ErrorTotals, list[str]]:
    """The totals of all tensors, and those that cannot be compared. The sinks take what they would
    take of one process.

    Args:
        memory_budget: of each worker, for captured tensors.

    Raises:
        QdebugError: samples cannot be read, a model does not run, or the workers fail.
    """
    tensors = [t for t in pair.tensors if t in pair.reference.producers]
    with closing(context.backend.open(pair.reference.proto, tensors)) as session:
        sizing = probe(session, samples, context.batch_size)
    sinks.sized(sizing.bytes_per_sample)
    groups = capture_groups(tensors, sizing.bytes_per_batch, _HELD, memory_budget)
    subset = whole(sizing.samples)
    due = due_of(pair, subset, local_samples)
    kept = [(k.run, _fitting(k, sizing, len(subset.batches))) for k in sinks.keepers]
    rated = sinks.evidence is not None and sinks.evidence.rates
    every_row = sinks.evidence is not None and not sinks.evidence.rates
    total, not_float = ErrorTotals(), list[str]()
    for group in groups:
        if sinks.evidence and len(groups) > 1:
            sinks.evidence.start_group()
        work = partial(
            open_pass,
            context=context,
            pair=pair,
            subset=subset,
            tensors=group,
            rated=rated,
            due=due,
            every_row=every_row,
            kept=kept,
        )
        merged = _Merged(sinks)
        for found in over_shards(context, work, subset, "compare"):
            merged.add(found)
        if sinks.evidence is not None and rated:
            # These samples run once more: which are worth keeping is known when all have run.
            worst = sinks.evidence.worst_of(merged.badness)
            for found in context.executor.map(work, [RowsOf((sample,)) for sample in worst]):
                merged.take(found)
        total = total.joined(merged.errors)
        not_float += merged.not_float
    return total, not_float


def _fitting(keeper: OutputKeeper, sizing: Sizing, executions: int) -> tuple[str, ...]:
    """The outputs of a keeper, if it has room for those of all samples: else none travel."""
    need = executions * sum(sizing.bytes_per_batch.get(t, 0) for t in keeper.outputs)
    return tuple(keeper.outputs) if need <= keeper.room else ()


@dataclass
class _Merged:
    """The shards of one job, in order."""

    sinks: Sinks
    errors: ErrorTotals = field(default_factory=ErrorTotals)
    not_float: tuple[str, ...] = ()
    badness: dict[int, float] = field(default_factory=dict)

    def add(self, found: ShardFound) -> None:
        self.errors.add(found.errors)
        self.not_float = found.not_float
        self.sinks.flips.merge(found.flips)
        self.sinks.noise.merge(found.noise)
        self.badness |= found.ratings
        self.take(found)
        keepers = self.sinks.keepers
        for batch in dict.fromkeys(batch for kept in found.outputs for batch in kept):
            runs = {
                k.run: o[batch] for k, o in zip(keepers, found.outputs, strict=True) if batch in o
            }
            for keeper in keepers:
                keeper(ExecutedBatch(batch, {}, runs), {})

    def take(self, found: ShardFound) -> None:
        """The activations of samples that are kept."""
        evidence = self.sinks.evidence
        if evidence is None:
            return
        evidence.unsplit |= found.unsplit
        for row in found.rows:
            evidence.take(row, self.badness.get(row.sample, 0.0))
