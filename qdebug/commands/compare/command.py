"""`qdebug compare`, whole: load, calibrate, lower, run in lockstep, measure, check, store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache, partial

from qdebug.analyse.diagnose import diagnosed
from qdebug.analyse.effect.effects import NoiseSink, measure_effects
from qdebug.analyse.engine import with_engine
from qdebug.analyse.flips import FlipSink, with_comparisons, with_flips
from qdebug.analyse.gate import (
    Gate,
    check_metric,
    checked_conditions,
    metric_notes,
    read_gate,
    task_result,
)
from qdebug.analyse.layer_results import (
    all_skipped,
    correspondence,
    effect_notes,
    first_divergence,
    layer_results,
    overflow_notes,
    ranked_by_effect,
    tensor_results,
    with_predictions,
)
from qdebug.analyse.run_file import (
    EvidenceSink,
    open_stored,
    reuse_notes,
    stored_rows,
)
from qdebug.analyse.shards import Sinks, run_on_workers
from qdebug.analyse.summary import with_summary
from qdebug.backends.engine import EngineRuntime
from qdebug.backends.sizing import parallelism
from qdebug.commands.compare.keeping import DEFAULT, Keeping
from qdebug.commands.compare.remedies import with_remedies
from qdebug.config.compare import CompareSettings
from qdebug.config.engine import check_engine_flags
from qdebug.errors import UsageError
from qdebug.execute.cluster.machines import open_executor
from qdebug.execute.context import Context, session_settings, simulation_context
from qdebug.execute.engine.build import check_requested, engine_of, fitted, open_runtime
from qdebug.execute.engine.request import check_model
from qdebug.execute.evaluator import OutputKeeper
from qdebug.execute.gather import to_records
from qdebug.execute.lockstep import Measured, StoredReference, due_of, run_within
from qdebug.execute.model_pair import (
    Built,
    build_pair,
    is_in_fp16,
    load_model,
    names_model,
    plan_from,
    share_pair,
)
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ErrorTotals
from qdebug.metrics.effect import EffectMode
from qdebug.metrics.task import TaskMetric
from qdebug.network.prepare import Model
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import whole
from qdebug.outputfiles import write_text
from qdebug.plan.description import describe
from qdebug.plan.lower import required_opset
from qdebug.plan.pair import ModelPair
from qdebug.plan.planfile import plan_to_yaml
from qdebug.result import ModelRef
from qdebug.results.compare import CompareResult
from qdebug.stages import attempted, with_failure
from qdebug.store.manifest import manifest_of, reference_key
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter
from qdebug.types import Array, Fp16Kernels, Precision, ProgressCallback, ignore_progress
from qdebug.wording import option

_OUTPUTS_SHARE = 1 / 8
"""Of the memory budget, for the FP32 outputs: kept, FP32 need not run once more."""


def compare(
    settings: CompareSettings, progress: ProgressCallback = ignore_progress
) -> CompareResult:
    """Compare the candidate that `settings` describe with its reference.

    A stage that fails after the tensors were compared is listed in the result's `failed`.

    Raises:
        QdebugError: bad input (nothing was written), or a runtime that failed.
    """
    started = time.perf_counter()
    gate, keep, runtime = _checked(settings, progress)
    with ExitStack() as stack:
        stored = open_stored(stack, settings.reference, settings.output if settings.force else None)
        spec = settings.quantization
        plan = plan_from(spec)
        check_requested(settings.backend, plan)
        model = load_model(
            settings.model,
            plan,
            spec.samples,
            session_settings(settings),
            progress,
            in_fp16=names_model(settings.reference) or plan.precision is not Precision.INT8,
        )
        if runtime is not None:
            check_model(runtime.typing, model)
        samples = _samples(settings, model, gate)
        writer = _open_writer(stack, settings, keep, samples.count)
        context = _context(stack, settings, model, required_opset(plan), progress)
        built = build_pair(spec, context, plan, model, samples, saves_plan=bool(settings.save_plan))
        pair = built.pair
        # Before the simulation, so that a model that cannot be built fails at once.
        engine = None
        if runtime is not None:
            engine = engine_of(fitted(runtime, pair.candidate, samples), pair)
        # The digest of the samples costs a pass over them: only for files that will hold it.
        key = (
            reference_key(pair, samples, context.sessions.operators_digest)
            if writer or stored
            else ""
        )
        rows = stored_rows(stored, key)
        evidence = _evidence(writer, keep, pair)
        keeping = _keeping(settings, writer, evidence, built, samples.count)
        kept = _keepers(settings, gate, pair)
        flips, noise = FlipSink(context, pair), NoiseSink(pair)
        sinks = Sinks(flips, noise, evidence, kept, keeping or (lambda _: None))
        share_pair(context.executor, pair)
        if context.executor.workers:
            how = settings.memory_budget, settings.local_samples
            errors, not_float = run_on_workers(*how, context, pair, samples, sinks)
        else:
            errors, not_float = _run(settings, context, pair, samples, rows, sinks)
        # The tensors are measured: whatever fails from here on, they are shown and written.
        result = _result(settings, pair, samples, errors, not_float)
        result = _analysed(settings, gate, context, pair, samples, sinks, result)
        if engine is not None:
            execute = partial(with_engine, engine, settings, gate, pair, samples, context)
            result = attempted("engine", result, lambda r: execute(r, evidence))
        result = replace(
            result,
            notes=(
                *result.notes,
                *reuse_notes(stored, rows, key, samples.count, settings.reference),
                *((keeping.note,) if keeping and keeping.note else ()),
            ),
            timings_s={"total": time.perf_counter() - started},
        )
        result = attempted(
            option("save_plan"),
            result,
            lambda r: _with_saved_plan(settings, pair, r),
            file=settings.save_plan or "",
        )
        if writer is not None:
            unsplit = evidence.unsplit if evidence else ()
            operators = context.sessions.operators_digest
            manifest = partial(
                manifest_of, asdict(settings), pair, samples, key, unsplit, operators
            )
            finish = partial(_with_run_file, writer, built, manifest)
            result = attempted("run file", result, finish)
    return result


def _analysed(
    settings: CompareSettings,
    gate: Gate,
    context: Context,
    pair: ModelPair,
    samples: Samples,
    sinks: Sinks,
    result: CompareResult,
) -> CompareResult:
    """`result`, the errors of the tensors, with all that follows from the simulation: the metric,
    effects, the verdict, causes, what the leading layers cost together, and remedies."""
    where = context, pair, samples
    if gate.metric is not None:
        score = partial(task_result, gate.metric, samples, *sinks.keepers)
        result = attempted("metric", result, lambda r: replace(r, metric=score()))
    told = metric_notes(result.metric, samples.count, gate)
    result = replace(result, notes=(*told, *result.notes))
    # A metric that raised on all samples is not asked again.
    metric = gate.metric if result.metric else None
    result = attempted(
        "effects at the outputs",
        result,
        lambda r: _with_effects(settings, *where, r, gate, metric, sinks.noise.noise),
    )
    result = _judged(gate, result)
    causes = partial(_explained, *where, sinks.flips)
    explain = cache(partial(attempted, "causes", result, causes))
    try:
        result = with_summary(context, pair, sinks.keepers[0], result, explain, samples, metric)
    except Exception as error:
        result = with_failure(explain(), "effect of the leading layers together", error)
    return attempted("remedies", result, lambda r: _with_remedies(settings, *where, r, metric))


def _keepers(settings: CompareSettings, gate: Gate, pair: ModelPair) -> tuple[OutputKeeper, ...]:
    """What keeps the outputs of both runs for the metric; without one FP32's, where they fit."""
    both = {*pair.tensors, *pair.candidate.outputs}
    outputs = [t for t in pair.reference.outputs if t in both]
    if gate.metric is not None:
        return tuple(OutputKeeper(run, outputs, for_metric=True) for run in (REFERENCE, CANDIDATE))
    return (OutputKeeper(REFERENCE, outputs, settings.memory_budget * _OUTPUTS_SHARE),)


