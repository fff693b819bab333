"""Attempts of a repair on the workers of a cluster: each is a unit.

An attempt starts from what was kept of those before, and most are rejected. So while one of them
runs, idle workers try what comes next if it is rejected. Where it is accepted, that is forgotten:
what is kept, and in which order, is as in one process.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from qdebug.analyse.shards import worker_context
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.result import Step
from qdebug.decide.repair.checkpoint import arrays_of, network_of
from qdebug.decide.repair.judge import Judge, Judgement, holds
from qdebug.decide.repair.setup import Setup
from qdebug.decide.repair.steps import Asked, Tried, Trying
from qdebug.decide.repair.study import study_of
from qdebug.execute.cluster.dispatch import Cluster, Pool
from qdebug.execute.cluster.files import SharedFile, shared_file
from qdebug.execute.cluster.sharing import SharedMetric
from qdebug.execute.cluster.unit import Place, SharedModel, SharedSubset
from qdebug.execute.context import Context
from qdebug.network.layers import find_layers
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.plan import Correction, PrecisionPlan, bind_plan
from qdebug.results.conditions import Condition
from qdebug.types import Array, Fp16Kernels

_WORTH_IT = 2
"""Workers: with a single one this process, which may use several cores, is as fast. Next to workers
on its own machine this process is faster, too: each of them has one core, and most attempts wait
for the one before."""
_PATIENCE = 10.0
"""An attempt is many executions: it may take so many times as long as other units."""


@dataclass(frozen=True)
class Wanted:
    """An attempt. See Asked.

    Attributes:
        network: as pickled arrays; None for the start.
        left_s: before the time is over.
    """

    network: SharedFile | None
    remedy: str
    layers: tuple[str, ...]
    current: Judgement
    best: Judgement | None
    left_s: float


@dataclass(frozen=True)
class Found:
    """What came of an attempt. See Tried; `arrays` are of the changed network, if it is kept."""

    step: Step
    arrays: Mapping[str, Array] | None
    after: Judgement | None


@dataclass(frozen=True)
class AttemptsJob:
    """The attempts of a repair. See unit.Job.

    Attributes:
        plan, calibrated, corrections: of the start; see BoundPlan.
        condition: that the repair is to reach.
        method, memory_bytes, effect, causes: see study_of.
        keep_undecided: see Trying.
    """

    model: SharedModel
    plan: PrecisionPlan
    calibrated: frozenset[str]
    corrections: Mapping[str, Correction]
    fitting: SharedSubset
    choosing: SharedSubset
    metric: SharedMetric | None
    more_is_better: bool
    condition: Condition | None
    batch_size: int | None
    fp16_kernels: Fp16Kernels
    method: str
    memory_bytes: int
    effect: Mapping[str, float]
    causes: Mapping[str, tuple[str, ...]]
    keep_undecided: bool

    def open(self, place: Place, stack: ExitStack) -> Callable[[Wanted], Found | None]:
        """See unit.Job."""
        model = self.model.prepared(place)
        bound = bind_plan(self.plan, model, find_layers(model.graph))
        start = Quantized(
            model, replace(bound, calibrated=self.calibrated, corrections=self.corrections)
        )
        context = worker_context(place, self.fp16_kernels, self.batch_size)
        fitting, choosing = (
            subset.opened(place, model.graph.inputs) for subset in (self.fitting, self.choosing)
        )
        trying = self._trying(context, start, fitting, choosing, place)

        def run(wanted: Wanted) -> Found | None:
            network, file = start, wanted.network
            if file is not None:
                network = place.last.of(file, lambda: _network(place.path(file), start))
            until = time.monotonic() + wanted.left_s
            asked = (wanted.remedy, wanted.layers, wanted.current, wanted.best, until)
            tried = trying.attempt(Asked(network, *asked))
            if tried is None:
                return None
            step, result, after = tried
            kept = result if step.accepted else None
            return Found(step, None if kept is None else arrays_of(kept), after)

        return run

    def _trying(
        self,
        context: Context,
        start: Quantized,
        fitting: SampleSubset,
        choosing: SampleSubset,
        place: Place,
    ) -> Trying:
        metric = self.metric.loaded(place) if self.metric else None
        return Trying(
            study=study_of(
                context,
                fitting,
                method=self.method,
                memory_bytes=self.memory_bytes,
                effect=self.effect,
                causes=self.causes,
            ),
            judge=Judge(context, start.graph, choosing, metric, self.more_is_better),
            remedies=REMEDIES,
            enough=lambda _: False,  # the client asks for no more then
            holds=lambda found: holds(self.condition, start.layers, found),
            keep_undecided=self.keep_undecided,
        )


def _network(path: str, start: Quantized) -> Quantized:
    arrays: dict[str, Array] = pickle.loads(Path(path).read_bytes())
    return network_of(arrays, start)


class AttemptsElsewhere:
    """The workers of a cluster. See steps.Elsewhere."""

    def __init__(
        self, cluster: Cluster, pool: Pool[Wanted, Found | None], start: Quantized
    ) -> None:
        self._cluster, self._pool, self._start = cluster, pool, start
        self._network, self._networks = start, 0
        self._file: SharedFile | None = None
        self._begun: dict[tuple[str, tuple[str, ...]], int] = {}
        self._ended: set[int] = set()
        self._likely: list[Asked] = []
        self._awaited = -1
        pool.done = self._end

    def __call__(self, asked: Asked, likely: Sequence[Asked]) -> Tried | None:
        """See steps.Elsewhere."""
        self._on(asked.network)
        self._likely = list(likely)
        self._awaited = self._begin(asked)
        self._begin_likely()
        found = self._pool.take(self._awaited)
        self._begun.pop(_key(asked))
        if found is None:
            return None
        result = None if found.arrays is None else network_of(found.arrays, self._start)
        return found.step, result, found.after

    def _on(self, network: Quantized) -> None:
        """From now on all attempts are on `network`; what was tried ahead on another is void."""
        if network is self._network:
            return
        self._pool.drop(list(self._begun.values()))
        self._begun.clear()
        self._networks += 1
        data = pickle.dumps(arrays_of(network))
        path = self._cluster.keep(f"network-{self._networks}", data)
        self._network, self._file = network, shared_file(path)

    def _end(self, number: int) -> None:
        self._ended.add(number)
        if number != self._awaited:  # which may turn out to be accepted: then all others are void
            self._begin_likely()

    def _begin_likely(self) -> None:
        """Let idle workers begin. Nothing waits in line: what is asked for next must not wait for
        what is void by then."""
        while self._likely:
            running = set(self._begun.values()) - self._ended
            if len(running) >= self._cluster.workers:
                return
            self._begin(self._likely.pop(0))

    def _begin(self, asked: Asked) -> int:
        key = _key(asked)
        if key not in self._begun:
            left = asked.ends_at - time.monotonic()
            what = asked.remedy, asked.layers, asked.current, asked.best
            self._begun[key] = self._pool.give(Wanted(self._file, *what, left))
        return self._begun[key]


def _key(asked: Asked) -> tuple[str, tuple[str, ...]]:
    return asked.remedy, asked.layers


def attempts_elsewhere(
    stack: ExitStack, setup: Setup, condition: Condition | None
) -> AttemptsElsewhere | None:
    """Who takes attempts off this process until `stack` ends; None where that is no gain."""
    cluster, start, study = setup.context.cluster, setup.start, setup.study
    if cluster is None or cluster.here or cluster.workers < _WORTH_IT:
        return None
    job = AttemptsJob(
        model=cluster.shared(setup.reference.graph, SharedModel),
        plan=start.bound.plan,
        calibrated=start.bound.calibrated,
        corrections=start.bound.corrections,
        fitting=cluster.subset(setup.fitting),
        choosing=cluster.subset(setup.choosing),
        metric=SharedMetric.of(setup.metric) if setup.metric else None,
        more_is_better=setup.more_is_better,
        condition=condition,
        batch_size=setup.context.batch_size,
        fp16_kernels=setup.context.fp16_kernels,
        method=setup.search.method,
        memory_bytes=study.memory_bytes,
        effect=study.effect,
        causes=study.causes,
        keep_undecided=setup.keep_undecided,
    )
    patient = replace(cluster, limit_s=_PATIENCE * cluster.limit_s)
    pool: Pool[Wanted, Found | None] = stack.enter_context(patient.pool(job))
    return AttemptsElsewhere(cluster, pool, start)
