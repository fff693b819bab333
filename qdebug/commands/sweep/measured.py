"""What a sweep measures of one combination: the errors of its outputs, and its engine. All of it is
kept from run to run, so that an interrupted sweep resumes where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import onnx

from qdebug.analyse.metric_samples import reference_interval, score_interval
from qdebug.backends.engine import BuiltEngine, EngineRuntime, EngineSession
from qdebug.engine_info.audit import Audit
from qdebug.engine_info.summary import gate_values, summarize
from qdebug.errors import BackendError, ModelError, QdebugError, UsageError
from qdebug.execute.context import Context, runner_of, sized
from qdebug.execute.engine.build import Engine, engine_of
from qdebug.execute.engine.request import build_request
from qdebug.execute.measure_options import output_options
from qdebug.memo import Memo, digest_of
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.uncertainty import Interval
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.weights import model_digest
from qdebug.outputfiles import make_folder, write_bytes, write_text
from qdebug.plan.pair import ModelPair
from qdebug.results.sweep import EngineFacts, EngineRun, Failure, Misbuilt, OutputErrors
from qdebug.run.executor import THIS_PROCESS
from qdebug.run.outputs import Evaluated, OutputEvaluator, joined
from qdebug.run.reducers import Outputs
from qdebug.run.runner import Runner
from qdebug.run.variant import Variant, as_it_is
from qdebug.store.manifest import reference_key
from qdebug.wording import option


class EngineFolder:
    """A folder with N.engine and N.log for each row of a sweep, once that is done.

    Until then they lie in a folder within, so that a sweep that was killed finds nothing in its way
    when it goes on.
    """

    def __init__(self, stack: ExitStack, path: str, rows: int, *, force: bool) -> None:
        """Make the folder, for so many rows; `stack` clears away what is not finished.

        Raises:
            StoreError: it cannot be made, or holds files of those names and not `force`.
        """
        self._flag = option("save_engines")
        names = [f"{k}{end}" for k in range(1, rows + 1) for end in (".engine", ".log")]
        make_folder(path, names, self._flag, force=force)
        self._folder = Path(path)
        self._unfinished = Path(stack.enter_context(TemporaryDirectory(dir=path, prefix=".")))

    def save(self, row: int, built: BuiltEngine) -> None:
        """Write the files of a row, from 1.

        Raises:
            StoreError: they cannot be written.
        """
        stem = self._unfinished / str(row)
        write_bytes(f"{stem}.engine", built.engine, self._flag, force=True)
        write_text(f"{stem}.log", built.log, self._flag, force=True)

    def finish(self) -> None:
        """The sweep is done: its files are the user's."""
        for file in self._unfinished.iterdir():
            file.replace(self._folder / file.name)


_Record = TypeVar("_Record", EngineFacts, EngineRun)


class PairEvaluator:
    """Measures candidates on the same samples, by their outputs against those of FP32.

    Attributes:
        subset: the samples.
    """

    def __init__(
        self,
        context: Context,
        subset: SampleSubset,
        metric: TaskMetric | None,
    ) -> None:
        self._context, self.subset, self._metric, self._memo = context, subset, metric, context.memo
        self._references: dict[tuple[str, bool], _Reference] = {}

    def simulated(self, pair: ModelPair) -> OutputErrors:
        """Errors of the candidate on the backend of the context.

        Raises:
            UsageError: the candidate lacks outputs of the reference.
            QdebugError: the reference does not run, samples cannot be read, or the metric raised.
        """
        one = as_it_is(pair.candidate.proto, self._context.simulation)
        return self._reference(pair, here=False).errors(pair, one)

    def of_engine(self, pair: ModelPair, proto: onnx.ModelProto, engine: _Opened) -> OutputErrors:
        """Errors of an engine that was built of `proto`, in this process; raises as `simulated`."""
        return self._reference(pair, here=True).errors(pair, Variant(lambda: proto, engine))

    def key(self, pair: ModelPair) -> str | None:
        """A digest of all that decides the errors of an engine besides itself; None where nothing
        may be kept."""
        metric = self._metric.key if self._metric else ""
        if self._memo is None or metric is None:
            return None
        operators = self._context.sessions.operators_digest
        labels = self.subset.samples.digest
        return digest_of(reference_key(pair, self.subset.samples, operators), labels, metric)

    def _reference(self, pair: ModelPair, *, here: bool) -> _Reference:
        key = model_digest(pair.reference.proto), here
        if key not in self._references:
            context = self._context
            subset = sized(context, pair.reference, self.subset)
            context = replace(context, executor=THIS_PROCESS) if here else context
            runner = runner_of(context, subset)
            self._references[key] = _Reference(context, pair, runner, self._metric)
        return self._references[key]


