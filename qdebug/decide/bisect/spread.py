"""Candidates of a search on the workers of a cluster.

Each worker has a part of the samples, runs the reference over it once, and every candidate; errors
come back by batch and are added up here in their order, so that what is found is that of one
process bit for bit. Engines are not built once for each part: there each candidate is a unit, and
what the search is likely to ask for next runs on workers that would be idle; what it does not ask
for after all is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from qdebug.backends.engine import EngineRuntime
from qdebug.backends.sizing import Parallelism
from qdebug.config.engine import EngineSettings
from qdebug.decide.bisect.candidates import (
    AGREEMENT_SAMPLES,
    CandidateRunner,
    Engines,
    PartRun,
    PrecisionOverrides,
    RunnerOptions,
    check_layers,
    joined_parts,
    sessions_of,
    why_literal,
)
from qdebug.execute.cluster.dispatch import Cluster
from qdebug.execute.cluster.unit import Place, SharedModel, SharedSubset, cut_evenly, part_of
from qdebug.execute.context import Context, simulation_context
from qdebug.execute.engine.build import fitted, open_runtime
from qdebug.execute.engine.request import planned_graph
from qdebug.execute.evaluator import MetricEvaluator, OutputKeeper, sized
from qdebug.metrics.accumulate import REFERENCE
from qdebug.metrics.candidate import CandidateResult
from qdebug.metrics.task import TaskMetric
from qdebug.network.layers import find_layers
from qdebug.network.prepare import Model
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset, spread
from qdebug.plan.plan import BoundPlan, Correction, PrecisionPlan, bind_plan
from qdebug.types import Fp16Kernels, Precision, Tensors, ignore_progress

Key = tuple[tuple[str, Precision], ...]
"""The overrides of a candidate, in the order of names."""

_MOST_OPEN = 2
"""Parts that a worker holds: its own, and the few samples or those of a worker that has gone."""
_MANY_MORE = 2
"""Workers for each part, with which dividing the samples anew is worth another run of FP32."""


@dataclass(frozen=True)
class Asked:
    """A candidate on a part of the samples.

    Attributes:
        part: its number.
        overrides: of the candidate; None asks for Opened.
        literal: how it runs; None, before any ran, to find out.
    """

    part: int
    overrides: Key | None = None
    literal: bool | None = None


@dataclass(frozen=True)
class Opened:
    """What a runner found out before any candidate ran.

    Attributes:
        literal, reason: see CandidateRunner.
        outputs: of the reference, by batch, where a metric needs them.
        reference_s: see CandidateRunner.
    """

    literal: bool
    reason: str
    outputs: Mapping[Batch, Tensors]
    reference_s: float


@dataclass(frozen=True)
class CandidatesJob:
    """Candidates of a base plan on some samples. See unit.Job.

    Attributes:
        plan: with all ranges; `calibrated` and `corrections` are as of BoundPlan.
        parts: of the samples; the last is a few of all, which tell how candidates run.
        keep: return outputs, for a metric.
        engine: the backend that runs candidates in place of the simulation.
    """

    model: SharedModel
    plan: PrecisionPlan
    calibrated: frozenset[str]
    corrections: Mapping[str, Correction]
    parts: tuple[SharedSubset, ...]
    keep: bool
    capture: tuple[str, ...]
    cache_bytes: int
    batch_size: int | None
    fp16_kernels: Fp16Kernels
    engine: EngineSettings | None

    def open(self, place: Place, stack: ExitStack) -> Callable[[Asked], Opened | PartRun]:
        """See unit.Job."""
        model = self.model.prepared(place)
        bound = bind_plan(self.plan, model, find_layers(model.graph))
        bound = replace(bound, calibrated=self.calibrated, corrections=self.corrections)
        parallel = Parallelism(place.threads, 1)
        context = simulation_context(
            parallel, ignore_progress, place.sessions, self.batch_size, self.fp16_kernels
        )
        sessions = sessions_of(context, bound)
        runners: OrderedDict[int, CandidateRunner] = OrderedDict()

        def close() -> None:
            for runner in runners.values():
                runner.close()

        stack.callback(close)

        def opened(asked: Asked) -> CandidateRunner:
            if asked.part not in runners:
                while len(runners) >= _MOST_OPEN:
                    runners.popitem(last=False)[1].close()
                subset = self.parts[asked.part].opened(place, model.graph.inputs)
                # A candidate says how it runs itself. What an earlier search asked for, which was
                # of the same job, is not what a later one is told.
                options = RunnerOptions(
                    self.capture,
                    asked.literal if asked.overrides is None else True,
                    self._engines(model, place),
                    self.cache_bytes,
                    agree_on=subset.count,
                    sessions=sessions,
                )
                runners[asked.part] = CandidateRunner(
                    context, model, bound, subset, options=options
                )
            runners.move_to_end(asked.part)
            return runners[asked.part]

        def run(asked: Asked) -> Opened | PartRun:
            runner = opened(asked)
            if asked.overrides is None:
                outputs = runner.reference_outputs if self.keep else {}
                return Opened(runner.literal, runner.reason, outputs, runner.reference_s)
            assert asked.literal is not None
            return runner.run_part(dict(asked.overrides), literal=asked.literal, keep=self.keep)

        return run

    def _engines(self, model: Model, place: Place) -> Engines | None:
        if self.engine is None:
            return None
        runtime = open_runtime(
            self.engine, cached=True, threads=place.threads, sessions=place.sessions
        )
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
        subset, reference_task, task, literal, reason, reference_s: see CandidateRunner.
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
        """The workers run the reference over the samples. Raises as CandidateRunner does.

        Args:
            engine: the backend whose engines `options` asks for.
        """
        self.subset = subset = sized(context, model.graph, subset, options.capture)
        self._cluster, self._bound = cluster, bound
        self._ahead: dict[tuple[Key, bool], list[int]] = {}
        self._expected: list[Key] = []
        workers = cluster.workers
        self._parts = 1 if options.engines or len(subset.batches) < workers else workers
        self._job = CandidatesJob(
            model=cluster.shared(model.graph, SharedModel),
            plan=bound.plan,
            calibrated=bound.calibrated,
            corrections=bound.corrections,
            parts=self._divided(),
            keep=metric is not None,
            capture=tuple(options.capture),
            cache_bytes=options.cache_bytes,
            batch_size=context.batch_size,
            fp16_kernels=context.fp16_kernels,
            engine=engine if options.engines else None,
        )
        unknown = options.literal is None and not options.engines
        compare = unknown and not why_literal(sessions_of(context, bound), bound, options.capture)
        with ExitStack() as stack:
            self._pool = stack.enter_context(cluster.pool(self._job))
            numbers = self._give(None, True if compare else options.literal)
            if compare:  # meanwhile, on a few samples
                numbers.append(self._pool.give(Asked(self._parts)))
            opened = self._opened(numbers)
            self.literal, self.reason = opened[-1].literal, opened[-1].reason
            self.reference_s = max(one.reference_s for one in opened[: self._parts])
            reference = OutputKeeper(REFERENCE, ())
            for one in opened[: self._parts]:
                reference.by_batch |= one.outputs
            self.task = MetricEvaluator.of(metric, subset.samples, reference) if metric else None
            self.reference_task = self.task.of_reference() if self.task else None
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what is on its way; doing so twice does nothing."""
        self._stack.close()

    @property
    def at_once(self) -> int:
        """See SpreadRunner. Where each worker has a part, the second one keeps those busy that are
        done first."""
        return self._cluster.workers if self._parts == 1 else 2

    def expect(self, candidates: Sequence[PrecisionOverrides]) -> None:
        """These may be asked for after the next ones, the likeliest first."""
        self._expected = list(map(_key, candidates))

    def evaluate_many(
        self, candidates: Sequence[PrecisionOverrides], *, literal: bool = False
    ) -> list[CandidateResult]:
        """See CandidateRunner.evaluate_many."""
        for one in candidates:
            check_layers(self._bound, one)
        asked = list(map(_key, candidates))
        literal = literal or self.literal
        self._divide_anew()
        given = [self._ahead.pop((one, literal), []) or self._give(one, literal) for one in asked]
        if self._parts == 1:
            self._begin_expected(self._cluster.workers - len(given), literal)
        each = zip(asked, given, strict=True)
        return [self._result(one, numbers, literal) for one, numbers in each]

    def _divided(self) -> tuple[SharedSubset, ...]:
        """The parts of the samples, and a few of all."""
        few = spread(self.subset, AGREEMENT_SAMPLES)
        return tuple(map(self._cluster.subset, (*_parts(self.subset, self._parts), few)))

    def _divide_anew(self) -> None:
        """Where many workers have joined, each gets a part, and runs FP32 on it."""
        workers = self._cluster.workers
        parts = min(workers, len(self.subset.batches))
        if self._parts == 1 or workers < _MANY_MORE * self._parts or parts == self._parts:
            return
        self._stack.close()
        self._parts = parts
        self._job = replace(self._job, parts=self._divided())
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(self._cluster.pool(self._job))
        opened = self._opened(self._give(None, self.literal))
        self.reference_s = max(one.reference_s for one in opened)

    def _opened(self, numbers: Sequence[int]) -> list[Opened]:
        return [one for n in numbers if isinstance(one := self._pool.take(n), Opened)]

    def _give(self, key: Key | None, literal: bool | None) -> list[int]:
        homes = range(self._parts)
        give = self._pool.give
        return [give(Asked(k, key, literal), k if self._parts > 1 else None) for k in homes]

    def _result(self, key: Key, numbers: Sequence[int], literal: bool) -> CandidateResult:
        parts = self._taken(numbers)
        if not literal and any(part.failure for part in parts):
            parts = self._taken(self._give(key, True))
        return joined_parts(parts, self.task)

    def _taken(self, numbers: Sequence[int]) -> list[PartRun]:
        return [one for n in numbers if isinstance(one := self._pool.take(n), PartRun)]

    def _begin_expected(self, idle: int, literal: bool) -> None:
        """Let idle workers begin with what may be asked for next, and forget what may not."""
        wanted = [(key, literal) for key in self._expected]
        over = [one for one in self._ahead if one not in wanted]
        self._pool.drop([number for one in over for number in self._ahead.pop(one)])
        for one in wanted[: max(0, idle)]:
            if one not in self._ahead:
                self._ahead[one] = self._give(*one)
        self._expected = []


def _key(overrides: PrecisionOverrides) -> Key:
    return tuple(sorted(overrides.items()))


def _parts(subset: SampleSubset, count: int) -> list[SampleSubset]:
    return [part_of(subset, shard) for shard in cut_evenly(len(subset.batches), count)]