def _context(
    stack: ExitStack,
    settings: CompareSettings,
    model: Model,
    opset: int,
    progress: ProgressCallback,
) -> Context:
    """Where the work on `model` is done, which was opened at `opset`. Raises as `open_executor`."""
    executor = open_executor(stack, settings)
    executor.share_model(model, settings.model, opset)
    kernels = Fp16Kernels(settings.fp16_kernels)
    sessions = session_settings(settings)
    return simulation_context(
        parallelism(), progress, sessions, settings.batch_size, kernels, executor
    )


def _plan_text(pair: ModelPair, model: str) -> str:
    """The plan that was run, as YAML; "" without one."""
    return plan_to_yaml(pair.plan, model) if pair.plan else ""


def _with_saved_plan(
    settings: CompareSettings, pair: ModelPair, result: CompareResult
) -> CompareResult:
    """`result`, with the plan written where the user wants it."""
    if settings.save_plan:
        text = _plan_text(pair, settings.model)
        write_text(settings.save_plan, text, option("save_plan"), force=settings.force)
    return result


def _samples(settings: CompareSettings, model: Model, gate: Gate) -> Samples:
    samples = settings.compared.open(model.graph.inputs)
    check_metric(gate.metric, model, samples)
    return samples


def _with_run_file(
    writer: RunWriter,
    built: Built,
    manifest: Callable[[], Mapping[str, object]],
    result: CompareResult,
) -> CompareResult:
    """`result`, which is in the run file then, and says where that is."""
    pair = built.pair
    writer.set_manifest(manifest())
    writer.set_plan(_plan_text(pair, result.model.path))
    writer.set_network(describe(pair.reference, pair.layers, pair.grids).to_text())
    if built.gathered:
        writer.set_ranges(to_records(built.gathered))
    file = writer.finish(json.dumps(result.to_dict(), ensure_ascii=False))
    return replace(result, run_file=file)


