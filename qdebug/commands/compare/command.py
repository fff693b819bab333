"""`qdebug compare`, whole: load, calibrate, lower, run in lockstep, measure, check, store."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

from qdebug.analyse.compared import (
    Compared,
    explained,
    judged,
    scored,
    with_metric_notes,
)
from qdebug.analyse.cures import cured
from qdebug.analyse.effect.curves import curved
from qdebug.analyse.effect.effects import ranked
from qdebug.analyse.elsewhere import with_origin
from qdebug.analyse.engine import with_engine
from qdebug.analyse.gate import Gate, check_metric, on_model, read_gate
from qdebug.analyse.groups import grouped
from qdebug.analyse.layer_results import (
    all_skipped,
    correspondence,
    first_divergence,
    layer_results,
    output_results,
    overflow_notes,
    tensor_results,
    unobserved_note,
    with_worst_files,
)
from qdebug.analyse.objects import check_objects
from qdebug.analyse.run_file import (
    Evidence,
    Rows,
    kept_samples,
)
from qdebug.analyse.shown_samples import with_shown_samples
from qdebug.analyse.summary import summarized
from qdebug.analyse.tensor_errors import (
    HELD,
    PairErrors,
    compare_pair,
    reference_and_candidate,
    sized_for,
)
from qdebug.backends.engine import EngineRuntime
from qdebug.backends.sizing import capture_groups
from qdebug.commands.check.trials import suspicions
from qdebug.commands.compare.keeping import Kept, decided
from qdebug.commands.compare.remedies import with_remedies
from qdebug.commands.framework.framework_check import framework_result
from qdebug.commands.reading import read_data
from qdebug.config.compare import CompareSettings
from qdebug.config.engine import check_engine_flags
from qdebug.execute.cluster.machines import open_executor
from qdebug.execute.context import (
    Context,
    context_of,
    held_at_once,
    runner_of,
    session_settings,
)
from qdebug.execute.engine.build import Engine, check_requested, engine_of, fitted, open_runtime
from qdebug.execute.engine.request import check_model
from qdebug.execute.gather import to_records
from qdebug.execute.model_pair import (
    Built,
    build_pair,
    check_reference,
    is_in_fp16,
    load_model,
    plan_from,
)
from qdebug.formats.registry import SCALED, WEIGHT_ONLY
from qdebug.metrics.effect import EffectMode
from qdebug.network.macs import shapes_of_first, tensor_bytes, unquantized_work
from qdebug.network.prepare import Model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.groups import Grouping, grouping_of
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.outputfiles import write_text
from qdebug.plan.description import describe
from qdebug.plan.pair import ModelPair
from qdebug.plan.planfile import plan_to_yaml
from qdebug.result import ModelRef, ReadData, to_json
from qdebug.results.compare import ENGINE_STAGE, METRIC_STAGE, CompareResult
from qdebug.results.framework import FrameworkResult
from qdebug.store.manifest import manifest_of
from qdebug.store.schema import NETWORK, SHOWN, Keep
from qdebug.store.writer import RunWriter
from qdebug.types import Fp16Kernels, Precision, ProgressCallback, ignore_progress
from qdebug.wording import option


@dataclass(frozen=True)
class _Prepared:
    """All that is read, built and opened before the samples are run.

    Attributes:
        built: the pair, and the ranges that were gathered for it.
        grouping: of the samples; None where no groups were asked for.
        engine: of the candidate; None for the simulation alone.
        subset: the samples, in the batches in which they run.
        writer: of the run file; None without one.
        data: how samples that are no arrays were read.
    """

    settings: CompareSettings
    gate: Gate
    context: Context
    built: Built
    samples: Samples
    grouping: Grouping | None
    engine: Engine | None
    subset: SampleSubset
    writer: RunWriter | None
    data: tuple[ReadData, ...]


def compare(
    settings: CompareSettings, progress: ProgressCallback = ignore_progress
) -> CompareResult:
    """Compare the candidate that `settings` describe with its reference.

    A stage that fails after the tensors were compared is listed in the result's `failed`.

    Raises:
        QdebugError: bad input (nothing was written), or a runtime that failed.
    """
    started = time.perf_counter()
    with ExitStack() as stack:
        prepared = _prepared(stack, settings, progress)
        framework = _framework(prepared)
        suspicious = suspicions(
            prepared.context,
            prepared.built.pair.reference,
            prepared.samples,
            prepared.gate.metric,
            settings.quantization.calibrates_on,
        )
        compared = _measured(prepared).found(*suspicious, framework=framework)
        if prepared.writer is not None:
            keep = partial(_with_activations, prepared, prepared.writer)
            compared = compared.attempt("activations", keep)
        # The tensors are measured: whatever fails from here on, they are shown and written.
        compared = _analysed(prepared, compared)
        if prepared.engine is not None:
            execute = partial(with_engine, engine=prepared.engine, settings=settings)
            compared = compared.attempt(ENGINE_STAGE, execute)
        took = {"total": time.perf_counter() - started}
        compared = compared.found(timings_s=took)
        save, path = partial(_with_saved_plan, settings), settings.save_plan or ""
        compared = compared.attempt(option("save_plan"), save, file=path)
        if prepared.writer is not None:
            compared = compared.attempt("worst samples", with_shown_samples)
            finish = partial(_with_run_file, prepared, prepared.writer)
            compared = compared.attempt("run file", finish)
    return compared.result


def _framework(prepared: _Prepared) -> FrameworkResult | None:
    """The training framework against the ONNX model; None where its outputs are not given.

    Raises:
        QdebugError: they cannot be read, or are of other samples.
    """
    data, context, samples = prepared.settings.framework, prepared.context, prepared.samples
    if data is None:
        return None
    graph = prepared.built.pair.reference
    return framework_result(data, context, graph, samples, prepared.gate.metric)


def _analysed(prepared: _Prepared, compared: Compared) -> Compared:
    """All that follows from the simulation: the metric, effects, the verdict, causes, what another
    quantization gives, what the leading layers cost together, and remedies."""
    settings = prepared.settings
    compared = compared.attempt(METRIC_STAGE, scored)
    compared = with_metric_notes(compared)
    quantization, gathered = settings.quantization, prepared.built.gathered
    by_group = partial(
        grouped,
        grouping=prepared.grouping,
        calibrates_on=quantization.calibrates_on,
        calibrated=gathered.samples if gathered else None,
    )
    compared = compared.attempt("groups of samples", by_group)
    rank = partial(ranked, mode=EffectMode(settings.effect))
    compared = compared.attempt("effects at the outputs", rank)
    compared = compared.attempt("order of the layers", curved)
    compared = judged(compared)
    compared = compared.attempt("causes", explained)
    compared = compared.attempt("cures", partial(cured, gathered=prepared.built.gathered))
    compared = compared.attempt("effect of the leading layers together", summarized)
    compared = compared.attempt("origin of the error", with_origin)
    if settings.try_remedies:
        fit = partial(
            with_remedies, calibrates_on=quantization.calibrates_on, method=settings.method
        )
        compared = compared.attempt("remedies", fit)
    return compared


def _prepared(stack: ExitStack, settings: CompareSettings, progress: ProgressCallback) -> _Prepared:
    """Read everything, calibrate, lower, and build the engine.

    Raises:
        QdebugError: bad input (nothing was written), or a runtime that failed.
    """
    gate, runtime = _checked(settings, progress)
    spec, sessions = settings.quantization, session_settings(settings)
    plan = plan_from(spec)
    target = runtime.target if runtime else ""
    check_requested(settings.backend, plan, settings.provider, target)
    in_fp16 = settings.reference is not None or plan.precision is not Precision.INT8
    model = load_model(settings.model, plan, spec.samples, sessions, progress, in_fp16=in_fp16)
    if runtime is not None:
        check_model(runtime.typing, model)
    gate = replace(gate, metric=on_model(gate.metric, model))
    samples = _samples(settings, model, gate)
    grouping = grouping_of(samples)  # Fails before any work.
    writer = None
    if settings.output is not None:
        writer = stack.enter_context(RunWriter(settings.output, overwrite=settings.force))
    context = context_of(settings, progress, open_executor(stack, settings))
    check_objects(context, model.graph, whole(samples), gate.metric)
    built = build_pair(spec, context, plan, model, samples, saves_plan=bool(settings.save_plan))
    pair = built.pair
    # Before the simulation, so that a model that cannot be built fails at once.
    engine = None
    if runtime is not None:
        engine = engine_of(fitted(runtime, pair.candidate, samples), pair)
    return _Prepared(
        settings=settings,
        gate=gate,
        context=context,
        built=built,
        samples=samples,
        grouping=grouping,
        engine=engine,
        subset=sized_for(context, pair, samples),
        writer=writer,
        data=read_data(*spec.samples),
    )


def _measured(prepared: _Prepared) -> Compared:
    """The errors of all tensors, over all samples.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
    """
    settings, context, pair = prepared.settings, prepared.context, prepared.built.pair
    samples, subset = prepared.samples, prepared.subset
    found = compare_pair(
        context,
        pair,
        subset,
        prepared.gate.metric,
        local_samples=settings.local_samples,
    )
    result = _result(settings, pair, samples, found)
    result = replace(result, data=prepared.data)
    return Compared(context, pair, samples, prepared.gate, found, result)


def _with_activations(prepared: _Prepared, writer: RunWriter, compared: Compared) -> Compared:
    """With the activations of the samples that are worth keeping in the run file.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
        StoreError: the file cannot be written.
    """
    context, pair = prepared.context, prepared.built.pair
    subset, samples = prepared.subset, prepared.samples
    kept, note = _kept(prepared)
    chosen = kept_samples(kept.keep, compared.measured.energies, samples.count)
    writer.choose(kept.keep, chosen, kept.dtype, kept.size)
    evidence = Evidence(writer, frozenset(chosen), kept.left_out)
    batches = [b for b in subset.batches if any(b.start <= s < b.start + b.count for s in chosen)]
    few = SampleSubset(subset.samples, tuple(batches))
    sizes = tensor_bytes(pair.reference, subset)
    tensors = [t for t in pair.tensors if t in pair.reference.producers]
    room = context.budget.bytes // (HELD * held_at_once(context))
    for group in capture_groups(tensors, sizes, room) if batches else ():
        rows = Rows(evidence.samples, frozenset(group))
        variants = reference_and_candidate(context, pair, group)
        runner_of(context, few).run(variants, {"rows": rows}, sinks={"rows": evidence})
    notes = (note,) if note else ()
    return replace(compared.found(*notes), evidence=evidence)


def _kept(prepared: _Prepared) -> tuple[Kept, str]:
    """What is kept of activations, and a note on its size."""
    settings, built, subset = prepared.settings, prepared.built, prepared.subset
    keep = None if settings.keep is None else Keep.parse(settings.keep)
    half = Precision.FP16 in built.pair.precisions.values()
    seen = built.gathered.histograms.values() if built.gathered else ()
    histograms = float(sum(histogram.table.nbytes for histogram in seen))
    runs = 2 if settings.backend == CompareSettings.backend else 3
    per_batch = tensor_bytes(built.pair.reference, subset)
    sizes = {t: n / subset.samples.batch_size for t, n in per_batch.items()}
    count = prepared.samples.count
    return decided(keep, sizes, count, runs, may_round=not half, histograms=histograms)


def _plan_text(pair: ModelPair, model: str) -> str:
    """The plan that was run, as YAML; "" without one."""
    return plan_to_yaml(pair.plan, model) if pair.plan else ""


def _with_saved_plan(settings: CompareSettings, compared: Compared) -> Compared:
    """With the plan written where the user wants it."""
    if settings.save_plan:
        text = _plan_text(compared.pair, settings.model)
        write_text(settings.save_plan, text, option("save_plan"), force=settings.force)
    return compared


def _samples(settings: CompareSettings, model: Model, gate: Gate) -> Samples:
    samples = settings.compared.open(sample_inputs(model.graph))
    check_metric(gate.metric, model, samples)
    return samples


def _with_run_file(prepared: _Prepared, writer: RunWriter, compared: Compared) -> Compared:
    """With all of it in the run file, and where that is."""
    settings, pair, result = prepared.settings, compared.pair, compared.result
    gathered = prepared.built.gathered
    operators = prepared.context.sessions.operators_digest
    about = asdict(settings), pair, compared.samples, operators
    writer.set_manifest(manifest_of(*about))
    writer.set_plan(_plan_text(pair, result.model.path))
    writer.set_json(NETWORK, describe(pair.reference, pair.layers, pair.grids).to_text())
    if compared.shown:
        writer.set_json(SHOWN, json.dumps(to_json(compared.shown)))
    if gathered:
        writer.set_ranges(to_records(gathered))
    return compared.found(run_file=writer.finish(json.dumps(result.to_dict(), ensure_ascii=False)))


def _checked(
    settings: CompareSettings, progress: ProgressCallback
) -> tuple[Gate, EngineRuntime | None]:
    """What can be read, and refused, before any work."""
    check_engine_flags(settings)
    check_reference(settings.reference)
    gate = read_gate(settings.fail_on, settings.metric, settings.decode)
    if settings.keep is not None:
        Keep.parse(settings.keep)
    sessions = session_settings(settings)
    runtime = open_runtime(settings, cached=settings.cache, sessions=sessions, progress=progress)
    return gate, runtime


def _unseen_notes(settings: CompareSettings, pair: ModelPair) -> tuple[str, ...]:
    """What the simulation of a format leaves out, where no engine shows it."""
    used = set(pair.precisions.values())
    if settings.backend != CompareSettings.backend or pair.plan is None:
        return ()
    notes = []
    if Precision.BF16 in used:
        notes.append(
            "BF16 is simulated. Of a sentence encoder (MiniLM) whose simulation was right, an "
            "engine (TensorRT for RTX 1.6.1, H100) gave NaN: look at an engine too "
            f"({option('backend', 'tensorrt-rtx')})."
        )
    if used & WEIGHT_ONLY:
        notes.append(
            "Activations are multiplied as they are. ONNX Runtime's MatMulNBits with "
            "accuracy_level 4 also rounds them to INT8, which is not simulated; exports of qdebug "
            "leave it unset."
        )
    return tuple(notes)


def _unquantized_notes(pair: ModelPair, samples: Samples) -> tuple[str, ...]:
    """That layers which multiply stay in FP32 beside quantized ones, where they hold much of the
    work."""
    graph, precisions = pair.reference, pair.precisions
    left = {n for n, p in precisions.items() if p is Precision.FP32}
    if pair.precision not in SCALED or not unquantized_work(graph, {}, left).counts:
        return ()
    work = unquantized_work(graph, shapes_of_first(graph, whole(samples)), left)
    return (work.sentence,) if work.sentence else ()


def _result(
    settings: CompareSettings,
    pair: ModelPair,
    samples: Samples,
    found: PairErrors,
) -> CompareResult:
    """What the pass over the samples measured."""
    errors, not_float = found.errors, found.not_float
    tensors = tensor_results(pair, errors)
    kernels = Fp16Kernels(settings.fp16_kernels)
    layers = layer_results(pair, errors)
    computed = {t.name for t in tensors}
    finals = with_worst_files(
        output_results(pair, {t: x for t, x in errors.tensors.items() if t in computed}),
        samples.origin.files,
    )
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
        notes=(
            *pair.notes,
            *overflow_notes(finals, layers),
            *(unobserved_note(pair) if kernels is Fp16Kernels.TENSORRT else ()),
            *_unquantized_notes(pair, samples),
            *_unseen_notes(settings, pair),
        ),
        fp16_kernels=kernels if half else None,
    )
