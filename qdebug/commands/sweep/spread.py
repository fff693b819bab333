"""Where the combinations of a sweep are simulated and built: here, or on the workers of a cluster.

There, each build is a unit. Workers of this machine execute the engine too; elsewhere the CPU may
be another one, whose kernels compute otherwise. The command itself times engines, one after the
other, when the workers are idle, and executes those that no worker did.

For simulations each worker has a part of the samples, on which it runs FP32 once. With a metric,
which needs the outputs of all samples, and where workers execute engines, which takes FP32 on all
samples anyway, each simulation is a unit over all of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from qdebug.analyse.shards import worker_context
from qdebug.backends.engine import EngineRuntime
from qdebug.backends.options import SessionSettings
from qdebug.backends.registry import spec_of
from qdebug.commands.sweep.axes import BuilderPoint, Variant
from qdebug.commands.sweep.measured import (
    FoundEngine,
    OutputEvaluator,
    PartErrors,
    built_of,
    errors_of,
    facts_of,
)
from qdebug.config.cluster import local_processes
from qdebug.config.engine import EngineSettings
from qdebug.config.sweep import SweepSettings
from qdebug.errors import ClusterError, UsageError
from qdebug.execute.cluster.dispatch import Cluster, Pool, workers_note
from qdebug.execute.cluster.machines import open_cluster, visible_gpus
from qdebug.execute.cluster.recipe import PairRecipe, recipe_of
from qdebug.execute.cluster.sharing import SharedMetric
from qdebug.execute.cluster.unit import (
    Place,
    SharedModel,
    SharedSamples,
    SharedSubset,
    cut_evenly,
    part_of,
)
from qdebug.execute.context import Context
from qdebug.execute.engine.build import fitted, open_runtime
from qdebug.execute.evaluator import sized
from qdebug.metrics.task import TaskMetric
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.network.samples.subset import whole
from qdebug.plan.pair import ModelPair
from qdebug.results.sweep import Failure, OutputErrors
from qdebug.types import Fp16Kernels, Progress, ProgressCallback
from qdebug.wording import option


class Source(Protocol):
    """What a sweep asks for each pair and, of it, for each point of the builder, in order."""

    def simulated(self, pair: ModelPair) -> OutputErrors:
        """See OutputEvaluator.simulated."""
        ...

    def found(self, point: BuilderPoint, pair: ModelPair, not_run: str) -> FoundEngine | Failure:
        """See facts_of."""
        ...


@dataclass(frozen=True)
class Here:
    """This process. See Source."""

    outputs: OutputEvaluator

    def simulated(self, pair: ModelPair) -> OutputErrors:
        """See Source."""
        return self.outputs.simulated(pair)

    def found(self, point: BuilderPoint, pair: ModelPair, not_run: str) -> FoundEngine | Failure:
        """See Source."""
        return facts_of(point.runtime, pair, not_run=not_run)


@dataclass(frozen=True)
class Build:
    """An engine to build.

    Attributes:
        builder: what the client's runtime says of itself; see `_builder`.
        not_run: see facts_of.
        wanted: the engine itself is wanted, too.
        executes: so are the errors of its outputs.
    """

    engine: EngineSettings
    builder: tuple[str, ...]
    not_run: str
    wanted: bool
    executes: bool


@dataclass(frozen=True)
class Wanted:
    """A part of a job: a pair to simulate, or to build an engine of.

    Attributes:
        part: the number of the part of the samples to simulate it on; None for all samples.
    """

    pair: PairRecipe
    build: Build | None = None
    part: int | None = None


Found = OutputErrors | FoundEngine | Failure


@dataclass(frozen=True)
class SweepJob:
    """The combinations of a sweep. See unit.Job.

    Attributes:
        model: whose inputs the samples are for.
        parts: of the samples, where they are divided.
        batch_size: see Context.
        cached: what an earlier sweep kept in the worker's cache is taken, and more is kept there.
    """

    model: SharedModel
    samples: SharedSamples
    parts: tuple[SharedSubset, ...]
    metric: SharedMetric | None
    batch_size: int | None
    fp16_kernels: Fp16Kernels
    cached: bool

    def open(self, place: Place, stack: ExitStack) -> Callable[[Wanted], Found | PartErrors]:
        """See unit.Job."""
        graph = self.model.prepared(place).graph
        samples = self.samples.opened(place, graph.inputs)
        metric = self.metric.loaded(place) if self.metric else None
        context = worker_context(place, self.fp16_kernels, self.batch_size)
        outputs = OutputEvaluator(context, whole(samples), metric, cached=self.cached)

        @cache
        def on_part(number: int) -> OutputEvaluator:
            subset = self.parts[number].opened(place, graph.inputs)
            return OutputEvaluator(context, subset, None, cached=False)

        @cache
        def runtime_of(engine: EngineSettings) -> EngineRuntime:
            opened = open_runtime(
                engine, cached=self.cached, threads=place.threads, sessions=place.sessions
            )
            assert opened is not None  # by what the client checked
            return fitted(opened, graph, samples)

        def run(part: Wanted) -> Found | PartErrors:
            pair = part.pair.made(place)
            if part.part is not None:
                return on_part(part.part).part(pair)
            if part.build is None:
                return outputs.simulated(pair)
            runtime = runtime_of(part.build.engine)
            found = _built(runtime, pair, part.build)
            if isinstance(found, Failure) or not part.build.executes:
                return found
            return replace(found, errors=errors_of(runtime, pair, found, outputs))

        return run


def _built(runtime: EngineRuntime, pair: ModelPair, asked: Build) -> FoundEngine | Failure:
    """Raises ClusterError where the worker would build another engine than the client."""
    if _builder(runtime) != asked.builder:
        raise ClusterError(
            f"a worker builds with {', '.join(_builder(runtime))}, this process with "
            f"{', '.join(asked.builder)}",
            "Have workers with the same library and the same kind of GPU.",
            code="QD-CLUSTER-OTHER-BUILDER",
        )
    found = facts_of(runtime, pair, not_run=asked.not_run)
    if isinstance(found, Failure):
        return found
    return replace(found, built=built_of(runtime, pair, found) if asked.wanted else None)


def _builder(runtime: EngineRuntime) -> tuple[str, ...]:
    return runtime.label, runtime.built_for


@dataclass(frozen=True)
class _Given:
    """What workers were given of one pair: the numbers of its units.

    Attributes:
        known: the errors of its simulation, where an earlier run kept them.
    """

    variant: Variant
    pair: ModelPair
    known: OutputErrors | None
    simulations: Sequence[int]
    builds: Sequence[int]


class Elsewhere:
    """The workers of a cluster. See Source; it gives what `evaluated` asked for, in that order."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        outputs: OutputEvaluator,
        metric: TaskMetric | None,
        settings: SweepSettings,
    ) -> None:
        self._context, self._cluster, self._settings = context, cluster, settings
        self._outputs, self._metric = outputs, metric
        self._kept = iter(list[Path]())
        self._files = 0

    def evaluated(
        self,
        pairs: Iterable[tuple[Variant, ModelPair]],
        models: Sequence[Model],
        points: Sequence[tuple[BuilderPoint, str]],
    ) -> list[tuple[Variant, ModelPair]]:
        """Have all pairs simulated and built, and wait for it: what is executed afterwards is
        not disturbed. Results stay in files, since engines may be large.

        Args:
            models: of each pair, as the user gave it.
            points: with why their engines are not executed, "" where they are.

        Raises:
            QdebugError: as Here does, or the workers fail.
        """
        executes = any(self._executes(why) for _, why in points)
        each = zip(pairs, models, strict=True)
        first = next(each)
        job = self._job(models[0], first[0][1].reference, executes=executes)
        given: list[_Given] = []
        with self._cluster.pool(job) as pool:
            for (variant, pair), model in chain([first], each):
                recipe = recipe_of(self._cluster, pair, variant.settings, model)
                known = self._outputs.known(pair)
                homes = [] if known else range(len(job.parts)) if job.parts else [None]
                simulations = [pool.give(Wanted(recipe, part=home), home) for home in homes]
                builds = [pool.give(Wanted(recipe, self._build(*point))) for point in points]
                given.append(_Given(variant, pair, known, simulations, builds))
            pool.done = self._count(sum(len(g.simulations) + len(g.builds) for g in given))
            self._kept = iter([path for one in given for path in self._taken(pool, one)])
        return [(one.variant, one.pair) for one in given]

    def _job(self, model: Model, reference: Graph, *, executes: bool) -> SweepJob:
        subset, parts = self._outputs.subset, tuple[SharedSubset, ...]()
        if self._metric is None and not executes:
            subset = sized(self._context, reference, subset)
            count = min(self._cluster.workers, len(subset.batches))
            each = cut_evenly(len(subset.batches), count)
            parts = tuple(self._cluster.subset(part_of(subset, shard)) for shard in each)
        return SweepJob(
            self._cluster.shared(model.graph, SharedModel),
            self._cluster.samples(self._outputs.subset.samples),
            parts,
            SharedMetric.of(self._metric) if self._metric else None,
            self._context.batch_size,
            self._context.fp16_kernels,
            self._settings.cache,
        )

    def _taken(self, pool: Pool[Wanted, Any], given: _Given) -> Iterator[Path]:
        """Wait for what was given, and keep it in files."""
        simulated = [pool.take(number) for number in given.simulations]
        if simulated and isinstance(simulated[0], PartErrors):
            yield self._keep(self._outputs.joined(given.pair, simulated))
        else:
            yield self._keep(given.known or simulated[0])
        for number in given.builds:
            yield self._keep(pool.take(number))

    def simulated(self, pair: ModelPair) -> OutputErrors:
        """See Source."""
        found = self._next()
        assert isinstance(found, OutputErrors)
        return found

    def found(self, point: BuilderPoint, pair: ModelPair, not_run: str) -> FoundEngine | Failure:
        """See Source."""
        found = self._next()
        assert not isinstance(found, OutputErrors)
        return found

    def _build(self, point: BuilderPoint, not_run: str) -> Build:
        wanted = not not_run or self._settings.save_engines is not None
        executes = self._executes(not_run)
        return Build(point.engine, _builder(point.runtime), not_run, wanted, executes)

    def _executes(self, not_run: str) -> bool:
        """Whether workers execute engines, which are not run for this reason."""
        return not not_run and local_processes(self._settings.cluster) > 0

    def _keep(self, found: Found) -> Path:
        self._files += 1
        return self._cluster.keep(f"found-{self._files}", pickle.dumps(found))

    def _next(self) -> Found:
        path = next(self._kept)
        found: Found = pickle.loads(path.read_bytes())
        path.unlink()
        return found

    def _count(self, total: int) -> Callable[[int], None]:
        done = 0

        def count(_: int) -> None:
            nonlocal done
            done += 1
            note = workers_note(self._cluster.workers)
            self._context.progress(Progress("sweep", done, total, note))

        return count


