"""Where the combinations of a sweep are simulated and built: here, or on the workers of an
executor.

There, each build is a part of the work. Workers of this machine execute the engine too; elsewhere
the CPU may be another one, whose kernels compute otherwise. The command itself times engines, one
after the other, when the workers are idle, and executes those that no worker did.

For simulations each worker has a part of the samples, on which it runs FP32 once. With a metric,
which needs the outputs of all samples, and where workers execute engines, which takes FP32 on all
samples anyway, each simulation is one over all of them.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, Protocol

from qdebug.backends.engine import EngineRuntime
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
from qdebug.execute.cluster.machines import visible_gpus
from qdebug.execute.context import Context, sized
from qdebug.execute.engine.build import fitted, open_runtime
from qdebug.execute.model_pair import share_pair
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import SampleSubset
from qdebug.outputfiles import kept_in
from qdebug.plan.pair import ModelPair
from qdebug.results.sweep import Failure, OutputErrors
from qdebug.run.executor import cut_evenly, part_of, workers_note
from qdebug.types import Progress
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
    """A part of the work: a pair to simulate, or to build an engine of.

    Attributes:
        part: the number of the part of the samples to simulate it on; None for all samples.
    """

    pair: ModelPair
    build: Build | None = None
    part: int | None = None


Found = OutputErrors | FoundEngine | Failure


def open_combinations(
    stack: ExitStack,
    *,
    context: Context,
    graph: Graph,
    subset: SampleSubset,
    parts: Sequence[SampleSubset],
    metric: TaskMetric | None,
    cached: bool,
) -> Callable[[Wanted], Found | PartErrors]:
    """The combinations of a sweep, for an executor.

    Args:
        graph: whose inputs the samples are for.
        parts: of the samples, where they are divided.
        cached: what an earlier sweep kept in the worker's cache is taken, and more is kept there.
    """
    outputs = OutputEvaluator(context, subset, metric, cached=cached)

    @cache
    def on_part(number: int) -> OutputEvaluator:
        return OutputEvaluator(context, parts[number], None, cached=False)

    @cache
    def runtime_of(engine: EngineSettings) -> EngineRuntime:
        threads, sessions = context.parallel.workers, context.sessions
        opened = open_runtime(engine, cached=cached, threads=threads, sessions=sessions)
        assert opened is not None  # by what the command checked
        return fitted(opened, graph, subset.samples)

    def run(wanted: Wanted) -> Found | PartErrors:
        if wanted.part is not None:
            return on_part(wanted.part).part(wanted.pair)
        if wanted.build is None:
            return outputs.simulated(wanted.pair)
        runtime = runtime_of(wanted.build.engine)
        found = _built(runtime, wanted.pair, wanted.build)
        if isinstance(found, Failure) or not wanted.build.executes:
            return found
        return replace(found, errors=errors_of(runtime, wanted.pair, found, outputs))

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
    """The workers of an executor. See Source; gives what `evaluated` asked for, in that order."""

    def __init__(
        self,
        built: IO[bytes],
        context: Context,
        outputs: OutputEvaluator,
        metric: TaskMetric | None,
        settings: SweepSettings,
    ) -> None:
        """`built` is a new file for what workers build, which may be large."""
        self._context, self._settings = context, settings
        self._outputs, self._metric = outputs, metric
        self._simulated: dict[int, OutputErrors] = {}
        self._built = built

    def evaluated(
        self,
        pairs: Iterable[tuple[Variant, ModelPair]],
        graph: Graph,
        points: Sequence[tuple[BuilderPoint, str]],
        total: int,
    ) -> list[tuple[Variant, ModelPair]]:
        """Have all pairs simulated and built, and wait for it: what is executed afterwards is
        not disturbed. Engines, which may be large, stay in a file.

        Args:
            graph: whose inputs the samples are for.
            points: with why their engines are not executed, "" where they are.
            total: how many combinations there are, for the progress.

        Raises:
            QdebugError: as Here does, or the workers fail.
        """
        executes = any(self._executes(why) for _, why in points)
        each = iter(pairs)
        first = next(each)
        parts = self._divided(first[1].reference, executes=executes)
        work = partial(
            open_combinations,
            context=self._context,
            graph=graph,
            subset=self._outputs.subset,
            parts=parts,
            metric=self._metric,
            cached=self._settings.cache,
        )
        given, asked = list[tuple[Variant, ModelPair]](), list[Wanted]()

        def wanted() -> Iterator[Wanted]:
            for variant, pair in chain([first], each):
                given.append((variant, pair))
                share_pair(self._context.executor, pair)
                known = self._outputs.known(pair)
                if known is not None:
                    self._simulated[id(pair)] = known
                else:
                    yield from (Wanted(pair, part=k) for k in range(len(parts)) or (None,))
                yield from (Wanted(pair, self._build(*point)) for point in points)

        def noted() -> Iterator[Wanted]:
            for one in wanted():
                asked.append(one)
                yield one

        found, done = list[PartErrors](), 0
        results = self._context.executor.map(work, noted(), lambda one: one.part)
        for number, result in enumerate(results):
            one = asked[number]
            if isinstance(result, PartErrors):
                found.append(result)
                if len(found) == len(parts):
                    self._simulated[id(one.pair)] = self._outputs.joined(one.pair, found)
                    found.clear()
            elif isinstance(result, OutputErrors):
                self._simulated[id(one.pair)] = result
            else:
                with kept_in(Path(tempfile.gettempdir()), "what workers built"):
                    pickle.dump(result, self._built)
                done += 1
            note = workers_note(self._context.executor)
            self._context.progress(Progress("sweep", done, total, note))
        self._built.seek(0)
        return given

    def _divided(self, reference: Graph, *, executes: bool) -> list[SampleSubset]:
        """The parts of the samples that simulations are divided into; none where each worker needs
        the outputs of all samples."""
        if self._metric is not None or executes:
            return []
        subset = sized(self._context, reference, self._outputs.subset)
        count = min(self._context.executor.workers, len(subset.batches))
        return [part_of(subset, shard) for shard in cut_evenly(len(subset.batches), count)]

    def simulated(self, pair: ModelPair) -> OutputErrors:
        """See Source."""
        return self._simulated[id(pair)]

    def found(self, point: BuilderPoint, pair: ModelPair, not_run: str) -> FoundEngine | Failure:
        """See Source."""
        built: FoundEngine | Failure = pickle.load(self._built)
        return built

    def _build(self, point: BuilderPoint, not_run: str) -> Build:
        wanted = not not_run or self._settings.save_engines is not None
        executes = self._executes(not_run)
        return Build(point.engine, _builder(point.runtime), not_run, wanted, executes)

    def _executes(self, not_run: str) -> bool:
        """Whether workers execute engines, which are not run for this reason."""
        return not not_run and local_processes(self._settings.cluster) > 0


def check_cluster(settings: SweepSettings) -> None:
    """Refuse workers that would disturb each other's measurements.

    Raises:
        UsageError: they would.
    """
    spec = spec_of(settings.backend)
    if settings.cluster is None:
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
