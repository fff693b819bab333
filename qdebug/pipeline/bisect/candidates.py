"""Evaluate candidate plans of one model, thousands of times: the predicate of a precision search.

A candidate raises some layers of a base plan to a higher precision; ranges, samples and reference
are those of the base and are prepared once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from enum import Enum, auto

import onnx

from qdebug.config.bisect import STORED_BYTES
from qdebug.errors import BackendError, MetricError, ModelError, PlanError
from qdebug.measure.candidate import Agreement, CandidateResult
from qdebug.measure.sums import MeasureOptions
from qdebug.measure.task import TaskMetric
from qdebug.model.prepare import Model
from qdebug.model.samples import Batch
from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.bisect.stored import Resumed, StoredActivations
from qdebug.pipeline.compare.lockstep import measure_options
from qdebug.pipeline.context import Context
from qdebug.pipeline.kept_reference import KeptReference
from qdebug.pipeline.scoring import MetricEvaluator, TensorScore
from qdebug.plan.lower import lower
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import BoundPlan, nearest
from qdebug.run.base import Backend, Session
from qdebug.run.ort_fast.assemble import Assembler
from qdebug.run.ort_fast.session import CandidateSessions
from qdebug.run.simulation import SimulationBackend
from qdebug.run.stream import map_in_order
from qdebug.types import Precision, Tensors


@dataclass(frozen=True)
class Engines:
    """What runs candidates in place of ONNX Runtime.

    Attributes:
        backend: runs them on the samples of a subset.
        model: lowers them.
    """

    backend: Callable[[SampleSubset], Backend]
    model: Callable[[BoundPlan], onnx.ModelProto]


Raises = Mapping[str, Precision]
"""Layer name -> the precision it is raised to; every other layer is as in the base plan."""

_AGREEMENT_SAMPLES = 16
"""About how many samples are run both ways, to see whether the fast kernels may be used."""


class CandidateRunner(AbstractContextManager["CandidateRunner"]):
    """Evaluates candidates on some samples. A context manager; to be called from one thread, it
    uses several itself.

    Attributes:
        subset: the samples, in the batches that are used.
        reference_task: the end-to-end metric of the reference, None without one.
        literal: whether candidates run on literal Q/DQ; `reason` says why, for the user.
        agreement: how the fast kernels compare with literal Q/DQ; None where that was not asked.
    """

    def __init__(
        self,
        context: Context,
        model: Model,
        bound: BoundPlan,
        subset: SampleSubset,
        *,
        metric: TaskMetric | None = None,
        capture: Sequence[str] = (),
        literal: bool | None = None,
        engines: Engines | None = None,
        stored_bytes: int = STORED_BYTES,
    ) -> None:
        """Runs the reference once over the samples.

        Args:
            bound: the base plan, with a range for every tensor that its INT8 layers read.
            capture: tensors of the reference to measure too; then candidates run literally.
            literal: True for literal Q/DQ, False for the fast kernels, None to use these where
                they agree with literal Q/DQ on this machine.
            engines: what runs the candidates in place of ONNX Runtime.
            stored_bytes: limit of the activations that candidates start from.

        Raises:
            QdebugError: a range is missing, samples cannot be read, the model does not run, or the
                metric raised.
        """
        self._context, self._model, self._bound = context, model, bound
        self._engines: Backend | None = None
        self._lowered: Callable[[BoundPlan], onnx.ModelProto] = _lowered
        self._capture = tuple(dict.fromkeys(capture))
        self._keep = metric is not None
        self.agreement: Agreement | None = None
        self._sessions = _sessions_of(context, bound)
        self._stored = StoredActivations(self._sessions, stored_bytes) if self._sessions else None
        with ExitStack() as stack:
            session = context.backend.open(model.graph.proto, self._capture)
            stack.callback(session.close)
            self._reference = KeptReference(context, model.graph, session, subset, metric)
            self.subset = self._reference.subset
            if engines is not None:
                self._engines, self._lowered = engines.backend(self.subset), engines.model
            self.reference_task = self._reference.judge.of(self._reference.judge.reference)
            self.literal, self.reason = self._choose(literal)
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the reference; doing so twice does nothing."""
        self._stack.close()

    def evaluate_many(self, candidates: Sequence[Raises]) -> list[CandidateResult]:
        """The results, in order. They do not depend on the number of workers.

        Raises:
            PlanError: an unknown layer, or a raise that the model cannot be lowered with.
            MetricError: the metric raised.
        """
        bounds = [self._raised(raises) for raises in candidates]
        workers = self._context.parallel.workers
        if len(bounds) < workers:
            runs = [self._run(bound, workers) for bound in bounds]
        else:
            runs = list(map_in_order(lambda bound: self._run(bound, 1), bounds, workers))
        return [_result(run, self._reference.judge) for run in runs]

    def _raised(self, raises: Raises) -> BoundPlan:
        known = self._bound.precisions
        for name in raises:
            if name not in known:
                raise PlanError(f"the model has no layer '{name}'", nearest(name, known))
        plan = replace(self._bound.plan, layers={**self._bound.plan.layers, **raises})
        return replace(self._bound, plan=plan, precisions={**known, **raises})

    def _run(self, bound: BoundPlan, workers: int) -> _Run:
        """One candidate over all samples; in a plainer way where one fails."""
        ways = (_Way.LITERAL,) if self.literal else tuple(_Way)
        seconds = 0.0
        for way in ways:
            run = self._try(bound, self.subset.batches, workers, way, self._keep)
            seconds += run.seconds
            if not run.failure:
                break
        return replace(run, seconds=seconds)

    def _try(
        self, bound: BoundPlan, batches: Sequence[Batch], workers: int, way: _Way, keep: bool
    ) -> _Run:
        """Build one candidate and run it with `workers` executions in flight."""
        started = time.perf_counter()
        options: Mapping[str, MeasureOptions] = {}
        if self._capture:
            options = measure_options(planned_pair(self._model, bound), self._capture)
        score, captured, failure = TensorScore(keep), TensorScore(False, options), ""
        try:
            session = self._open(bound, way)
            try:
                self._execute(session, batches, workers, score, captured)
                if isinstance(session, Resumed):
                    session.keep()
            finally:
                session.close()
        except (BackendError, ModelError) as error:
            failure = error.message
        return _Run(score, captured, time.perf_counter() - started, failure)

    def _open(self, bound: BoundPlan, way: _Way) -> Session | Resumed:
        if way is _Way.RESUMED and self._stored is not None:
            return self._stored.open(bound.precisions)
        sessions = self._sessions
        if self._engines is not None:
            return self._engines.open(self._lowered(bound), self._capture)
        if sessions is not None and not self._capture and sessions.takes(bound.precisions):
            return sessions.open(bound.precisions, kernels=way is not _Way.LITERAL)
        return self._context.simulation.open(_lowered(bound), self._capture)

    def _execute(
        self,
        session: Session | Resumed,
        batches: Sequence[Batch],
        workers: int,
        score: TensorScore,
        captured: TensorScore,
    ) -> None:
        """Run and measure; sums are added up in the batches' order, whoever ran them."""
        reference = self._reference

        def one(batch: Batch) -> tuple[Tensors, Tensors]:
            feeds = reference.feeds(batch)
            inside = reference.session.run(feeds) if self._capture else {}
            if isinstance(session, Resumed):
                return inside, session.run(batch.index, feeds)
            return inside, session.run(feeds)

        results = map_in_order(one, batches, workers) if workers > 1 else map(one, batches)
        for batch, (inside, found) in zip(batches, results, strict=True):
            score.add(reference.outputs[batch.index], found, batch)
            both = {t: inside[t] for t in self._capture if t in inside and t in found}
            captured.add(both, found, batch)

    def _choose(self, literal: bool | None) -> tuple[bool, str]:
        """Whether to run literally, and why."""
        if self._engines is not None:
            inner = ", with the tensors measured as outputs: less is fused" if self._capture else ""
            return True, f"Candidates run on engines of {self._engines.name}{inner}."
        if self._capture:
            return True, "Candidates run on literal Q/DQ: tensors inside them are measured."
        if Precision.INT8 not in self._bound.precisions.values():
            return True, "No layer runs in INT8: there is nothing for INT8 kernels to do."
        if self._sessions is None or not self._sessions.takes(self._bound.precisions):
            return True, "Candidates run on literal Q/DQ: this base plan has no INT8 kernels."
        if literal is not None:
            return literal, f"Candidates run on {'literal Q/DQ' if literal else 'INT8 kernels'}."
        found = self.agreement = self._compare_ways()
        if found.fast.failure:
            return True, f"Candidates run on literal Q/DQ: INT8 kernels fail, {found.fast.failure}"
        figures = (
            f"output SQNR {found.fast.sqnr_db:.1f} dB against {found.literal.sqnr_db:.1f} dB "
            f"literally, on {found.samples} samples"
        )
        if found.holds:
            return False, f"Candidates run on INT8 kernels, which agree here: {figures}."
        return True, f"Candidates run on literal Q/DQ: INT8 kernels do not agree here, {figures}."

    def _compare_ways(self) -> Agreement:
        """The base plan both ways on a few samples."""
        batches = self._reference.some(_AGREEMENT_SAMPLES)
        workers = self._context.parallel.workers
        ways = (_Way.LITERAL, _Way.WHOLE)
        literal, fast = (self._try(self._bound, batches, workers, way, True) for way in ways)
        between = TensorScore(False)
        if not literal.failure and not fast.failure:
            for i, batch in enumerate(batches):
                between.add(literal.score.batch(i), fast.score.batch(i), batch)
        judge = self._reference.judge_of(batches)
        return Agreement(
            sum(batch.count for batch in batches),
            min((m.sqnr_db for m in between.metrics().values()), default=math.nan),
            *(_result(way, judge) for way in (literal, fast)),
        )


