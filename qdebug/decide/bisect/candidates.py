"""Evaluate candidate plans of one model, thousands of times: the predicate of a precision search.

A candidate overrides the precision of some layers of a base plan; ranges, samples and reference are
those of the base and are prepared once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from enum import Enum, auto

import onnx

from qdebug.backends.base import Backend, Session
from qdebug.backends.ort_fast.assemble import Assembler
from qdebug.backends.ort_fast.prefix_cache import DEFAULT_BYTES, PrefixCache, ResumedSession
from qdebug.backends.ort_fast.session import CandidateSessions
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.stream import map_in_order
from qdebug.errors import BackendError, MetricError, ModelError, PlanError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import (
    BatchErrors,
    KeptReference,
    OutputKeeper,
    Reducer,
    Run,
    Sink,
    SumsByShard,
    evaluate,
    run_of,
)
from qdebug.execute.lockstep import measure_options, output_options
from qdebug.formats.registry import SCALED
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ErrorTotals, ExecutedBatch
from qdebug.metrics.candidate import CandidateResult, KernelAgreement
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.prepare import Model
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset, spread
from qdebug.plan.lower import lower
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import BoundPlan
from qdebug.plan.select import nearest
from qdebug.run.outputs import MetricEvaluator
from qdebug.types import Precision, Tensors

PrecisionOverrides = Mapping[str, Precision]
"""Layer name -> the precision it runs in; every other layer is as in the base plan."""

_ON_KERNELS = "Sets of layers are evaluated on ONNX Runtime's INT8 kernels"
_NOT_ON_KERNELS = (
    "Sets of layers are evaluated in the simulation, because ONNX Runtime's INT8 kernels"
)
IN_SIMULATION = "Sets of layers are evaluated in the simulation."
_INNER, _LITERAL = "inner", "literal"
"""Runs besides the candidate: tensors inside the reference, and the candidate on literal Q/DQ."""
AGREEMENT_SAMPLES = 16
"""About how many samples are run both ways, to see whether the fast kernels may be used."""


@dataclass(frozen=True)
class Engines:
    """What runs candidates in place of ONNX Runtime.

    Attributes:
        backend: runs them on the samples of a subset.
        model: lowers them.
    """

    backend: Callable[[SampleSubset], Backend]
    model: Callable[[BoundPlan], onnx.ModelProto]


@dataclass(frozen=True)
class RunnerOptions:
    """How candidates run.

    Attributes:
        capture: tensors of the reference to measure too; then candidates run literally.
        literal: True for literal Q/DQ, False for the fast kernels, None to use these where they
            agree with literal Q/DQ on this machine.
        engines: what runs the candidates in place of ONNX Runtime.
        cache_bytes: limit of the activations that candidates start from.
        agree_on: about how many samples tell whether the fast kernels agree.
        sessions: of the base plan, shared with runners on other samples; None for its own.
        ends_at: OutOfTimeError is raised where the runner is not ready by then, on the clock of
            `time.monotonic`. Candidates may take longer.
    """

    capture: Sequence[str] = ()
    literal: bool | None = None
    engines: Engines | None = None
    cache_bytes: int = DEFAULT_BYTES
    agree_on: int = AGREEMENT_SAMPLES
    sessions: CandidateSessions | None = None
    ends_at: float = math.inf


class _Mode(Enum):
    """How a candidate runs: on INT8 kernels from a cached prefix, on INT8 kernels from its inputs,
    or as literal Q/DQ."""

    RESUMED = auto()
    KERNELS = auto()
    LITERAL = auto()


class CandidateRunner(AbstractContextManager["CandidateRunner"]):
    """Evaluates candidates on some samples. A context manager; to be called from one thread, it
    uses several itself.

    Attributes:
        subset: the samples, in the batches that are used.
        reference_task: the end-to-end metric of the reference, None without one.
        literal: whether candidates run on literal Q/DQ; `reason` says why, for the user.
        agreement: how the fast kernels compare with literal Q/DQ; None where that was not tested.
        reference_s: seconds that the reference took, its opening and its metric included.
    """

    def __init__(
        self,
        context: Context,
        model: Model,
        bound: BoundPlan,
        subset: SampleSubset,
        *,
        metric: TaskMetric | None = None,
        options: RunnerOptions = RunnerOptions(),
    ) -> None:
        """Runs the reference once over the samples.

        Args:
            bound: the base plan, with a range for every tensor that its INT8 layers read.
            metric: the end-to-end metric to compute of each.

        Raises:
            QdebugError: a range is missing, samples cannot be read, the model does not run, or the
                metric raised.
            OutOfTimeError: see RunnerOptions.
        """
        self._context = replace(context, ends_at=min(context.ends_at, options.ends_at))
        self._model, self._bound = model, bound
        self._options = output_options(model.graph)
        self._capture = tuple(dict.fromkeys(options.capture))
        self._agree_on = options.agree_on
        self._engines: Backend | None = None
        self._lowered: Callable[[BoundPlan], onnx.ModelProto] = _lowered
        self.agreement: KernelAgreement | None = None
        self._sessions = options.sessions or sessions_of(context, bound)
        self._cache = PrefixCache(self._sessions, options.cache_bytes) if self._sessions else None
        started = time.perf_counter()
        with ExitStack() as stack:
            self._inner = context.backend.open(model.graph.proto, self._capture)
            stack.callback(self._inner.close)
            reference = KeptReference(self._context, model.graph, self._inner, subset, metric)
            self._reference, self.subset = reference, reference.subset
            self.reference_task = reference.task.of_reference() if reference.task else None
            self.reference_s = time.perf_counter() - started
            if (engines := options.engines) is not None:
                self._engines, self._lowered = engines.backend(self.subset), engines.model
            self.literal, self.reason = self._choose(options.literal)
            self._stack = stack.pop_all()
        self._context = context

    @property
    def task(self) -> MetricEvaluator | None:
        """The metric with the reference's outputs; None without one."""
        return self._reference.task

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the reference; doing so twice does nothing."""
        self._stack.close()

    def evaluate_many(
        self, candidates: Sequence[PrecisionOverrides], *, literal: bool = False
    ) -> list[CandidateResult]:
        """The results, in order. They do not depend on the number of workers.

        Args:
            literal: on literal Q/DQ, even where this runner uses the fast kernels.

        Raises:
            PlanError: an unknown layer, or an override that the model cannot be lowered with.
            MetricError: the metric raised.
        """
        bounds = [self._overridden(overrides) for overrides in candidates]
        workers = self._context.parallel.workers
        if len(bounds) < workers:
            runs = [self._run(bound, workers, literal) for bound in bounds]
        else:
            runs = list(map_in_order(lambda bound: self._run(bound, 1, literal), bounds, workers))
        return [run.result(self._reference.task) for run in runs]

    def run_part(self, overrides: PrecisionOverrides, *, literal: bool, keep: bool) -> PartRun:
        """One candidate, of which the samples are a part: what is to be joined with the others. One
        that fails on INT8 kernels is not run literally, since all parts are to run alike.

        Args:
            literal: on literal Q/DQ, whatever this runner would choose.
            keep: return its outputs.

        Raises:
            PlanError: as `evaluate_many`.
        """
        bound, errors = self._overridden(overrides), BatchErrors()
        modes = [_Mode.LITERAL] if literal else [_Mode.RESUMED, _Mode.KERNELS]
        workers = self._context.parallel.workers
        run = self._first(bound, workers, modes, keep=keep, errors=errors)
        return PartRun(errors.each, run.outputs.by_batch, run.seconds, run.failure)

    @property
    def reference_outputs(self) -> Mapping[Batch, Tensors]:
        """What FP32 gave, by batch."""
        return dict(self._reference.outputs.by_batch)

    def _overridden(self, overrides: PrecisionOverrides) -> BoundPlan:
        check_layers(self._bound, overrides)
        known = self._bound.precisions
        plan = replace(self._bound.plan, layers={**self._bound.plan.layers, **overrides})
        return replace(self._bound, plan=plan, precisions={**known, **overrides})

    def _run(self, bound: BoundPlan, workers: int, literal: bool) -> _Run:
        """One candidate over all samples."""
        modes = [_Mode.LITERAL] if literal or self.literal else list(_Mode)
        return self._first(bound, workers, modes, keep=self._reference.task is not None)

    def _first(
        self,
        bound: BoundPlan,
        workers: int,
        modes: Sequence[_Mode],
        *,
        keep: bool,
        errors: BatchErrors | None = None,
    ) -> _Run:
        """One candidate over all samples in the first of `modes`, the plainest last, that does not
        fail; `errors` and `keep` are as of `_try`."""
        task, seconds = self.task, 0.0
        reduce = Reducer(task.metric, self.subset.samples, losses=False) if task else None
        for mode in modes:
            run = self._try(
                bound, self.subset, workers, mode, keep=keep, errors=errors, reduce=reduce
            )
            seconds += run.seconds
            if not run.failure:
                break
        return replace(run, seconds=seconds)

    def _try(
        self,
        bound: BoundPlan,
        subset: SampleSubset,
        workers: int,
        mode: _Mode,
        *,
        keep: bool,
        literal: OutputKeeper | None = None,
        errors: BatchErrors | None = None,
        reduce: Reducer | None = None,
    ) -> _Run:
        """Build one candidate and run it with `workers` batches in flight.

        Args:
            keep: keep its outputs.
            literal: outputs of another run of it, to compare its own with.
            errors: takes those of each batch, in place of what it has.
            reduce: of the outputs, what is kept of them.
        """
        started = time.perf_counter()
        outputs = OutputKeeper(CANDIDATE, self._model.graph.outputs, reduce=reduce)
        sinks: list[Sink] = [outputs] if keep else []
        if errors is not None:
            errors.each.clear()
            sinks.append(errors)
        runs: dict[str, Run] = {REFERENCE: self._reference.run}
        comparisons = {REFERENCE: Comparison(options=self._options)}
        if self._capture:
            options = measure_options(planned_pair(self._model, bound), self._capture)
            comparisons[_INNER] = Comparison(_INNER, options=options)
            runs[_INNER] = self._inner_run
        if literal is not None:
            comparisons[_LITERAL] = Comparison(_LITERAL)
            runs[_LITERAL] = lambda executed: literal.by_batch[executed.batch]
        totals, failure = {name: ErrorTotals() for name in comparisons}, ""
        try:
            session = self._open(bound, mode)
            try:
                totals = evaluate(
                    subset,
                    {**runs, CANDIDATE: run_of(session)},
                    comparisons,
                    self._context,
                    workers=workers,
                    feeds=self._reference.feeds,
                    sinks=sinks,
                )
                if isinstance(session, ResumedSession):
                    session.keep()
            finally:
                session.close()
        except (BackendError, ModelError) as error:
            failure = error.message
        return _Run(totals, outputs, time.perf_counter() - started, failure)

    def _inner_run(self, executed: ExecutedBatch) -> Tensors:
        found = self._inner.run(executed.feeds)
        return {t: found[t] for t in self._capture if t in found}

    def _open(self, bound: BoundPlan, mode: _Mode) -> Session | ResumedSession:
        sessions = self._sessions
        if mode is _Mode.RESUMED and self._cache is not None and sessions is not None:
            return self._cache.open(sessions.assemble(bound.precisions, kernels=True))
        if self._engines is not None:
            return self._engines.open(self._lowered(bound), self._capture)
        if sessions is not None and not self._capture and sessions.takes(bound.precisions):
            return sessions.open(bound.precisions, kernels=mode is not _Mode.LITERAL)
        return self._context.simulation.open(_lowered(bound), self._capture)

    def _choose(self, literal: bool | None) -> tuple[bool, str]:
        """Whether to run literal Q/DQ, and why."""
        if self._engines is not None:
            inner = ", with the tensors measured as outputs: less is fused" if self._capture else ""
            return True, f"Sets of layers are evaluated on engines of {self._engines.name}{inner}."
        if why := why_literal(self._sessions, self._bound, self._capture):
            return True, why
        if literal is not None:
            return literal, IN_SIMULATION if literal else f"{_ON_KERNELS}."
        found = self.agreement = self._compare_modes()
        if found.fast.failure:
            return (
                True,
                f"{_NOT_ON_KERNELS} fail: {found.fast.failure}",
            )
        figures = (
            f"output SQNR {found.fast.sqnr_db:.1f} dB, {found.literal.sqnr_db:.1f} dB there, on "
            f"{found.samples} samples"
        )
        if found.holds:
            return False, f"{_ON_KERNELS}, which agree with the simulation ({figures})."
        return True, f"{_NOT_ON_KERNELS} differ from it here ({figures})."

    def _compare_modes(self) -> KernelAgreement:
        """The base plan in both modes on a few samples."""
        few = spread(self.subset, self._agree_on)
        workers = self._context.parallel.workers
        literal = self._try(self._bound, few, workers, _Mode.LITERAL, keep=True)
        beside = None if literal.failure else literal.outputs
        fast = self._try(self._bound, few, workers, _Mode.KERNELS, keep=True, literal=beside)
        between = fast.totals[_LITERAL].metrics() if beside else {}
        return KernelAgreement(
            few.count,
            min((m.sqnr_db for m in between.values()), default=math.nan),
            literal.result(None),  # few samples need not suffice for a metric
            fast.result(None),
        )


@dataclass(frozen=True)
class _Run:
    """One candidate that ran; its metric is computed later, in the caller's thread.

    Attributes:
        totals: errors by what it was compared with.
        outputs: kept where a metric needs them.
    """

    totals: Mapping[str, ErrorTotals]
    outputs: OutputKeeper
    seconds: float
    failure: str

    def result(self, task: MetricEvaluator | None) -> CandidateResult:
        """What it found, with the metric.

        Raises:
            MetricError: the metric raised on outputs that are all finite.
        """
        failure, totals = self.failure, self.totals[REFERENCE]
        if not failure:
            outputs = totals.metrics()
            inner = self.totals[_INNER].metrics() if _INNER in self.totals else {}
            began = time.perf_counter()
            try:
                value, group = task.decided(self.outputs.joined()) if task else (None, "")
                seconds = self.seconds + time.perf_counter() - began
                return CandidateResult(outputs, value, totals.noise(), seconds, inner, group)
            except MetricError as error:
                if all(m.is_finite for m in outputs.values()):
                    raise
                # Not the metric's fault: this candidate overflows, so it cannot be the answer.
                failure = f"its outputs hold NaN or Inf, and {error.message}"
        return CandidateResult({}, None, math.nan, self.seconds, failure=failure)


def why_literal(
    sessions: CandidateSessions | None, bound: BoundPlan, capture: Sequence[str]
) -> str:
    """Why candidates run literally whatever kernels give, for the user; "" where they may not."""
    if capture:
        return "Sets of layers are evaluated in the simulation, since tensors inside are measured."
    if SCALED.isdisjoint(bound.precisions.values()):
        return "Sets of layers are evaluated in the simulation: no layer runs in INT8."
    if sessions is None or not sessions.takes(bound.precisions):
        return "Sets of layers are evaluated in the simulation: this plan has no INT8 kernels."
    return ""


@dataclass(frozen=True)
class PartRun:
    """One candidate on a part of the samples.

    Attributes:
        errors: of each batch, by what it was compared with: added up in order they give the same,
            however the samples were parted.
        outputs: by batch, where a metric needs them.
        seconds: wall time.
        failure: why it could not be built or run.
    """

    errors: Sequence[Mapping[str, ErrorTotals]]
    outputs: Mapping[Batch, Tensors]
    seconds: float
    failure: str


def joined_parts(parts: Sequence[PartRun], task: MetricEvaluator | None) -> CandidateResult:
    """What a candidate makes of all samples, of which `parts` are in order.

    Raises:
        MetricError: the metric raised on outputs that are all finite.
    """
    sums = SumsByShard([REFERENCE], sum(len(part.errors) for part in parts))
    outputs = OutputKeeper(CANDIDATE, ())
    for part in parts:
        for errors in part.errors:
            sums.add(errors)
        outputs.by_batch.update(part.outputs)
    failures = (part.failure for part in parts if part.failure)
    seconds = max(part.seconds for part in parts)
    return _Run(sums.totals(), outputs, seconds, next(failures, "")).result(task)


def check_layers(bound: BoundPlan, overrides: PrecisionOverrides) -> None:
    """Make sure that the model has the layers of a candidate.

    Raises:
        PlanError: it does not.
    """
    for name in overrides:
        if name not in bound.precisions:
            raise PlanError(
                f"the model has no layer '{name}'",
                nearest(name, bound.precisions),
                code="QD-PLAN-UNKNOWN-LAYER",
            )


def _lowered(bound: BoundPlan) -> onnx.ModelProto:
    return lower(bound).graph.proto


def sessions_of(context: Context, bound: BoundPlan) -> CandidateSessions | None:
    """What assembles candidates for ONNX Runtime; None for another backend, which gets them
    lowered."""
    if not isinstance(context.simulation, SimulationBackend):
        return None
    return CandidateSessions(
        Assembler(bound, context.fp16_kernels), context.parallel.threads, context.sessions
    )
