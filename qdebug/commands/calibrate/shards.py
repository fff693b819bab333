"""The evaluation of calibrations on held-out samples: here, or spread over a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from qdebug.backends.sizing import Parallelism
from qdebug.commands.calibrate.quantizable import Quantizable, Ranges
from qdebug.commands.calibrate.trial import Trials, Tried, open_candidates, try_candidates
from qdebug.execute.cluster.unit import Place, Shard, SharedModel, SharedSubset, part_of
from qdebug.execute.context import Context, simulation_context
from qdebug.metrics.task import TaskMetric
from qdebug.network.layers import find_layers
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Fp16Kernels, ignore_progress


@dataclass(frozen=True)
class TrialJob:
    """Candidates of a model on held-out samples. See unit.Job.

    Attributes:
        plan, needed, weights: see Quantizable.
        ranges: of each candidate.
        keep: outputs are kept, for a metric.
    """

    model: SharedModel
    plan: PrecisionPlan
    needed: tuple[str, ...]
    weights: Ranges
    ranges: Mapping[str, Ranges]
    subset: SharedSubset
    fp16_kernels: Fp16Kernels
    keep: bool

    def open(self, place: Place, stack: ExitStack) -> Callable[[Shard], Tried]:
        """See unit.Job."""
        model = self.model.prepared(place)
        graph = model.graph
        pair = Quantizable(model, find_layers(graph), self.plan, list(self.needed), self.weights)
        subset = self.subset.opened(place, graph.inputs)
        parallel, size = Parallelism(place.threads, 1), subset.samples.batch_size
        context = simulation_context(
            parallel, ignore_progress, place.sessions, size, self.fp16_kernels
        )
        runs = open_candidates(stack, context, graph, pair.candidates(self.ranges))

        def run(shard: Shard) -> Tried:
            few = part_of(subset, shard)
            return try_candidates(context, runs, graph.outputs, few, keep=self.keep, stage="")

        return run


def evaluated(
    context: Context,
    pair: Quantizable,
    ranges: Mapping[str, Ranges],
    subset: SampleSubset,
    metric: TaskMetric | None,
) -> Trials:
    """The model in INT8 with each of some ranges, on held-out samples.

    Raises:
        QdebugError: samples cannot be read, a model does not run, or the metric raised.
    """
    graph, keep, cluster = pair.model.graph, metric is not None, context.cluster
    if cluster is None:
        with ExitStack() as stack:
            runs = open_candidates(stack, context, graph, pair.candidates(ranges))
            tried = try_candidates(context, runs, graph.outputs, subset, keep=keep)
        return tried.trials(subset, metric)
    job = TrialJob(
        cluster.shared(graph, SharedModel),
        pair.plan,
        tuple(pair.needed),
        pair.weights,
        ranges,
        cluster.subset(subset),
        context.fp16_kernels,
        keep,
    )
    first, *others = cluster.over_shards(job, subset, context.progress, "evaluate")
    for later in others:
        first.add(later)
    return first.trials(subset, metric)