class _Way(Enum):
    """How a candidate runs: on kernels from activations that are stored, on kernels, literally."""

    RESUMED = auto()
    WHOLE = auto()
    LITERAL = auto()


@dataclass(frozen=True)
class _Run:
    """One candidate that ran; its metric is computed later, in the caller's thread."""

    score: TensorScore
    captured: TensorScore
    seconds: float
    failure: str


def _result(run: _Run, judge: MetricEvaluator) -> CandidateResult:
    if run.failure:
        return CandidateResult({}, None, math.nan, run.seconds, failure=run.failure)
    score, inside = run.score, run.captured.metrics()
    outputs = score.metrics()
    try:
        task = judge(score)
    except MetricError as error:
        if all(m.is_finite for m in outputs.values()):
            raise
        # No fault of the metric: this candidate overflows, and is no answer.
        failure = f"its outputs hold NaN or Inf, and {error.message}"
        return CandidateResult({}, None, math.nan, run.seconds, failure=failure)
    return CandidateResult(outputs, task, score.noise(), run.seconds, inside)


def _lowered(bound: BoundPlan) -> onnx.ModelProto:
    return lower(bound).graph.proto


def _sessions_of(context: Context, bound: BoundPlan) -> CandidateSessions | None:
    """What assembles candidates for ONNX Runtime; another backend gets them lowered."""
    if not isinstance(context.simulation, SimulationBackend):
        return None
    return CandidateSessions(Assembler(bound, context.fp16_kernels), context.parallel.threads)
