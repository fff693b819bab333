"""Engines that the workers of an executor build for a sweep.

They build and nothing else: the command itself executes and times the engines, one after the other,
when the workers are idle.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from qdebug.backends.engine import EngineRuntime
from qdebug.backends.registry import spec_of
from qdebug.commands.sweep.axes import BuilderPoint
from qdebug.commands.sweep.measured import FoundEngine, built_of, facts_of
from qdebug.config.engine import EngineSettings
from qdebug.config.shared import local_processes
from qdebug.config.sweep import SweepSettings
from qdebug.errors import ClusterError, UsageError
from qdebug.execute.cluster.machines import visible_gpus
from qdebug.execute.context import Context
from qdebug.execute.engine.build import fitted, open_runtime
from qdebug.memo import Memo
from qdebug.network.graph import Graph
from qdebug.network.samples import Samples
from qdebug.outputfiles import kept_in
from qdebug.plan.pair import ModelPair
from qdebug.results.sweep import Failure
from qdebug.run.executor import workers_note
from qdebug.types import Progress
from qdebug.wording import option


@dataclass(frozen=True)
class Build:
    """An engine to build.

    Attributes:
        builder: what the client's runtime says of itself; see `_builder`.
        not_run: why it will not be executed; "" if it will.
        wanted: the engine itself is wanted, too.
    """

    pair: ModelPair
    engine: EngineSettings
    builder: tuple[str, ...]
    not_run: str
    wanted: bool


def built_elsewhere(
    stack: ExitStack,
    context: Context,
    settings: SweepSettings,
    samples: Samples,
    pairs: Sequence[ModelPair],
    points: Sequence[tuple[BuilderPoint, str]],
) -> Iterator[FoundEngine | Failure]:
    """The engines of all `points` of each pair, in order, as workers built them; waits for all.
    They may be large: until they are taken they lie in a temporary file, which `stack` closes.

    Args:
        points: with why their engines are not executed, "" where they are.

    Raises:
        ClusterError: a worker has another builder, or fails.
    """
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    work = partial(
        open_builds,
        context=context,
        graph=pairs[0].reference,
        samples=samples,
        cached=settings.cache,
    )
    saves = settings.save_engines is not None
    builds = [
        Build(pair, point.engine, _builder(point.runtime), not_run, saves or not not_run)
        for pair in pairs
        for point, not_run in points
    ]
    for number, result in enumerate(context.executor.map(work, builds), 1):
        with kept_in(Path(tempfile.gettempdir()), "what workers built"):
            pickle.dump(result, file)
        note = workers_note(context.executor)
        context.progress(Progress("sweep", number, len(builds), note))
    file.seek(0)
    return (pickle.load(file) for _ in builds)


def open_builds(
    stack: ExitStack, *, context: Context, graph: Graph, samples: Samples, cached: bool
) -> Callable[[Build], FoundEngine | Failure]:
    """What builds engines on a worker.

    Args:
        graph: whose inputs the samples are for.
        cached: what an earlier sweep kept in the worker's cache is taken, and more is kept there.
    """
    memo = Memo() if cached else None

    @cache
    def runtime_of(engine: EngineSettings) -> EngineRuntime:
        threads, sessions = context.parallel.workers, context.sessions
        opened = open_runtime(engine, cached=cached, threads=threads, sessions=sessions)
        assert opened is not None  # by what the command checked
        return fitted(opened, graph, samples)

    def run(build: Build) -> FoundEngine | Failure:
        runtime = runtime_of(build.engine)
        if _builder(runtime) != build.builder:
            raise ClusterError(
                f"a worker builds with {', '.join(_builder(runtime))}, this process with "
                f"{', '.join(build.builder)}",
                "Have workers with the same library and the same kind of GPU.",
                code="QD-CLUSTER-OTHER-BUILDER",
            )
        found = facts_of(runtime, build.pair, not_run=build.not_run, memo=memo)
        if isinstance(found, Failure):
            return found
        return replace(found, built=built_of(runtime, build.pair, found) if build.wanted else None)

    return run


def _builder(runtime: EngineRuntime) -> tuple[str, ...]:
    return runtime.label, runtime.built_for


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
