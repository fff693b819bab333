"""Candidates of a search on the workers of an executor.

Each worker has a part of the samples, runs the reference over it once, and every candidate; errors
come back by batch and are added up here in their order, so that what is found is that of one
process bit for bit. Engines are not built once for each part: there each candidate is a part of the
work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from qdebug.backends.engine import EngineRuntime
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
from qdebug.execute.context import Context
from qdebug.execute.engine.build import fitted, open_runtime
from qdebug.execute.engine.request import planned_graph
from qdebug.execute.evaluator import OutputKeeper, sized
from qdebug.metrics.accumulate import REFERENCE
from qdebug.metrics.candidate import CandidateResult
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.prepare import Model
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset, spread
from qdebug.plan.plan import BoundPlan
from qdebug.run.executor import cut_evenly, part_of
from qdebug.run.outputs import MetricEvaluator
from qdebug.types import Precision, Tensors

Key = tuple[tuple[str, Precision], ...]
"""The overrides of a candidate, in the order of names."""

_MOST_OPEN = 2
"""Parts of the samples that a worker holds: its own, and the few samples or those of a worker that
has gone."""


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


def open_candidates(
    stack: ExitStack,
    *,
    context: Context,
    model: Model,
    bound: BoundPlan,
    parts: Sequence[SampleSubset],
    keep: bool,
    capture: Sequence[str],
    cache_bytes: int,
    engine: EngineSettings | None,
) -> Callable[[Asked], Opened | PartRun]:
    """Candidates of a base plan on some samples, for an executor.

    Args:
        parts: of the samples; the last is a few of all, which tell how candidates run.
        keep: return outputs, for a metric.
        engine: the backend that runs candidates in place of the simulation.
    """
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
            subset = parts[asked.part]
            # A candidate says how it runs itself. What an earlier search asked for, which was of
            # the same work, is not what a later one is told.
            options = RunnerOptions(
                capture,
                asked.literal if asked.overrides is None else True,
                _engines(context, engine, model),
                cache_bytes,
                agree_on=subset.count,
                sessions=sessions,
            )
            runners[asked.part] = CandidateRunner(context, model, bound, subset, options=options)
        runners.move_to_end(asked.part)
        return runners[asked.part]

    def run(asked: Asked) -> Opened | PartRun:
        runner = opened(asked)
        if asked.overrides is None:
            outputs = runner.reference_outputs if keep else {}
            return Opened(runner.literal, runner.reason, outputs, runner.reference_s)
        assert asked.literal is not None
        return runner.run_part(dict(asked.overrides), literal=asked.literal, keep=keep)

    return run


def _engines(context: Context, settings: EngineSettings | None, model: Model) -> Engines | None:
    if settings is None:
        return None
    threads = context.parallel.workers
    runtime = open_runtime(settings, cached=True, threads=threads, sessions=context.sessions)
    return engines_on(runtime, model) if runtime else None


def engines_on(runtime: EngineRuntime, model: Model) -> Engines:
    """What runs candidates of a model as engines."""

    def opened(subset: SampleSubset) -> EngineRuntime:
        return fitted(runtime, model.graph, subset.samples, subset.batches)

    return Engines(opened, lambda bound: planned_graph(runtime.typing, bound).proto)


class SpreadRunner(AbstractContextManager["SpreadRunner"]):
    """Evaluates candidates on workers. A context manager, to be called from one thread. See
    CandidateRunner, of which it has all that a search uses.

    Attributes:
        at_once: how many candidates keep all workers busy.
        subset, reference_task, task, literal, reason, reference_s: see CandidateRunner.
    """

    def __init__(
        self,
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
        self._executor, self._bound = context.executor, bound
        workers = context.executor.workers
        self._parts = 1 if options.engines or len(subset.batches) < workers else workers
        # Where each worker has a part, the second candidate keeps those busy that are done first.
        self.at_once = workers if self._parts == 1 else 2
        shards = cut_evenly(len(subset.batches), self._parts)
        few = spread(subset, AGREEMENT_SAMPLES)
        self._work = partial(
            open_candidates,
            context=context,
            model=model,
            bound=bound,
            parts=[*(part_of(subset, shard) for shard in shards), few],
            keep=metric is not None,
            capture=tuple(options.capture),
            cache_bytes=options.cache_bytes,
            engine=engine if options.engines else None,
        )
        unknown = options.literal is None and not options.engines
        compare = unknown and not why_literal(sessions_of(context, bound), bound, options.capture)
        asked = self._asked(None, True if compare else options.literal)
        if compare:  # on a few samples
            asked.append(Asked(self._parts))
        opened = [one for one in self._run(asked) if isinstance(one, Opened)]
        self.literal, self.reason = opened[-1].literal, opened[-1].reason
        self.reference_s = max(one.reference_s for one in opened[: self._parts])
        reference = OutputKeeper(REFERENCE, ())
        for one in opened[: self._parts]:
            reference.by_batch.update(one.outputs)
        self.task = (
            MetricEvaluator.of(metric, subset.samples, reference.checked()) if metric else None
        )
        self.reference_task = self.task.of_reference() if self.task else None

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Workers close what they have open when they need the room."""

    def evaluate_many(
        self, candidates: Sequence[PrecisionOverrides], *, literal: bool = False
    ) -> list[CandidateResult]:
        """See CandidateRunner.evaluate_many."""
        for one in candidates:
            check_layers(self._bound, one)
        literal = literal or self.literal
        keys = [tuple(sorted(one.items())) for one in candidates]
        asked = [part for key in keys for part in self._asked(key, literal)]
        found = self._run(asked)
        each = [found[k : k + self._parts] for k in range(0, len(found), self._parts)]
        return [self._result(key, parts, literal) for key, parts in zip(keys, each, strict=True)]

    def _asked(self, key: Key | None, literal: bool | None) -> list[Asked]:
        return [Asked(part, key, literal) for part in range(self._parts)]

    def _run(self, asked: Sequence[Asked]) -> list[Opened | PartRun]:
        def near(one: Asked) -> int | None:
            return one.part if 1 < self._parts > one.part else None

        return list(self._executor.map(self._work, asked, near))

    def _result(
        self, key: Key, parts: Sequence[Opened | PartRun], literal: bool
    ) -> CandidateResult:
        found = [part for part in parts if isinstance(part, PartRun)]
        if not literal and any(part.failure for part in found):
            again = self._run(self._asked(key, True))
            found = [part for part in again if isinstance(part, PartRun)]
        return joined_parts(found, self.task)
