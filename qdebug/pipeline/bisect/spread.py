"""Candidates of a search on the workers of a cluster: each is a unit.

A worker runs the reference once over all samples, and a candidate as one process would, so that
what it finds is the same bit for bit. What the search is likely to ask for next runs on workers
that would be idle; what it does not ask for after all is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from qdebug.config.engine import EngineSettings
from qdebug.measure.candidate import CandidateResult
from qdebug.measure.task import TaskMetric
from qdebug.model.layers import find_layers
from qdebug.model.prepare import Model
from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.bisect.candidates import (
    CandidateRunner,
    Engines,
    PrecisionOverrides,
    RunnerOptions,
    check_layers,
)
from qdebug.pipeline.cluster.dispatch import Cluster
from qdebug.pipeline.cluster.sharing import SharedMetric
from qdebug.pipeline.cluster.unit import Place, SharedModel, SharedSubset
from qdebug.pipeline.context import Context, simulation_context
from qdebug.pipeline.engine.build import fitted, open_runtime
from qdebug.pipeline.engine.request import planned_graph
from qdebug.plan.plan import BoundPlan, Correction, PrecisionPlan, bind_plan
from qdebug.run.engine import EngineRuntime
from qdebug.run.sizing import Parallelism
from qdebug.types import Fp16Kernels, Precision, ignore_progress


@dataclass(frozen=True)
class Asked:
    """A candidate: the layers that it overrides, and how it runs; no layers ask for Opened."""

    overrides: tuple[tuple[str, Precision], ...] | None
    literal: bool | None = None


@dataclass(frozen=True)
class Opened:
    """What a runner found out before any candidate ran. See CandidateRunner."""

    reference_task: float | None
    literal: bool
    reason: str


@dataclass(frozen=True)
class CandidatesJob:
    """Candidates of a base plan on some samples. See unit.Job.

    Attributes:
        plan: with all ranges; `calibrated` and `corrections` are as of BoundPlan.
        engine: the backend that runs candidates in place of the simulation.
    """

    model: SharedModel
    plan: PrecisionPlan
    calibrated: frozenset[str]
    corrections: Mapping[str, Correction]
    subset: SharedSubset
    metric: SharedMetric | None
    capture: tuple[str, ...]
    literal: bool | None
    cache_bytes: int
    batch_size: int | None
    fp16_kernels: Fp16Kernels
    engine: EngineSettings | None

    def open(self, place: Place, stack: ExitStack) -> Callable[[Asked], Opened | CandidateResult]:
        """See unit.Job."""
        model = self.model.prepared(place)
        bound = bind_plan(self.plan, model, find_layers(model.graph))
        bound = replace(bound, calibrated=self.calibrated, corrections=self.corrections)
        runner = stack.enter_context(
            CandidateRunner(
                simulation_context(
                    Parallelism(place.threads, 1),
                    ignore_progress,
                    self.batch_size,
                    self.fp16_kernels,
                ),
                model,
                bound,
                self.subset.opened(place, model.graph.inputs),
                metric=self.metric.loaded(place) if self.metric else None,
                options=RunnerOptions(
                    self.capture, self.literal, self._engines(model), self.cache_bytes
                ),
            )
        )

        def run(asked: Asked) -> Opened | CandidateResult:
            if asked.overrides is None:
                return Opened(runner.reference_task, runner.literal, runner.reason)
            if asked.literal is not None:
                runner.literal = asked.literal
            (found,) = runner.evaluate_many([dict(asked.overrides)])
            return found

        return run

    def _engines(self, model: Model) -> Engines | None:
        runtime = open_runtime(self.engine, cached=True) if self.engine else None
        return engines_on(runtime, model) if runtime else None


def engines_on(runtime: EngineRuntime, model: Model) -> Engines:
    """What runs candidates of a model as engines."""

    def opened(subset: SampleSubset) -> EngineRuntime:
        return fitted(runtime, model.graph, subset.samples, subset.batches)

    return Engines(opened, lambda bound: planned_graph(runtime.typing, bound).proto)


class SpreadRunner(AbstractContextManager["SpreadRunner"]):
    """Evaluates candidates on the workers of a cluster. A context manager, to be called from one
    thread. See CandidateRunner, of which it has all that a search uses.

    Attributes:
        at_once: how many candidates keep all workers busy.
    """

    def __init__(
        self,
        cluster: Cluster,
        context: Context,
        model: Model,
        bound: BoundPlan,
        subset: SampleSubset,
        *,
        metric: TaskMetric | None,
        options: RunnerOptions,
        engine: EngineSettings | None,
    ) -> None:
        """One worker runs the reference over the samples. Raises as CandidateRunner does.

        Args:
            engine: the backend whose engines `options` asks for.
        """
        self.subset = subset
        self._cluster, self._bound = cluster, bound
        job = CandidatesJob(
            model=cluster.shared(model.graph, SharedModel),
            plan=bound.plan,
            calibrated=bound.calibrated,
            corrections=bound.corrections,
            subset=cluster.subset(subset),
            metric=SharedMetric.of(metric) if metric else None,
            capture=tuple(options.capture),
            literal=options.literal,
            cache_bytes=options.cache_bytes,
            batch_size=context.batch_size,
            fp16_kernels=context.fp16_kernels,
            engine=engine if options.engines else None,
        )
        self._pool = cluster.pool(job)
        self._ahead: dict[Asked, int] = {}
        self._expected: list[Asked] = []
        opened = self._pool.take(self._pool.give(Asked(None)))
        assert isinstance(opened, Opened)
        self.reference_task, self.literal = opened.reference_task, opened.literal
        self.reason = opened.reason

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what is on its way; doing so twice does nothing."""
        self._pool.__exit__(None, None, None)

    @property
    def at_once(self) -> int:
        """See SpreadRunner."""
        return self._cluster.workers

    def expect(self, candidates: Sequence[PrecisionOverrides]) -> None:
        """These may be asked for after the next ones, the likeliest first."""
        self._expected = [self._asked(one) for one in candidates]

    def evaluate_many(self, candidates: Sequence[PrecisionOverrides]) -> list[CandidateResult]:
        """See CandidateRunner.evaluate_many."""
        numbers = []
        for one in candidates:
            check_layers(self._bound, one)
            asked = self._asked(one)
            known = self._ahead.pop(asked, None)
            numbers.append(self._pool.give(asked) if known is None else known)
        self._begin_expected(self._cluster.workers - len(numbers))
        found = [self._pool.take(number) for number in numbers]
        return [one for one in found if isinstance(one, CandidateResult)]

    def _begin_expected(self, idle: int) -> None:
        """Let idle workers begin with what may be asked for next, and forget what may not."""
        over = [asked for asked in self._ahead if asked not in self._expected]
        self._pool.drop([self._ahead.pop(asked) for asked in over])
        for asked in self._expected[: max(0, idle)]:
            if asked not in self._ahead:
                self._ahead[asked] = self._pool.give(asked)
        self._expected = []

    def _asked(self, overrides: PrecisionOverrides) -> Asked:
        return Asked(tuple(sorted(overrides.items())), self.literal)