def check_cluster(settings: SweepSettings) -> None:
    """Refuse workers that would disturb each other's measurements.

    Raises:
        UsageError: they would.
    """
    spec = spec_of(settings.backend)
    if settings.cluster is None and settings.cluster_config is None:
        return
    if settings.timing_cache is not None:
        raise UsageError(
            f"{option('timing_cache')}: workers that build at the same time would overwrite each "
            "other's times of kernels",
            f"Leave out {option('timing_cache')}, or build in one process.",
            code="QD-USAGE-CLUSTER",
        )
    processes, gpus = local_processes(settings.cluster), len(visible_gpus())
    if "timing_cache" in spec.settings and processes > max(gpus, 1):
        raise UsageError(
            f"{option('cluster', settings.cluster or '')}: {settings.backend} chooses kernels by "
            f"their times, and {processes} processes would share {gpus} GPUs",
            f"Give each process a GPU of its own: {option('cluster', f'local:{max(gpus, 1)}')}.",
            code="QD-USAGE-CLUSTER",
        )


def opened_cluster(
    stack: ExitStack,
    settings: SweepSettings,
    sessions: SessionSettings,
    models: Mapping[int, Model],
    progress: ProgressCallback,
) -> Cluster | None:
    """The workers that are asked for, which know the models, by opset. Raises as `open_cluster`."""
    where = settings.cluster, settings.cluster_config
    limit_s = settings.unit_timeout
    cluster = open_cluster(
        stack, *where, limit_s=limit_s, sessions=sessions, gpus=True, progress=progress
    )
    if cluster is not None:
        for opset, model in models.items():
            cluster.model(settings.model, opset, model)
    return cluster
