"""What a sweep measures of one combination: the errors of its outputs, and its engine. All of it is
kept from run to run, so that an interrupted sweep resumes where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

from qdebug import __version__
from qdebug.analyse.metric_samples import reference_interval, score_interval
from qdebug.backends.base import Session
from qdebug.backends.engine import BuiltEngine, EngineRuntime, EngineSession
from qdebug.engine_info.audit import Audit
from qdebug.engine_info.summary import gate_values, summarize
from qdebug.errors import BackendError, ModelError, QdebugError, UsageError
from qdebug.execute.context import Context
from qdebug.execute.engine.build import Engine, engine_of
from qdebug.execute.engine.request import build_request
from qdebug.execute.evaluator import (
    BatchErrors,
    KeptReference,
    OutputKeeper,
    Sink,
    SumsByShard,
    evaluate,
    run_of,
)
from qdebug.execute.measure_options import output_options
from qdebug.memo import Memo
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ErrorTotals
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.uncertainty import Interval
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.weights import model_digest
from qdebug.plan.pair import ModelPair
from qdebug.results.sweep import EngineFacts, EngineRun, Failure, Misbuilt, OutputErrors
from qdebug.store.manifest import reference_key
from qdebug.types import Feeds

_Record = TypeVar("_Record", OutputErrors, EngineFacts, EngineRun)


@dataclass(frozen=True)
class PartErrors:
    """Errors of a candidate's outputs on a part of the samples.

    Attributes:
        each: of each batch: added up in order they give the same, however samples were divided.
        failure: why it did not run.
    """

    each: Sequence[ErrorTotals] = ()
    failure: str = ""


@dataclass(frozen=True)
class _Reference:
    """A network in FP32, run once. `interval` is that of its metric, 95 %; None without one, and
    where nothing says it."""

    kept: KeptReference
    interval: Interval | None


class OutputEvaluator:
    """Measures candidates on the same samples; the outputs of each reference are kept in memory.

    Attributes:
        subset: the samples.
        keeps: whether errors are kept from one run to the next.
    """

    def __init__(
        self, context: Context, subset: SampleSubset, metric: TaskMetric | None, *, cached: bool
    ) -> None:
        """
        Args:
            cached: take errors that an earlier run measured, and keep those measured now; not
                those of a metric of the user's, whose code may change.
        """
        self._context, self.subset, self._metric = context, subset, metric
        self.keeps = cached and (metric is None or bool(metric.takes))
        self._references: dict[str, _Reference] = {}

    def simulated(self, pair: ModelPair) -> OutputErrors:
        """Errors of the candidate on the backend of the context.

        Raises:
            QdebugError: the reference does not run, samples cannot be read, or the metric raised.
        """
        known = self.known(pair)
        if known:
            return known
        self._reference(pair.reference)  # if that fails, it is not the candidate's failure
        try:
            with closing(self._context.simulation.open(pair.candidate.proto, [])) as session:
                errors = self.of(session, pair)
        except (BackendError, ModelError) as error:
            return OutputErrors({}, None, None, error.message)
        return self._saved(pair, errors)

    def known(self, pair: ModelPair) -> OutputErrors | None:
        """What `simulated` gave in an earlier run."""
        return _kept(self.key(pair), OutputErrors) if self.keeps else None

    def part(self, pair: ModelPair) -> PartErrors:
        """As `simulated`, without a metric, where the samples are a part of all.

        Raises:
            QdebugError: the reference does not run, or samples cannot be read.
        """
        self._reference(pair.reference)
        errors = BatchErrors()
        try:
            with closing(self._context.simulation.open(pair.candidate.proto, [])) as session:
                self._run(session, pair, [errors])
        except (BackendError, ModelError) as error:
            return PartErrors(failure=error.message)
        return PartErrors([one[CANDIDATE] for one in errors.each])

    def joined(self, pair: ModelPair, parts: Sequence[PartErrors]) -> OutputErrors:
        """What `simulated` gives on all samples, of which `parts` are in order."""
        if failure := next((part.failure for part in parts if part.failure), ""):
            return OutputErrors({}, None, None, failure)
        sums = SumsByShard([CANDIDATE], sum(len(part.each) for part in parts))
        for part in parts:
            for errors in part.each:
                sums.add({CANDIDATE: errors})
        return self._saved(pair, OutputErrors(sums.totals()[CANDIDATE].metrics(), None, None))

    def _saved(self, pair: ModelPair, errors: OutputErrors) -> OutputErrors:
        if self.keeps:
            Memo().put(self.key(pair), errors)
        return errors

    def of(self, session: Session, pair: ModelPair) -> OutputErrors:
        """Errors of what `session` gives for the outputs of the candidate.

        Raises:
            UsageError: the candidate lacks outputs of the reference.
            QdebugError: the reference or the session does not run.
        """
        reference = self._reference(pair.reference)
        task = reference.kept.task
        kept = OutputKeeper(CANDIDATE, pair.reference.outputs)
        total = self._run(session, pair, [kept] if task else [])
        if task is None:
            return OutputErrors(total.metrics(), None, None)
        outputs = kept.joined()
        return OutputErrors(
            total.metrics(),
            task(outputs),
            task.of_reference(),
            interval=score_interval(task, outputs, reference.kept.subset.count),
            reference_interval=reference.interval,
        )

    def _run(self, session: Session, pair: ModelPair, sinks: Sequence[Sink]) -> ErrorTotals:
        """Raises as `of`."""
        reference, graph = self._reference(pair.reference).kept, pair.reference
        names = {t: pair.tensors.get(t, t) for t in graph.outputs if graph.is_array(t)}
        if not session.dtypes.keys() >= set(names.values()):
            raise UsageError(
                f"the reference has outputs that the model does not have: {', '.join(names)}",
                "Give the FP32 model that the quantized one was made from.",
                code="QD-USAGE-REFERENCE",
            )
        totals = evaluate(
            reference.subset,
            {REFERENCE: reference.run, CANDIDATE: run_of(session, names)},
            {CANDIDATE: Comparison(options=output_options(graph))},
            self._context,
            feeds=reference.feeds,
            sinks=sinks,
            stage="evaluate",
        )
        return totals[CANDIDATE]

    def _reference(self, graph: Graph) -> _Reference:
        key = model_digest(graph.proto)
        if key not in self._references:
            with closing(self._context.backend.open(graph.proto, [])) as session:
                kept = KeptReference(self._context, graph, session, self.subset, self._metric)
            found = reference_interval(kept.task, kept.subset.count) if kept.task else None
            self._references[key] = _Reference(kept, found)
        return self._references[key]

    def first_feeds(self) -> Feeds:
        """The inputs of one execution."""
        samples = self.subset.samples
        first = next(samples.batches())
        return samples.feeds(first.start, first.count)

    def key(self, pair: ModelPair) -> str:
        """A digest of all that decides the errors of a simulation."""
        return _digest(
            "errors",
            str(self._context.fp16_kernels),
            reference_key(pair, self.subset.samples, self._context.sessions.operators_digest),
            model_digest(pair.candidate.proto),
            self._metric.name if self._metric else "",
        )


@dataclass(frozen=True)
class FoundEngine:
    """What is known of an engine.

    Attributes:
        built: the engine itself, where it is at hand.
        errors: of its outputs, where it was executed before it is timed.
    """

    facts: EngineFacts
    built: BuiltEngine | None = None
    errors: OutputErrors | None = None


def facts_of(runtime: EngineRuntime, pair: ModelPair, *, not_run: str) -> FoundEngine | Failure:
    """Build and audit, or take what an earlier run found. A failure is not kept: the next run tries
    again.

    Args:
        runtime: fitted to the samples.
    """
    try:
        key = _key(runtime, pair, "engine", json.dumps(pair.precisions))
        facts = _kept(key, EngineFacts) if runtime.keeps else None
        if facts:
            return FoundEngine(replace(facts, cached=True))
        engine = engine_of(runtime, pair, not_run=not_run)
    except QdebugError as error:
        return Failure(error.message, error.hint, tuple(getattr(error, "__notes__", ())))
    facts = _facts(engine)
    if runtime.keeps:
        Memo().put(key, facts)
    return FoundEngine(facts, engine.built)


def built_of(runtime: EngineRuntime, pair: ModelPair, found: FoundEngine) -> BuiltEngine:
    """The engine that was `found`; built again where it is no longer cached.

    Raises:
        QdebugError: it cannot be built any more.
    """
    return found.built or runtime.build(build_request(runtime.typing, pair).graph.proto)


def executed(
    runtime: EngineRuntime, pair: ModelPair, found: FoundEngine, outputs: OutputEvaluator
) -> EngineRun:
    """Execute an engine that was found, over all samples, or take what an earlier run measured.

    Raises:
        QdebugError: the reference does not run, samples cannot be read, or the metric raised.
    """
    run, key = _kept_run(runtime, pair, outputs)
    if run:
        return run
    try:
        with closing(_session(runtime, pair, found)) as session:
            errors = found.errors or outputs.of(session, pair)
            run = EngineRun(errors, session.latency_ms(outputs.first_feeds()))
    except (BackendError, ModelError) as error:
        return EngineRun(OutputErrors({}, None, None, error.message), None)
    if key:
        Memo().put(key, run)
    return run


def errors_of(
    runtime: EngineRuntime, pair: ModelPair, found: FoundEngine, outputs: OutputEvaluator
) -> OutputErrors | None:
    """As `executed`, without timing it; None where it cannot be executed, which `executed` says."""
    run, _ = _kept_run(runtime, pair, outputs)
    if run:
        return run.errors
    try:
        runtime.start()
        with closing(_session(runtime, pair, found)) as session:
            return outputs.of(session, pair)
    except QdebugError:
        return None


def _session(runtime: EngineRuntime, pair: ModelPair, found: FoundEngine) -> EngineSession:
    built = built_of(runtime, pair, found)
    return runtime.clean(build_request(runtime.typing, pair).graph.proto, built)


def _kept_run(
    runtime: EngineRuntime, pair: ModelPair, outputs: OutputEvaluator
) -> tuple[EngineRun | None, str]:
    """What an earlier run measured, and the key to keep it under; "" where nothing is kept."""
    if not (runtime.keeps and outputs.keeps):
        return None, ""
    key = _key(runtime, pair, "execution", outputs.key(pair), runtime.device_name)
    return _kept(key, EngineRun), key


def _facts(engine: Engine) -> EngineFacts:
    report = engine.report
    found = report.audit or Audit(())
    return EngineFacts(
        built_for=report.built_for,
        build_s=report.build_s,
        size_bytes=report.size_bytes,
        layers=report.layers,
        values=gate_values(summarize(engine.info), found) if engine.info else {},
        mismatches=tuple(Misbuilt(r.name, str(r.requested), r.built) for r in found.mismatched),
        unknown=found.unknown,
        warnings=(*engine.notes, *(w.text for w in report.warnings)),
        sha256=hashlib.sha256(engine.built.engine).hexdigest(),
        cached=report.cached,
    )


def _key(runtime: EngineRuntime, pair: ModelPair, *parts: str) -> str:
    return _digest(runtime.key(build_request(runtime.typing, pair).graph.proto), *parts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join([__version__, *parts]).encode()).hexdigest()


def _kept(key: str, kind: type[_Record]) -> _Record | None:
    """What was kept under `key`; None where there is nothing, or not what this version keeps."""
    found = Memo().get(key)
    return found if isinstance(found, kind) else None