class _Reference:
    """A network in FP32, with which candidates are compared."""

    def __init__(
        self, context: Context, pair: ModelPair, runner: Runner, metric: TaskMetric | None
    ) -> None:
        graph = pair.reference
        self._runner, self._variant = runner, as_it_is(graph.proto, context.backend)
        self._evaluator = OutputEvaluator(
            runner, graph, self._variant, metric, options=output_options(graph)
        )

    def errors(self, pair: ModelPair, candidate: Variant) -> OutputErrors:
        """Those of a candidate. Raises as PairEvaluator.simulated."""
        graph = pair.reference
        names = {t: pair.tensors.get(t, t) for t in graph.outputs if graph.is_array(t)}
        if not {*names.values()} <= {*pair.candidate.outputs}:
            raise UsageError(
                f"the reference has outputs that the model does not have: {', '.join(names)}",
                "Give the FP32 model that the quantized one was made from.",
                code="QD-USAGE-REFERENCE",
            )
        task = self._evaluator.task
        found: Evaluated | QdebugError = self._evaluator.evaluated(
            {CANDIDATE: replace(candidate, capture=names)}, "evaluate", attempt=True
        )[CANDIDATE]
        if isinstance(found, QdebugError):
            # Where FP32 does not run either, that is not the candidate's failure.
            self._runner.run({REFERENCE: self._variant}, {REFERENCE: Outputs(REFERENCE)})
            return OutputErrors({}, None, None, found.message)
        metrics = found.errors.metrics()
        if task is None:
            return OutputErrors(metrics, None, None)
        outputs, count = joined(found.outputs), self._runner.subset.count
        return OutputErrors(
            metrics,
            task(outputs),
            task.of_reference(),
            interval=score_interval(task, outputs, count),
            reference_interval=self._interval,
        )

    @cached_property
    def _interval(self) -> Interval | None:
        task = self._evaluator.task
        return reference_interval(task, self._runner.subset.count) if task else None


@dataclass(frozen=True)
class FoundEngine:
    """What is known of an engine.

    Attributes:
        built: the engine itself, where it is at hand.
    """

    facts: EngineFacts
    built: BuiltEngine | None = None


@dataclass(frozen=True)
class _Opened:
    """Executes an engine that was built of the model. See Backend."""

    runtime: EngineRuntime
    built: BuiltEngine

    @property
    def name(self) -> str:
        """See Backend."""
        return self.runtime.name

    def open(self, proto: onnx.ModelProto, capture: Sequence[str] = ()) -> EngineSession:
        """See Backend."""
        return self.runtime.clean(proto, self.built)


def facts_of(
    runtime: EngineRuntime, pair: ModelPair, *, not_run: str, memo: Memo | None
) -> FoundEngine | Failure:
    """Build and audit, or take what an earlier run found. A failure is not kept: the next run tries
    again.

    Args:
        runtime: fitted to the samples.
    """
    try:
        key = digest_of("engine", runtime.key(_request(runtime, pair)), pair.precisions)
        facts = _kept(memo, key, EngineFacts) if runtime.keeps else None
        if facts:
            return FoundEngine(replace(facts, cached=True))
        engine = engine_of(runtime, pair, not_run=not_run)
    except QdebugError as error:
        return Failure(error.message, error.hint, tuple(getattr(error, "__notes__", ())))
    facts = _facts(engine)
    if runtime.keeps and memo:
        memo.put(key, facts)
    return FoundEngine(facts, engine.built)


def built_of(runtime: EngineRuntime, pair: ModelPair, found: FoundEngine) -> BuiltEngine:
    """The engine that was `found`; built again where it is no longer cached.

    Raises:
        QdebugError: it cannot be built any more.
    """
    return found.built or runtime.build(_request(runtime, pair))


def executed(
    runtime: EngineRuntime,
    pair: ModelPair,
    found: FoundEngine,
    evaluator: PairEvaluator,
    memo: Memo | None,
) -> EngineRun:
    """Execute an engine that was found, over all samples, or take what an earlier run measured.

    Raises:
        QdebugError: the reference does not run, samples cannot be read, or the metric raised.
    """
    proto, outputs_key = _request(runtime, pair), evaluator.key(pair)
    key = digest_of("execution", runtime.key(proto), outputs_key, runtime.device_name)
    keeps = runtime.keeps and outputs_key is not None
    kept = _kept(memo, key, EngineRun) if keeps else None
    if kept:
        return kept
    try:
        engine = _Opened(runtime, built_of(runtime, pair, found))
        errors = evaluator.of_engine(pair, proto, engine)
        if errors.failure:
            return EngineRun(errors, None)
        samples = evaluator.subset.samples
        first = next(samples.batches())
        with closing(engine.open(proto)) as session:
            run = EngineRun(errors, session.latency_ms(samples.feeds(first.start, first.count)))
    except (BackendError, ModelError) as error:
        return EngineRun(OutputErrors({}, None, None, error.message), None)
    if keeps and memo:
        memo.put(key, run)
    return run


def _request(runtime: EngineRuntime, pair: ModelPair) -> onnx.ModelProto:
    return build_request(runtime.typing, pair).graph.proto


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


def _kept(memo: Memo | None, key: str, kind: type[_Record]) -> _Record | None:
    found = memo.get(key) if memo else None
    return found if isinstance(found, kind) else None
