"""`qdebug compare`, whole: load, calibrate, lower, run in lockstep, measure, judge, store."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from qdebug.calibrate.histogram import TensorHistogram
from qdebug.config import CompareSettings
from qdebug.errors import MetricError, StoreError
from qdebug.measure.compare import Errors
from qdebug.measure.conditions import Condition, parse_condition
from qdebug.measure.result import CompareResult, TaskResult
from qdebug.measure.task import TaskMetric, load_metric
from qdebug.model.samples import Samples, open_samples
from qdebug.pipeline.build import build_subject, load_model, names_model, plan_from
from qdebug.pipeline.context import Context
from qdebug.pipeline.evidence import EvidenceSink, StoredRows
from qdebug.pipeline.manifest import manifest_of, reference_key
from qdebug.pipeline.passes import (
    ExecutionSink,
    PassOptions,
    StoredReference,
    TaskOutputs,
    open_pass,
    run_pass,
)
from qdebug.pipeline.results import (
    CONDITION_NAMES,
    all_skipped,
    first_divergence,
    layer_results,
    tensor_results,
    verdict_of,
)
from qdebug.pipeline.sizing import capture_groups, parallelism, probe
from qdebug.pipeline.subject import Subject
from qdebug.plan.planfile import plan_to_yaml
from qdebug.report.jsonout import compare_to_json
from qdebug.run.ort import OrtBackend
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep, RangeRecord
from qdebug.store.writer import RunWriter
from qdebug.types import Precision, ProgressCallback, ignore_progress


@dataclass(frozen=True)
class CompareOutcome:
    """The result, and the run file if one was written."""

    result: CompareResult
    run_file: Path | None


@dataclass(frozen=True)
class _Gate:
    """What is judged, read before any work so that a slip in it costs nothing."""

    conditions: tuple[Condition, ...]
    metric: TaskMetric | None


def compare(
    settings: CompareSettings, progress: ProgressCallback = ignore_progress
) -> CompareOutcome:
    """Compare the candidate that `settings` describe with its reference.

    Raises:
        QdebugError: bad input (nothing was written), a runtime that failed, or a metric that
            raised (the run file holds everything else).
    """
    started = time.perf_counter()
    gate = _read_gate(settings)
    keep = Keep.parse(settings.keep)
    _check_free(settings.save_plan, "--save-plan", settings.force)
    with ExitStack() as stack:
        stored = _open_stored(stack, settings)
        plan = plan_from(settings)
        model = load_model(settings.model, plan)
        samples = open_samples(
            settings.inputs,
            model.graph.inputs,
            limit=settings.samples,
            batch_size=settings.batch_size,
        )
        writer = _open_writer(stack, settings, keep, samples.count)
        parallel = parallelism()
        context = Context(settings, OrtBackend(parallel.threads), parallel, progress)
        built = build_subject(context, plan, model, samples)
        subject = built.subject
        if settings.save_plan and subject.plan:
            _save_plan(settings.save_plan, plan_to_yaml(subject.plan, settings.model))
        # The digest of the samples costs a pass over them: only for files that will hold it.
        key = reference_key(subject, samples) if writer or stored else ""
        rows = _stored_rows(stored, key)
        outputs = TaskOutputs()
        sinks = _sinks(writer, keep, subject, outputs if gate.metric else None)
        errors, not_float = _run(context, subject, samples, rows, sinks)
        task, failure = _task(gate.metric, outputs, samples)
        result = _result(settings, subject, samples, gate, errors, not_float, task)
        if rows is not None and rows.used:
            note = f"The reference was read from {settings.reference or settings.output}."
            result = replace(result, notes=(*result.notes, note))
        result = replace(result, timings_s={"total": time.perf_counter() - started})
        run_file = None
        if writer is not None:
            writer.set_manifest(manifest_of(settings, subject, samples, key))
            if subject.plan:
                writer.set_plan(plan_to_yaml(subject.plan, settings.model))
            writer.set_ranges({n: _range_record(h) for n, h in built.histograms.items()})
            run_file = writer.finish(json.dumps(compare_to_json(result), ensure_ascii=False))
    if failure is not None:
        raise failure
    return CompareOutcome(result, run_file)


def _check_free(path: str | None, flag: str, force: bool) -> None:
    if path is not None and Path(path).exists() and not force:
        raise StoreError(f"{flag}: {path} exists", "Give --force to replace it.")


def _save_plan(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"--save-plan: {path} cannot be written: {error.strerror}") from error


def _read_gate(settings: CompareSettings) -> _Gate:
    conditions = tuple(parse_condition(text, CONDITION_NAMES) for text in settings.fail_on)
    metric = load_metric(settings.metric) if settings.metric else None
    if metric is None and any(c.scope == "metric" for c in conditions):
        raise MetricError(
            "--fail-on asks for 'metric', but no --metric is given",
            "Add --metric top1, --metric agreement or --metric file.py:function.",
        )
    return _Gate(conditions, metric)


def _open_stored(stack: ExitStack, settings: CompareSettings) -> RunReader | None:
    """The run file whose reference may be reused: the one named, or the one to be replaced."""
    named = settings.reference
    if named and not names_model(named):
        return stack.enter_context(RunReader(named))
    if settings.output and settings.force and Path(settings.output).exists():
        try:
            return stack.enter_context(RunReader(settings.output))
        except StoreError:
            return None  # it is to be replaced, whatever it is
    return None


def _open_writer(
    stack: ExitStack, settings: CompareSettings, keep: Keep, samples: int
) -> RunWriter | None:
    if settings.output is None:
        return None
    writer = RunWriter(
        settings.output,
        overwrite=settings.force,
        keep=keep,
        dtype=settings.keep_dtype,
        expected_rows=samples if keep.kind == "all" else 0,
    )
    return stack.enter_context(writer)


def _sinks(
    writer: RunWriter | None, keep: Keep, subject: Subject, outputs: TaskOutputs | None
) -> list[ExecutionSink]:
    sinks: list[ExecutionSink] = []
    if writer is not None and keep.kind != "none":
        sinks.append(EvidenceSink(writer, keep, subject.tensors))
    if outputs is not None:
        sinks.append(lambda execution, _: outputs.add(execution, subject))
    return sinks


def _run(
    context: Context,
    subject: Subject,
    samples: Samples,
    stored: StoredReference | None,
    sinks: Sequence[ExecutionSink],
) -> tuple[Errors, list[str]]:
    """All groups, one after the other; usually a single one."""
    settings, workers = context.settings, context.parallel.workers
    tensors = [t for t in subject.tensors if t in subject.reference.producers]
    probing = context.backend.open(subject.reference.proto, tensors)
    try:
        sizing = probe(probing, samples, settings.batch_size)
    finally:
        probing.close()
    groups = capture_groups(tensors, sizing.bytes_per_batch, workers + 1, settings.memory_budget)
    rated = any(isinstance(sink, EvidenceSink) and sink.rates for sink in sinks)
    options = PassOptions(workers, settings.local_samples, stored, sinks)
    total = Errors()
    not_float: list[str] = []
    for group in groups:
        for sink in sinks:
            if isinstance(sink, EvidenceSink):
                sink.start_group()
        with ExitStack() as stack:
            one = open_pass(stack, context.backend, subject, group, rated=rated)
            errors = run_pass(one, sizing.samples, options, context.progress)
        total.tensors.update(errors.tensors)
        total.local.update(errors.local)
        total = replace(total, local_samples=max(total.local_samples, errors.local_samples))
        total.skipped.update(errors.skipped)
        not_float += one.not_float
    return total, not_float


def _result(
    settings: CompareSettings,
    subject: Subject,
    samples: Samples,
    gate: _Gate,
    errors: Errors,
    not_float: Sequence[str],
    task: TaskResult | None,
) -> CompareResult:
    tensors = tensor_results(subject, errors)
    layers = layer_results(subject, errors)
    named = {t.name: t for t in tensors}
    finals = tuple(named[name] for name in subject.reference.outputs if name in named)
    return CompareResult(
        model_path=settings.model,
        model_sha256=subject.model.file.sha256,
        backend=settings.backend,
        precision=_precision(subject),
        samples=samples.count,
        local_samples=errors.local_samples,
        verdict=verdict_of(gate.conditions, finals, layers, tensors, task),
        outputs=finals,
        layers=layers,
        tensors=tensors,
        first_divergence=first_divergence(subject, tensors),
        skipped=all_skipped(subject, errors, not_float),
        task=task,
        notes=subject.notes,
    )


def _precision(subject: Subject) -> str:
    if subject.plan is not None:
        return str(subject.plan.precision)
    return str(Precision.INT8)


def _task(
    metric: TaskMetric | None, outputs: TaskOutputs, samples: Samples
) -> tuple[TaskResult | None, MetricError | None]:
    """The metric of both runs; its failure is kept until everything else is safe on disk."""
    if metric is None:
        return None, None
    reference, candidate = outputs.joined()
    try:
        before = metric(reference, samples.extras, reference)
        return TaskResult(metric.name, before, metric(candidate, samples.extras, reference)), None
    except MetricError as failure:
        return None, failure


def _stored_rows(reader: RunReader | None, key: str) -> StoredRows | None:
    if reader is None or reader.manifest.get("reference_key") != key:
        return None
    return StoredRows(reader)


def _range_record(histogram: TensorHistogram) -> RangeRecord:
    return RangeRecord(
        scalars={
            "low": histogram.low,
            "high": histogram.high,
            "amax": histogram.amax,
            "count": histogram.count,
            "zeros": histogram.zeros,
            "nan_count": histogram.nan_count,
            "inf_count": histogram.inf_count,
            "total": histogram.total,
            "total_sq": histogram.total_sq,
            "first_bin": histogram.first_bin,
        },
        arrays={"bins": histogram.bins},
    )
