"""Evaluate candidate plans of one model, thousands of times: the predicate of a precision search.

A candidate raises some layers of a base plan to a higher precision; ranges, samples and reference
are those of the base and are prepared once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from qdebug.errors import BackendError, ModelError, PlanError
from qdebug.measure.metrics import Metrics
from qdebug.measure.task import TaskMetric, join_outputs
from qdebug.model.prepare import Model
from qdebug.model.samples import Batch
from qdebug.pipeline.context import Context
from qdebug.pipeline.passes import measure_options
from qdebug.pipeline.portion import Portion, whole
from qdebug.pipeline.scoring import Judge, TensorScore, labels_for
from qdebug.pipeline.sizing import probe
from qdebug.pipeline.subject import planned_subject
from qdebug.plan.plan import BoundPlan, nearest
from qdebug.run.base import Session
from qdebug.run.stream import map_in_order
from qdebug.types import Array, Precision, Progress, Tensors

Raises = Mapping[str, Precision]
"""Layer name -> the precision it is raised to; every other layer is as in the base plan."""


@dataclass(frozen=True)
class CandidateResult:
    """What one candidate makes of the samples.

    Attributes:
        outputs: metrics of every float output, by name.
        task: the end-to-end metric, None without one.
        noise: Σerr²/Σref² of an output, averaged over the float outputs; +inf where an output holds
            NaN or Inf that its reference does not, NaN without float outputs.
        seconds: wall time, building the candidate included.
        tensors: metrics of the captured tensors.
        failure: why the runtime could not build or run it; then the rest is empty.
    """

    outputs: Mapping[str, Metrics]
    task: float | None
    noise: float
    seconds: float
    tensors: Mapping[str, Metrics] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Agreement:
    """How the fast kernels of this machine compare with literal Q/DQ, on a few samples.

    Attributes:
        samples: how many.
        sqnr_db: of the fast outputs against the literal ones, the worst output.
        literal, fast: the same candidate (the base plan) both ways.
    """

    samples: int
    sqnr_db: float
    literal: CandidateResult
    fast: CandidateResult


class CandidateRunner:
    """Evaluates candidates on the samples of a portion. A context manager; not to be used from
    several threads at once, it uses several itself.

    Attributes:
        portion: the samples, in the batches that are used.
        reference_task: the end-to-end metric of the reference, None without one.
        literal: whether candidates run on literal Q/DQ; `reason` says why, for the user.
        agreement: how the fast kernels compare with literal Q/DQ; None where it was not asked.
    """

    def __init__(
        self,
        context: Context,
        model: Model,
        bound: BoundPlan,
        portion: Portion,
        *,
        metric: TaskMetric | None = None,
        capture: Sequence[str] = (),
        literal: bool | None = None,
    ) -> None:
        """Runs the reference once over the samples and keeps its outputs.

        Args:
            bound: the base plan, with a range for every tensor that any candidate quantizes.
            capture: tensors of the reference to measure too; then candidates run literally.
            literal: True for literal Q/DQ, False for the fast kernels, None to choose.

        Raises:
            QdebugError: samples that cannot be read, a model that does not run, a metric that
                raised.
        """
        self._context = context
        self._model = model
        self._bound = bound
        self._capture = tuple(dict.fromkeys(capture))
        self._stack = ExitStack()
        self.literal, self.reason = True, "Candidates run on literal Q/DQ."
        self.agreement: Agreement | None = None
        try:
            self._reference = context.backend.open(model.graph.proto, self._capture)
            self._stack.callback(self._reference.close)
            self.portion = _sized(context, self._reference, portion)
            self._outputs = self._run_reference()
            self._judge = self._judge_of(metric)
            self.reference_task = self._judge.of(self._judge.reference)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def evaluate_many(self, candidates: Sequence[Raises]) -> list[CandidateResult]:
        """The results, in order. They do not depend on the number of workers.

        Raises:
            PlanError: a raise that the model cannot be lowered with.
            MetricError: the metric raised.
        """
        workers = self._context.parallel.workers
        if len(candidates) >= workers:
            runs = list(map_in_order(lambda c: self._run(c, 1), candidates, workers))
        else:
            runs = [self._run(c, workers) for c in candidates]
        return [self._result(run) for run in runs]

    def _run(self, raises: Raises, workers: int) -> _Run:
        """Build and run one candidate with `workers` executions in flight."""
        started = time.perf_counter()
        subject = planned_subject(self._model, self._raised(raises))
        options = measure_options(subject, self._capture)
        run = _Run(TensorScore(self._judge.metric is not None), TensorScore(False, options))
        try:
            session = self._context.backend.open(subject.candidate.proto, self._capture)
            try:
                self._execute(session, run, workers)
            finally:
                session.close()
        except (BackendError, ModelError) as error:
            run.failure = error.message
        run.seconds = time.perf_counter() - started
        return run

    def _execute(self, session: Session, run: _Run, workers: int) -> None:
        """All batches through one candidate; the order of the sums is that of the batches."""
        samples, batches = self.portion.samples, self.portion.batches

        def one(batch: Batch) -> tuple[Tensors, Tensors]:
            feeds = samples.feeds(batch.start, batch.count)
            reference = self._reference.run(feeds) if self._capture else {}
            return reference, session.run(feeds)

        results = map_in_order(one, batches, workers) if workers > 1 else map(one, batches)
        for batch, (reference, found) in zip(batches, results, strict=True):
            run.score.add(self._outputs[batch.index], found, batch)
            run.captured.add({t: reference[t] for t in self._capture if t in found}, found, batch)

    def _result(self, run: _Run) -> CandidateResult:
        if run.failure:
            return CandidateResult({}, None, math.nan, run.seconds, failure=run.failure)
        score = run.score
        return CandidateResult(
            score.metrics(), self._judge(score), score.noise(), run.seconds, run.captured.metrics()
        )

    def _raised(self, raises: Raises) -> BoundPlan:
        known = self._bound.precisions
        for name in raises:
            if name not in known:
                raise PlanError(f"the model has no layer '{name}'", nearest(name, known))
        plan = replace(self._bound.plan, layers={**self._bound.plan.layers, **raises})
        return replace(self._bound, plan=plan, precisions={**known, **raises})

    def _run_reference(self) -> dict[int, Tensors]:
        """The reference's outputs, by number of the batch."""
        samples, batches = self.portion.samples, self.portion.batches
        finals = [t for t in self._model.graph.outputs if t in self._reference.dtypes]

        def one(batch: Batch) -> Tensors:
            found = self._reference.run(samples.feeds(batch.start, batch.count))
            return {t: found[t] for t in finals}

        kept = {}
        done = 0
        results = map_in_order(one, batches, self._context.parallel.workers)
        for batch, outputs in zip(batches, results, strict=True):
            kept[batch.index] = outputs
            done += batch.count
            self._context.progress(Progress("reference", done, self.portion.count))
        return kept

    def _judge_of(self, metric: TaskMetric | None) -> Judge:
        if metric is None:
            return Judge(None, {}, {})
        parts: dict[str, list[Array]] = {}
        for outputs in self._outputs.values():
            for name, array in outputs.items():
                parts.setdefault(name, []).append(array)
        labels = labels_for(self.portion.samples, self.portion.batches)
        return Judge(metric, labels, join_outputs(parts))


@dataclass
class _Run:
    """One candidate while it runs; its metric is computed later, in the caller's thread."""

    score: TensorScore
    captured: TensorScore
    seconds: float = 0.0
    failure: str = ""


def _sized(context: Context, reference: Session, portion: Portion) -> Portion:
    """`portion` with the batch size to use: where it is all samples, it may be chosen."""
    samples = portion.samples
    if len(portion.batches) != len(list(samples.batches())):
        return portion
    return whole(probe(reference, samples, context.batch_size).samples)
