"""Where the combinations of a sweep are simulated and built: here, or on the workers of a cluster.

There, each simulation is a unit, over all samples, and so is each build. Workers of this machine
execute the engine too; elsewhere the CPU may be another one, whose kernels compute otherwise. The
command itself times engines, one after the other, when the workers are idle, and executes those
that no worker did.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

from qdebug.config.cluster import local_processes
from qdebug.config.engine import EngineSettings
from qdebug.config.sweep import SweepSettings
from qdebug.errors import ClusterError, UsageError
from qdebug.measure.sweep import Failure, OutputErrors
from qdebug.measure.task import TaskMetric
from qdebug.model.prepare import Model
from qdebug.model.samples import Samples
from qdebug.pipeline.cluster.dispatch import Cluster, workers_note
from qdebug.pipeline.cluster.machines import open_cluster, visible_gpus
from qdebug.pipeline.cluster.recipe import PairRecipe, recipe_of
from qdebug.pipeline.cluster.sharing import SharedMetric
from qdebug.pipeline.cluster.unit import Place, SharedModel, SharedSamples
from qdebug.pipeline.compare.shards import worker_context
from qdebug.pipeline.context import Context
from qdebug.pipeline.engine.build import fitted, open_runtime
from qdebug.pipeline.sweep.axes import BuilderPoint, Variant
from qdebug.pipeline.sweep.measured import (
    FoundEngine,
    OutputEvaluator,
    built_of,
    errors_of,
    facts_of,
)
from qdebug.plan.pair import ModelPair
from qdebug.run.engine import EngineRuntime
from qdebug.run.registry import spec_of
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
    """A part of a job: a pair to simulate, or to build an engine of."""

    pair: PairRecipe
    build: Build | None = None


Found = OutputErrors | FoundEngine | Failure


@dataclass(frozen=True)
class SweepJob:
    """The combinations of a sweep. See unit.Job.

    Attributes:
        model: whose inputs the samples are for.
        batch_size: see Context.
        cached: what an earlier sweep kept in the worker's cache is taken, and more is kept there.
    """

    model: SharedModel
    samples: SharedSamples
    metric: SharedMetric | None
    batch_size: int | None
    fp16_kernels: Fp16Kernels
    cached: bool

    def open(self, place: Place, stack: ExitStack) -> Callable[[Wanted], Found]:
        """See unit.Job."""
        graph = self.model.prepared(place).graph
        samples = self.samples.opened(place, graph.inputs)
        metric = self.metric.loaded(place) if self.metric else None
        context = worker_context(place, self.fp16_kernels, self.batch_size)
        outputs = OutputEvaluator(context, samples, metric, cached=self.cached)

        @cache
        def runtime_of(engine: EngineSettings) -> EngineRuntime:
            opened = open_runtime(engine, cached=self.cached, threads=place.threads)
            assert opened is not None  # by what the client checked
            return fitted(opened, graph, samples)

        def run(part: Wanted) -> Found:
            pair = part.pair.made(place)
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


class Elsewhere:
    """The workers of a cluster. See Source; it gives what `evaluated` asked for, in that order."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        samples: Samples,
        metric: TaskMetric | None,
        settings: SweepSettings,
    ) -> None:
        self._context, self._cluster, self._settings = context, cluster, settings
        self._samples = cluster.samples(samples)
        self._metric = SharedMetric.of(metric) if metric else None
        self._kept = iter(list[Path]())

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
        job = SweepJob(
            self._cluster.shared(models[0].graph, SharedModel),
            self._samples,
            self._metric,
            self._context.batch_size,
            self._context.fp16_kernels,
            self._settings.cache,
        )
        found: list[tuple[Variant, ModelPair]] = []
        with self._cluster.pool(job) as pool:
            numbers = []
            for (variant, pair), model in zip(pairs, models, strict=True):
                recipe = recipe_of(self._cluster, pair, variant.settings, model)
                asked = [None, *(self._build(point, why) for point, why in points)]
                numbers += [pool.give(Wanted(recipe, build)) for build in asked]
                found.append((variant, pair))
            pool.done = self._count(len(numbers))
            self._kept = iter([self._keep(number, pool.take(number)) for number in numbers])
        return found

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
        executes = not not_run and local_processes(self._settings.cluster) > 0
        return Build(point.engine, _builder(point.runtime), not_run, wanted, executes)

    def _keep(self, number: int, found: Found) -> Path:
        return self._cluster.keep(f"found-{number}", pickle.dumps(found))

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
    models: Mapping[int, Model],
    progress: ProgressCallback,
) -> Cluster | None:
    """The workers that are asked for, which know the models, by opset. Raises as `open_cluster`."""
    where = settings.cluster, settings.cluster_config
    limit_s = settings.unit_timeout
    cluster = open_cluster(stack, *where, limit_s=limit_s, gpus=True, progress=progress)
    if cluster is not None:
        for opset, model in models.items():
            cluster.model(settings.model, opset, model)
    return cluster
