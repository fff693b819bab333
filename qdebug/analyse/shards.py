"""The lockstep pass over all samples, spread over a cluster: a shard of them is a unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from qdebug.analyse.effect.effects import NoiseSink
from qdebug.analyse.flips import Counted, FlipSink
from qdebug.analyse.run_file import EvidenceSink, KeptRow, Ratings, RowKeeper
from qdebug.backends.sizing import Parallelism, Sizing, capture_groups, probe
from qdebug.execute.cluster.dispatch import Cluster
from qdebug.execute.cluster.recipe import PairRecipe
from qdebug.execute.cluster.unit import Place, Shard, SharedSubset, part_of
from qdebug.execute.context import Context, simulation_context
from qdebug.execute.evaluator import OutputKeeper, Sink
from qdebug.execute.lockstep import Due, due_of, open_lockstep
from qdebug.metrics.accumulate import ErrorTotals
from qdebug.network.samples import Batch, Samples
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.plan.pair import ModelPair
from qdebug.store.schema import Keep
from qdebug.types import Array, Fp16Kernels, Tensors, ignore_progress

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
        flips, noise: what their sinks counted.
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
    """The part of a job that gives the activations of a few samples: they run once more, since
    which are worth keeping is known when all have run, and activations are large."""

    samples: tuple[int, ...]


@dataclass(frozen=True)
class CompareJob:
    """The lockstep pass over one group of tensors. See unit.Job.

    Attributes:
        rated: samples are rated by the errors of their outputs.
        every_row: the activations of all samples are wanted.
        kept: the run and the outputs of each keeper.
    """

    pair: PairRecipe
    subset: SharedSubset
    fp16_kernels: Fp16Kernels
    tensors: tuple[str, ...]
    rated: bool
    due: Due
    every_row: bool
    kept: tuple[tuple[str, tuple[str, ...]], ...]

    def open(self, place: Place, stack: ExitStack) -> Callable[[Shard | RowsOf], ShardFound]:
        """See unit.Job."""
        pair = self.pair.made(place)
        subset = self.subset.opened(place, pair.model.graph.inputs)
        context = worker_context(place, self.fp16_kernels, subset.samples.batch_size)
        one = open_lockstep(stack, context, pair, self.tensors, rated=self.rated, decomposed=True)

        def run(part: Shard | RowsOf) -> ShardFound:
            keeper, ratings = RowKeeper(), Ratings()
            rows = EvidenceSink(keeper, Keep("all"), pair.tensors)
            flips, noise = FlipSink(context, pair), NoiseSink(pair)
            keepers = [OutputKeeper(run, outputs) for run, outputs in self.kept]
            if isinstance(part, Shard):
                chosen, due = part_of(subset, part), self.due
                sinks: list[Sink] = [flips, noise, *keepers]
                sinks += [ratings] if self.rated else []
                sinks += [rows] if self.every_row else []
            else:
                chosen, due, sinks = _batches_of(subset, part.samples), Due(), [rows]
            errors = one.run(chosen, context, due=due, sinks=sinks, stage="")
            kept = keeper.kept
            if isinstance(part, RowsOf):  # an execution may hold others
                kept = [row for row in kept if row.sample in part.samples]
            return ShardFound(
                errors,
                one.not_float,
                flips.counted,
                noise.kept,
                ratings.badness,
                kept,
                frozenset(rows.unsplit),
                [keeper.by_batch if keeper.outputs else {} for keeper in keepers],
            )

        return run


def _batches_of(subset: SampleSubset, samples: Sequence[int]) -> SampleSubset:
    """The executions that hold some samples."""
    found = (b for b in subset.batches if any(b.start <= s < b.start + b.count for s in samples))
    return SampleSubset(subset.samples, tuple(found))


def worker_context(place: Place, fp16_kernels: Fp16Kernels, batch_size: int | None) -> Context:
    """The surroundings of a unit: one runtime thread for each execution in flight."""
    parallel = Parallelism(place.threads, 1)
    return simulation_context(parallel, ignore_progress, place.sessions, batch_size, fp16_kernels)


@dataclass(frozen=True)
class SpreadPass:
    """The lockstep pass on the workers of `context`.

    Attributes:
        memory_budget: of each worker, for captured tensors.
    """

    context: Context
    recipe: PairRecipe
    pair: ModelPair
    memory_budget: int
    local_samples: int | None

    def run(self, samples: Samples, sinks: Sinks) -> tuple[ErrorTotals, list[str]]:
        """The totals of all tensors, and those that cannot be compared. The sinks take what they
        would take of one process.

        Raises:
            QdebugError: samples cannot be read, a model does not run, or the workers fail.
        """
        assert self.context.cluster is not None
        tensors = [t for t in self.pair.tensors if t in self.pair.reference.producers]
        backend = self.context.backend
        with closing(backend.open(self.pair.reference.proto, tensors)) as session:
            sizing = probe(session, samples, self.context.batch_size)
        sinks.sized(sizing.bytes_per_sample)
        groups = capture_groups(tensors, sizing.bytes_per_batch, _HELD, self.memory_budget)
        subset = whole(sizing.samples)
        jobs = [
            CompareJob(
                self.recipe,
                self.context.cluster.subset(subset),
                self.context.fp16_kernels,
                tuple(group),
                sinks.evidence is not None and sinks.evidence.rates,
                due_of(self.pair, subset, self.local_samples),
                sinks.evidence is not None and not sinks.evidence.rates,
                tuple((k.run, _fitting(k, sizing, len(subset.batches))) for k in sinks.keepers),
            )
            for group in groups
        ]
        total, not_float = ErrorTotals(), list[str]()
        for job in jobs:
            if sinks.evidence and len(jobs) > 1:
                sinks.evidence.start_group()
            merged = _Merged(sinks)
            cluster, progress = self.context.cluster, self.context.progress
            for found in cluster.over_shards(job, subset, progress, "compare"):
                merged.add(found)
            merged.add_rows(cluster, job)
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
        self._take(found)
        for keeper, by_batch in zip(self.sinks.keepers, found.outputs, strict=True):
            for batch, outputs in by_batch.items():
                keeper.keep(batch, outputs)

    def add_rows(self, cluster: Cluster, job: CompareJob) -> None:
        """Have the samples run once more that turned out to be worth keeping."""
        if self.sinks.evidence is not None and job.rated:
            worst = self.sinks.evidence.worst_of(self.badness)
            for found in cluster.map(job, [RowsOf((sample,)) for sample in worst]):
                self._take(found)

    def _take(self, found: ShardFound) -> None:
        evidence = self.sinks.evidence
        if evidence is None:
            return
        evidence.unsplit |= found.unsplit
        for row in found.rows:
            evidence.take(row, self.badness.get(row.sample, 0.0))