def _checked(
    settings: CompareSettings, progress: ProgressCallback
) -> tuple[Gate, Keep, EngineRuntime | None]:
    """What can be read, and refused, before any work."""
    check_engine_flags(settings)
    _check_reference(settings)
    gate, keep = read_gate(settings.fail_on, settings.metric), DEFAULT
    if settings.keep is not None:
        keep = Keep.parse(settings.keep)
    return (
        gate,
        keep,
        open_runtime(
            settings,
            cached=settings.cache,
            sessions=session_settings(settings),
            progress=progress,
        ),
    )


def _check_reference(settings: CompareSettings) -> None:
    """Refuse a run file to read reference activations from, which workers do not.

    Raises:
        UsageError: there is one, and there are workers.
    """
    if settings.cluster and settings.reference and not names_model(settings.reference):
        raise UsageError(
            f"{option('cluster')}: workers do not read the activations of "
            f"{option('reference', settings.reference)}: they run FP32 themselves",
            f"Leave {option('reference')} out.",
            code="QD-USAGE-CLUSTER",
        )


def _open_writer(
    stack: ExitStack, settings: CompareSettings, keep: Keep, samples: int
) -> RunWriter | None:
    if settings.output is None:
        return None
    writer = RunWriter(
        settings.output,
        overwrite=settings.force,
        keep=keep,
        dtype=settings.keep_dtype or "float32",
        expected_rows=samples,
    )
    return stack.enter_context(writer)


def _evidence(writer: RunWriter | None, keep: Keep, pair: ModelPair) -> EvidenceSink | None:
    if writer is None or keep.kind == "none":
        return None
    return EvidenceSink(writer, keep, pair.tensors)


def _keeping(
    settings: CompareSettings,
    writer: RunWriter | None,
    evidence: EvidenceSink | None,
    built: Built,
    samples: int,
) -> Keeping | None:
    if writer is None or evidence is None:
        return None
    asked = None if settings.keep is None else Keep.parse(settings.keep)
    half = Precision.FP16 in built.pair.precisions.values()
    seen = built.gathered.histograms.values() if built.gathered else ()
    histograms = float(sum(histogram.table.nbytes for histogram in seen))
    runs = 2 if settings.backend == CompareSettings.backend else 3
    return Keeping(
        writer, evidence, asked, settings.keep_dtype, samples, runs, not half, histograms
    )


