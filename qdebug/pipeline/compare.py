"""`qdebug compare`, whole: load, calibrate, lower, run in lockstep, measure, judge, store."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from qdebug.calibrate.histogram import TensorHistogram
from qdebug.calibrate.methods import parse_method
from qdebug.config import CompareSettings
from qdebug.errors import MetricError, StoreError, UsageError
from qdebug.measure.compare import Errors
from qdebug.measure.conditions import Condition, parse_condition
from qdebug.measure.result import CompareResult, TaskResult
from qdebug.measure.task import TaskMetric, load_metric
from qdebug.model.prepare import Model
from qdebug.model.samples import Samples, open_samples
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
from qdebug.pipeline.ranges import calibrated, gather_ranges
from qdebug.pipeline.results import (
    CONDITION_NAMES,
    all_skipped,
    first_divergence,
    layer_results,
    tensor_results,
    verdict_of,
)
from qdebug.pipeline.sizing import Parallelism, capture_groups, parallelism, probe
from qdebug.pipeline.subject import (
    Subject,
    bind,
    load_model,
    plan_from,
    planned_subject,
    quantized_subject,
    ranges_of,
)
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.planfile import plan_to_yaml
from qdebug.report.jsonout import compare_to_json
from qdebug.run.base import Backend
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
        QdebugError: bad input (nothing was written), or a runtime that failed.
    """
    started = time.perf_counter()
    gate = _read_gate(settings)
    keep = Keep.parse(settings.keep)
    with ExitStack() as stack:
        stored = _open_stored(stack, settings)
        writer = _open_writer(stack, settings, keep)
        plan = plan_from(settings)
        model = load_model(settings, plan)
        samples = _open(settings.inputs, model, settings.samples, settings.batch_size)
        parallel = parallelism()
        backend = OrtBackend(parallel.threads)
        subject, histograms = _subject(settings, plan, model, samples, backend, parallel, progress)
        if settings.save_plan and subject.plan:
            _save_plan(settings, subject.plan)
        key = reference_key(subject, samples)
        rows = _stored_rows(stored, key)
        outputs = TaskOutputs()
        sinks = _sinks(writer, keep, subject, outputs if gate.metric else None)
        errors, not_float = _run(
            settings, subject, samples, backend, parallel, rows, sinks, progress
        )
        result = _result(settings, subject, samples, gate, errors, not_float, outputs)
        if rows is not None and rows.used:
            note = f"The reference was read from {settings.reference or settings.output}."
            result = replace(result, notes=(*result.notes, note))
        result = replace(result, timings_s={"total": time.perf_counter() - started})
        run_file = None
        if writer is not None:
            writer.set_manifest(manifest_of(settings, subject, samples, key))
            if subject.plan:
                writer.set_plan(plan_to_yaml(subject.plan, settings.model))
            writer.set_ranges({n: _range_record(h) for n, h in histograms.items()})
            run_file = writer.finish(json.dumps(compare_to_json(result), ensure_ascii=False))
    return CompareOutcome(result, run_file)


def _read_gate(settings: CompareSettings) -> _Gate:
    conditions = tuple(parse_condition(text, CONDITION_NAMES) for text in settings.fail_on)
    metric = load_metric(settings.metric) if settings.metric else None
    if metric is None and any(c.scope == "metric" for c in conditions):
        raise MetricError(
            "--fail-on asks for 'metric', but no --metric is given",
            "Add --metric top1, --metric agreement or --metric file.py:function.",
        )
    return _Gate(conditions, metric)


def _open(data: str, model: Model, limit: int | None, batch_size: int | None) -> Samples:
    return open_samples(data, model.graph.inputs, limit=limit, batch_size=batch_size)


def _open_stored(stack: ExitStack, settings: CompareSettings) -> RunReader | None:
    """The run file whose reference may be reused: the one named, or the one to be replaced."""
    named = settings.reference
    if named and Path(named).suffix != ".onnx":
        return stack.enter_context(RunReader(named))
    if settings.output and settings.force and Path(settings.output).exists():
        try:
            return stack.enter_context(RunReader(settings.output))
        except StoreError:
            return None  # it is to be replaced, whatever it is
    return None


def _open_writer(stack: ExitStack, settings: CompareSettings, keep: Keep) -> RunWriter | None:
    if settings.output is None:
        return None
    return stack.enter_context(
        RunWriter(settings.output, overwrite=settings.force, keep=keep, dtype=settings.keep_dtype)
    )


