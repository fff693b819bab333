"""Try several candidates of one model on the same samples: outputs only, in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from qdebug.analyse.gate import chance_of
from qdebug.analyse.metric_direction import direction_of
from qdebug.analyse.metric_samples import score_interval
from qdebug.backends.base import Session
from qdebug.commands.calibrate.quantizable import Candidate, Quantizable, Ranges
from qdebug.errors import MetricError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import OutputKeeper, Reducer, Run, Sink, evaluate, open_all, run_of
from qdebug.execute.over_shards import over_shards
from qdebug.metrics.accumulate import REFERENCE, Comparison, ErrorTotals, ExecutedBatch
from qdebug.metrics.chance import no_better_than_chance
from qdebug.metrics.effect import noise_by_sample, output_energies
from qdebug.metrics.tasks.base import Outputs, TaskMetric, rows_of
from qdebug.metrics.tensor import noise_db
from qdebug.network.graph import Graph
from qdebug.network.samples.groups import Grouping
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.calibrate import GroupFigures, ReferenceMetric, Trial
from qdebug.run.executor import Shard, part_of
from qdebug.run.outputs import MetricEvaluator
from qdebug.types import Array, Feeds, Tensors


@dataclass(frozen=True)
class Trials:
    """All candidates, and the end-to-end metric of the reference; None without one.

    Attributes:
        by_group: the metric of the reference on each group that it can be computed of.
    """

    by_name: Mapping[str, Trial]
    metric: ReferenceMetric | None
    by_group: Mapping[str, float]


@dataclass
class Tried:
    """What some executions of the reference and of every candidate gave.

    Attributes:
        totals: errors by candidate.
        kept: the outputs of every run, where there is a metric.
        energies: of `output_energies` in each batch, by candidate, where there are groups.
    """

    totals: dict[str, ErrorTotals]
    kept: dict[str, OutputKeeper]
    energies: dict[str, list[Array]]

    def add(self, later: Tried) -> None:
        """Add those of later batches."""
        for name, total in self.totals.items():
            total.add(later.totals[name])
        for name, batches in self.energies.items():
            batches += later.energies[name]
        for run, keeper in self.kept.items():
            keeper.by_batch.update(later.kept[run].by_batch)

    def trials(
        self, subset: SampleSubset, metric: TaskMetric | None, grouping: Grouping | None
    ) -> Trials:
        """The figures of all.

        Raises:
            MetricError: the metric raised.
        """
        task = None
        if metric is not None:
            task = MetricEvaluator.of(metric, subset.samples, self.kept[REFERENCE].checked())
        trials = {
            name: Trial(
                total.metrics(),
                task(self.kept[name].joined()) if task else None,
                self._by_group(name, subset, task, grouping) if grouping else {},
            )
            for name, total in self.totals.items()
        }
        if task is None:
            return Trials(trials, None, {})
        by_group = {}
        if grouping is not None:
            numbers = grouping.numbers[subset.indices]
            for number, group in enumerate(grouping.groups):
                score = _score(task, task.reference, np.flatnonzero(numbers == number))
                if score is not None:
                    by_group[group] = score
        return Trials(trials, _of_reference(task, subset.count), by_group)

    def _by_group(
        self, name: str, subset: SampleSubset, task: MetricEvaluator | None, grouping: Grouping
    ) -> dict[str, GroupFigures]:
        """What a candidate makes of each group."""
        energies = np.concatenate(self.energies[name], axis=2) if self.energies[name] else None
        if energies is None or energies.shape[2] != subset.count:
            return {}
        numbers, outputs = grouping.numbers[subset.indices], {}
        if task is not None:
            outputs = self.kept[name].joined()
        found = {}
        for number, group in enumerate(grouping.groups):
            rows = np.flatnonzero(numbers == number)
            if not len(rows):
                continue
            score = _score(task, outputs, rows) if task else None
            noise = float(noise_by_sample(energies[:, :, rows]).sum())
            found[group] = GroupFigures(noise_db(noise), score)
        return found


def _score(task: MetricEvaluator, outputs: Outputs, rows: Array) -> float | None:
    """The metric of some samples; None where it cannot be computed of them, such as a curve of
    samples that are all of one class."""
    if not len(rows):
        return None
    given = (outputs, task.labels, task.reference)
    try:
        return task.metric(*(rows_of(arrays, rows) for arrays in given))
    except MetricError:
        return None


def _of_reference(task: MetricEvaluator, samples: int) -> ReferenceMetric:
    metric, higher = task.metric, direction_of(task, samples)
    interval = score_interval(task, task.reference, samples)
    score = task.of_reference()
    is_chance = no_better_than_chance(score, samples, chance_of(task))
    return ReferenceMetric(metric.name, score, higher, metric.is_share, interval, is_chance)


def open_candidates(
    stack: ExitStack, context: Context, reference: Graph, candidates: Mapping[str, Candidate]
) -> dict[str, Run]:
    """The runs of the reference and of every candidate; `stack` closes their sessions. Candidates
    of one model share its session.

    Raises:
        QdebugError: a model cannot be opened.
    """
    protos = {id(one.proto): one.proto for one in candidates.values()}
    models = [(context.simulation, proto, ()) for proto in protos.values()]
    first, *others = open_all(stack, [(context.backend, reference.proto, ()), *models])
    sessions = dict(zip(protos, others, strict=True))
    runs: dict[str, Run] = {REFERENCE: run_of(first)}
    for name, one in candidates.items():
        runs[name] = _run_of(sessions[id(one.proto)], one.feeds)
    return runs


def open_trial(
    stack: ExitStack,
    *,
    context: Context,
    pair: Quantizable,
    ranges: Mapping[str, Ranges],
    subset: SampleSubset,
    metric: TaskMetric | None,
    by_sample: bool,
) -> Callable[[Shard], Tried]:
    """The reference and the quantized model with each of some ranges, for an executor: run on each
    batch, and their outputs compared. Nothing is kept but sums, unless a `metric` needs the outputs
    of all samples; `by_sample` asks for the errors of each."""
    graph = pair.model.graph
    runs = open_candidates(stack, context, graph, pair.candidates(ranges))
    names = [run for run in runs if run != REFERENCE]

    def run(shard: Shard) -> Tried:
        kept = {}
        if metric is not None:
            reduce = Reducer(metric, subset.samples, losses=False)
            kept = {run: OutputKeeper(run, graph.outputs, reduce=reduce) for run in names}
            whole = Reducer(metric, subset.samples)  # with what FP32's samples lose
            kept[REFERENCE] = OutputKeeper(REFERENCE, graph.outputs, reduce=whole)
        comparisons = {name: Comparison(candidate=name) for name in names}
        energies = _EnergiesBySample(graph, {name: [] for name in names if by_sample})
        sinks: list[Sink] = [*kept.values(), energies]
        few = part_of(subset, shard)
        totals = evaluate(few, runs, comparisons, context, sinks=sinks, stage="evaluate")
        for keeper in kept.values():
            keeper.reduce = None  # a metric does not travel back
        return Tried(totals, kept, energies.found)

    return run


def evaluated(
    context: Context,
    pair: Quantizable,
    ranges: Mapping[str, Ranges],
    subset: SampleSubset,
    metric: TaskMetric | None,
    grouping: Grouping | None = None,
) -> Trials:
    """The quantized model with each of some ranges, on held-out samples, and on each group of them.

    Raises:
        QdebugError: samples cannot be read, a model does not run, or the metric raised.
    """
    work = partial(
        open_trial,
        context=context,
        pair=pair,
        ranges=ranges,
        subset=subset,
        metric=metric,
        by_sample=grouping is not None,
    )
    first, *others = over_shards(context, work, subset, "evaluate")
    for later in others:
        first.add(later)
    return first.trials(subset, metric, grouping)


def _run_of(session: Session, own: Feeds) -> Run:
    def run(executed: ExecutedBatch) -> Tensors:
        return session.run({**executed.feeds, **own})

    return run


@dataclass(frozen=True)
class _EnergiesBySample:
    """A sink: Σerr² and Σref² of every output and sample, by candidate."""

    graph: Graph
    found: dict[str, list[Array]]

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        reference, count = executed.of(REFERENCE), executed.batch.count
        outputs = [t for t in self.graph.outputs if t in reference and self.graph.is_float(t)]
        for name, batches in self.found.items() if outputs else ():
            batches.append(output_energies(reference, executed.of(name), outputs, count))