def _run(
    settings: CompareSettings,
    context: Context,
    pair: ModelPair,
    samples: Samples,
    stored: StoredReference | None,
    sinks: Sinks,
) -> tuple[ErrorTotals, list[str]]:
    """See `run_within`."""
    evidence = sinks.evidence

    def next_group() -> None:
        if evidence is not None:
            evidence.start_group()

    measured = Measured(
        due=lambda subset: due_of(pair, subset, settings.local_samples),
        rated=evidence is not None and evidence.rates,
        decomposed=True,
        stored=stored,
        sinks=sinks.each,
        next_group=next_group,
        sized=sinks.sized,
    )
    budget = settings.memory_budget
    return run_within(budget, context, pair, whole(samples), measured, resize=True)


def _result(
    settings: CompareSettings,
    pair: ModelPair,
    samples: Samples,
    errors: ErrorTotals,
    not_float: Sequence[str],
) -> CompareResult:
    """What the pass over the samples measured."""
    tensors = tensor_results(pair, errors)
    layers = with_predictions(pair, layer_results(pair, errors), settings.fp16_kernels)
    named = {t.name: t for t in tensors}
    finals = tuple(named[name] for name in pair.reference.outputs if name in named)
    half = Precision.FP16 in pair.precisions.values()
    return CompareResult(
        model=ModelRef(settings.model, pair.model.file.sha256),
        backend=settings.backend,
        precision=str(pair.precision),
        samples=samples.count,
        local_samples=errors.local_samples,
        outputs=finals,
        layers=layers,
        tensors=tensors,
        first_divergence=first_divergence(layers, pair),
        reference_in_fp16=is_in_fp16(pair.reference),
        skipped=all_skipped(pair, errors, not_float),
        correspondence=correspondence(pair),
        notes=(*pair.notes, *overflow_notes(finals, layers)),
        fp16_kernels=Fp16Kernels(settings.fp16_kernels) if half else None,
    )


def _with_effects(
    settings: CompareSettings,
    context: Context,
    pair: ModelPair,
    samples: Samples,
    result: CompareResult,
    gate: Gate,
    metric: TaskMetric | None,
    noise: Array | None,
) -> CompareResult:
    """`result` ranked by what each layer costs at the outputs."""
    found = measure_effects(
        context,
        pair,
        whole(samples),
        EffectMode(settings.effect),
        metric=metric,
        memory_budget=settings.memory_budget,
        known_noise=noise,
        every_layer=gate.judges_effects,
    )
    layers = (
        ranked_by_effect(result.layers, found.layers, found.summary.noise)
        if found
        else result.layers
    )
    return replace(
        result,
        layers=layers,
        effect=found.summary if found else None,
        notes=(
            *result.notes,
            *((*found.notes, *effect_notes(found.summary, layers)) if found else ()),
        ),
    )


def _judged(gate: Gate, result: CompareResult) -> CompareResult:
    """`result` with the verdict on every condition; what was not measured does not hold."""
    conditions = checked_conditions(
        gate.conditions, result.outputs, result.layers, result.tensors, result.metric
    )
    return replace(result, conditions=conditions)


def _explained(
    context: Context, pair: ModelPair, samples: Samples, flips: FlipSink, result: CompareResult
) -> CompareResult:
    """`result` with the causes of the errors."""
    batches = list(samples.batches())
    trusted = result.metric.reference_is_right(samples.count) if result.metric else None
    layers = diagnosed(
        context, pair, samples, batches, result.layers, result.tensors, trusted=trusted
    )
    result = with_flips(replace(result, layers=layers), pair, flips.found)
    return with_comparisons(result, pair, flips.comparisons)


def _with_remedies(
    settings: CompareSettings,
    context: Context,
    pair: ModelPair,
    samples: Samples,
    result: CompareResult,
    metric: TaskMetric | None,
) -> CompareResult:
    """`result` with what remedies give on the leading layers, where that is asked for."""
    if not settings.try_remedies:
        return result
    calibrates_on = settings.quantization.calibrates_on
    calibration = None
    if calibrates_on is not None:
        calibration = whole(calibrates_on.open(pair.model.graph.inputs))
    return with_remedies(
        context,
        pair,
        result,
        whole(samples),
        calibration,
        method=settings.method,
        metric=metric,
        memory_budget=settings.memory_budget,
    )