def _subject(
    settings: CompareSettings,
    plan: PrecisionPlan,
    model: Model,
    samples: Samples,
    backend: Backend,
    parallel: Parallelism,
    progress: ProgressCallback,
) -> tuple[Subject, dict[str, TensorHistogram]]:
    """What to compare; calibrates where the plan needs ranges that it does not have."""
    if model.quantized:
        return quantized_subject(model, settings), {}
    if settings.reference and Path(settings.reference).suffix == ".onnx":
        raise UsageError(
            f"--reference: {settings.model} is an FP32 model and is its own reference",
            "Give --reference only with a model that carries Q/DQ, or a run file (.h5) to reuse.",
        )
    calibrator = parse_method(settings.method)
    bound = bind(plan, model)
    if not bound.missing_ranges():
        return planned_subject(model, bound), {}
    notes = []
    data = settings.calib_data
    if data is None:
        notes.append(
            "No --calib-data: the ranges come from the compared samples themselves, which flatters "
            "the result."
        )
    calibration = samples if data is None else _open(data, model, settings.calib_samples, None)
    histograms = gather_ranges(
        backend, model.graph, calibration, settings.batch_size, parallel, progress
    )
    amax = calibrated(histograms, bound.missing_ranges(), calibrator)
    where = f"{calibrator.name} of {calibration.count} samples of {data or settings.inputs}"
    plan = replace(
        plan.with_ranges(ranges_of(amax, calibrator.name), where), model_sha256=model.file.sha256
    )
    subject = planned_subject(model, bind(plan, model))
    return replace(subject, notes=tuple(notes)), histograms


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
    settings: CompareSettings,
    subject: Subject,
    samples: Samples,
    backend: Backend,
    parallel: Parallelism,
    stored: StoredReference | None,
    sinks: Sequence[ExecutionSink],
    progress: ProgressCallback,
) -> tuple[Errors, list[str]]:
    """All groups, one after the other; usually a single one."""
    tensors = [t for t in subject.tensors if t in subject.reference.producers]
    probing = backend.open(subject.reference.proto, tensors)
    try:
        sizing = probe(probing, samples, settings.batch_size)
    finally:
        probing.close()
    in_flight = parallel.workers + 1
    groups = capture_groups(tensors, sizing.bytes_per_batch, in_flight, settings.memory_budget)
    rated = any(isinstance(sink, EvidenceSink) and sink.rates for sink in sinks)
    options = PassOptions(parallel.workers, settings.local_samples, stored, sinks)
    total = Errors()
    not_float: list[str] = []
    for group in groups:
        for sink in sinks:
            if isinstance(sink, EvidenceSink):
                sink.start_group()
        with ExitStack() as stack:
            one = open_pass(stack, backend, subject, group, rated=rated)
            errors = run_pass(one, sizing.samples, options, progress)
        total.tensors.update(errors.tensors)
        total.local.update(errors.local)
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
    outputs: TaskOutputs,
) -> CompareResult:
    tensors = tensor_results(subject, errors)
    layers = layer_results(subject, errors)
    named = {t.name: t for t in tensors}
    finals = tuple(named[name] for name in subject.reference.outputs if name in named)
    task = _task(gate.metric, outputs, samples)
    return CompareResult(
        model_path=settings.model,
        model_sha256=subject.model.file.sha256,
        backend=settings.backend,
        precision=_precision(subject),
        samples=samples.count,
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


def _task(metric: TaskMetric | None, outputs: TaskOutputs, samples: Samples) -> TaskResult | None:
    if metric is None:
        return None
    reference, candidate = outputs.joined()
    return TaskResult(
        metric.name,
        reference=metric(reference, samples.extras, reference),
        candidate=metric(candidate, samples.extras, reference),
    )


def _stored_rows(reader: RunReader | None, key: str) -> StoredRows | None:
    if reader is None or reader.manifest.get("reference_key") != key:
        return None
    return StoredRows(reader)


def _save_plan(settings: CompareSettings, plan: PrecisionPlan) -> None:
    path = Path(settings.save_plan or "")
    if path.exists() and not settings.force:
        raise StoreError(f"--save-plan: {path} exists", "Give --force to replace it.")
    path.write_text(plan_to_yaml(plan, settings.model), encoding="utf-8")


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
