"""Engines of a lowered model, clean and observed, and whether they can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from qdebug.backends.base import Session
from qdebug.backends.engine import CaptureWay, EngineRuntime, EngineSession
from qdebug.errors import BackendError, ModelError
from qdebug.execute.context import Context, runner_of
from qdebug.metrics.accumulate import REFERENCE, Comparison
from qdebug.metrics.tensor import sqnr_of
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.observation import CaptureCheck, CaptureSums, Preflight
from qdebug.run.executor import THIS_PROCESS
from qdebug.run.reducers import Errors
from qdebug.run.variant import as_it_is
from qdebug.types import Feeds

_PLAIN, _TWICE = "FP32 engine", ("engine", "engine, built again")
CHECKED_BATCHES = 4
"""Batches on which the clean engine is compared with the observed one."""


@dataclass(frozen=True)
class EngineJob:
    """What runs, and on what.

    Attributes:
        runtime: builds and executes engines; fitted to every batch.
        context: executes the reference and the simulation.
        subset: the samples; all batches have been asked for by their shape.
    """

    runtime: EngineRuntime
    context: Context
    subset: SampleSubset

    def feeds(self, batch: Batch) -> Feeds:
        """The inputs of a batch."""
        return self.subset.samples.feeds(batch.start, batch.count)


@dataclass(frozen=True)
class Observed:
    """An engine whose inner tensors can be seen. The sessions are the caller's to close.

    Attributes:
        session: gives the model's outputs and the tensors observed.
        clean: the engine as it is used, with the model's outputs only; can be timed.
        way: how it is observed.
        checks: of every way that was tried; the last is that of `way`.
    """

    session: Session
    clean: EngineSession
    way: CaptureWay
    checks: tuple[CaptureCheck, ...]


def preflight(job: EngineJob, reference: Graph, candidate: Graph) -> Preflight:
    """The FP32 engine against FP32 on the CPU, and `candidate` built twice, on a few batches.

    Raises:
        QdebugError: a model that cannot be built or run.
    """
    anew, context = job.runtime.anew(), job.context
    variants = {
        REFERENCE: as_it_is(reference.proto, context.backend),
        _PLAIN: as_it_is(reference.proto, job.runtime),
        **{name: as_it_is(candidate.proto, anew) for name in _TWICE},
    }
    errors = [Errors(Comparison(REFERENCE, _PLAIN)), Errors(Comparison(*_TWICE))]
    few = SampleSubset(job.subset.samples, job.subset.batches[:CHECKED_BATCHES])
    runner = runner_of(replace(context, executor=THIS_PROCESS), few)
    found = runner.run(variants, {x.comparison.candidate: x for x in errors})
    levels = [{t: sqnr_of(sums) for t, sums in x.tensors.items()} for x in found.values()]
    return Preflight(*levels)


def observe_engine(
    job: EngineJob, reference: Session, candidate: Graph, wanted: Sequence[str]
) -> Observed:
    """An engine of `candidate` with `wanted` observed, in the first way that leaves the error of
    the clean engine as it is; where none does, the last that observes anything.

    Args:
        reference: FP32; gives the model's outputs.

    Raises:
        BackendError: nothing inside the engine can be observed, in any way.
        QdebugError: the model cannot be built or run.
    """
    checks: list[CaptureCheck] = []
    with ExitStack() as stack:
        clean = job.runtime.clean(candidate.proto)
        stack.callback(clean.close)
        kept: tuple[CaptureWay, Session, CaptureCheck] | None = None
        for way in job.runtime.ways:
            session, check = _tried(job, way, reference, clean, candidate, wanted)
            checks.append(check)
            if session is None:
                continue
            stack.callback(session.close)
            if kept is None or check.observed:
                kept, session = (way, session, check), kept[1] if kept else None
            if session is not None:
                session.close()
            if not check.hides:
                break
        if kept is None:
            raise BackendError(
                "nothing inside the engine can be observed, in any way",
                "; ".join(f"{c.way}: {c.hides}" for c in checks),
                code="QD-BACKEND-NOT-OBSERVABLE",
            )
        stack.pop_all()
    way, session, check = kept
    return Observed(session, clean, way, (*(c for c in checks if c is not check), check))


def _tried(
    job: EngineJob,
    way: CaptureWay,
    reference: Session,
    clean: Session,
    candidate: Graph,
    wanted: Sequence[str],
) -> tuple[Session | None, CaptureCheck]:
    """An engine observed in one way, and what that did to it; no session where it cannot be."""
    sums = CaptureSums()
    with ExitStack() as stack:
        try:
            room = job.context.budget.bytes
            session = opened(stack, job.runtime.open(candidate.proto, wanted, way, room))
            for batch in job.subset.batches[:CHECKED_BATCHES]:
                feeds = job.feeds(batch)
                expected = reference.run(feeds)
                finals = {t: expected[t] for t in candidate.outputs if t in expected}
                sums.add(finals, clean.run(feeds), session.run(feeds))
        except (BackendError, ModelError) as error:
            return None, CaptureCheck(str(way), 0, (), error.message)
        stack.pop_all()
    silent = Counter(s.reason for s in session.skipped).most_common(1)
    observed = len(set(session.dtypes) - set(candidate.outputs))
    return session, sums.check(str(way), observed, silent[0][0] if silent else "")


def opened(stack: ExitStack, session: Session) -> Session:
    """`session`, which `stack` closes."""
    stack.callback(session.close)
    return session
