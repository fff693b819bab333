"""From settings to a pair: read the plan, calibrate where it lacks ranges, lower it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import TensorProto

from qdebug.backends.options import SessionSettings
from qdebug.backends.registry import spec_of
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import parse_method
from qdebug.config.specs import QuantizationSpec
from qdebug.errors import PlanError, UsageError, given_by
from qdebug.execute.align.absorbed import guess_absorbed
from qdebug.execute.align.proof import proven
from qdebug.execute.context import Context
from qdebug.execute.control_flow import open_model
from qdebug.execute.gather import Gathered, calibrated, gather_ranges
from qdebug.execute.preparation import import_notes
from qdebug.formats.registry import CAST, SCALED
from qdebug.inmemory import InMemory
from qdebug.network.graph import Graph
from qdebug.network.layers import QUANTIZABLE_OPS, find_layers
from qdebug.network.prepare import QDQ_OPSET, Model, is_quantized
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset, first, is_whole, same_samples, whole
from qdebug.network.samplespec import SampleSpec
from qdebug.plan.imported import narrow_nodes
from qdebug.plan.lower import check_ranges, required_opset
from qdebug.plan.pair import ModelPair, planned_pair, quantized_pair
from qdebug.plan.plan import (
    BoundPlan,
    Granularity,
    PrecisionPlan,
    TensorRange,
    bind_plan,
    check_control_flow,
    pinned,
)
from qdebug.plan.planfile import read_plan
from qdebug.plan.quantize import MASK
from qdebug.plan.rangesfile import read_ranges
from qdebug.plan.repaired import remedies_in
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.qoperator import accuracy_level, has_qoperators, to_qdq
from qdebug.plan.rewrite.symmetric import check_symmetric, with_float_biases
from qdebug.plan.select import nearest, select_layers
from qdebug.types import Precision, ProgressCallback, ignore_progress
from qdebug.wording import counted, option

_FOR_FP32_MODELS = (
    *("plan", "calibration", "calib_data", "calib_samples"),
    *("weights", "block_size", "fallback_precision", "pin"),
)
"""Settings that say how to quantize: a quantized model is taken as it is."""


_EMPTY = (
    "It is empty. `qdebug calibrate MODEL --calib-data DATA` makes ranges: with --trt-cache FILE "
    "as such a cache, with -o FILE as YAML."
)


@dataclass(frozen=True)
class CalibratedPlan:
    """A plan that has every range it needs, those that were gathered for it, and what to note."""

    bound: BoundPlan
    gathered: Gathered | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    """A pair and the ranges that were gathered for it, if any were."""

    pair: ModelPair
    gathered: Gathered | None = None


def plan_from(spec: QuantizationSpec) -> PrecisionPlan:
    """The plan that is asked for: that of the file, with what is said besides on top."""
    plan = PrecisionPlan(Precision.INT8)
    if spec.plan:
        with given_by("plan"):
            plan = read_plan(spec.plan)
    if spec.precision:
        plan = replace(plan, precision=Precision(spec.precision))
    if spec.fallback_precision:
        plan = replace(plan, fallback_precision=Precision(spec.fallback_precision))
    if spec.weights:
        plan = replace(plan, weights=Granularity(spec.weights))
    if spec.block_size:
        plan = replace(plan, block_size=spec.block_size)
    return plan


def load_model(
    path: str,
    plan: PrecisionPlan,
    sources: Sequence[SampleSpec],
    sessions: SessionSettings,
    progress: ProgressCallback = ignore_progress,
    *,
    raised: Collection[Precision] = (),
    in_fp16: bool = False,
) -> Model:
    """The user's model at the opset that `plan` needs, for the samples of `sources`.

    Args:
        raised: other precisions that layers may be raised to.
        in_fp16: it may be in FP16 itself.
    """
    model = open_model(path, required_opset(plan, raised), sources, sessions, progress)
    if not (in_fp16 or plan.layers):
        check_in_fp32(model)
    return model


def check_not_quantized(
    model: Model, why: str, hint: str = "Give the FP32 model that it was made from."
) -> None:
    """Refuse a model that carries Q/DQ nodes; `why` says what that means here.

    Raises:
        UsageError: it does.
    """
    if model.quantized:
        raise UsageError(
            f"{model.file.path} is quantized already: {why}",
            hint,
            code="QD-USAGE-QUANTIZED-MODEL",
        )


def check_in_fp32(model: Model) -> None:
    """Refuse a model that is in FP16 where what INT8 and FP16 cost is measured from FP32.

    Raises:
        PlanError: most of its layers that INT8 takes are in FP16.
    """
    if not model.quantized and is_in_fp16(model.graph):
        raise PlanError(
            f"{model.file.path} is in FP16: its FP32 weights and activations are not known",
            "Give the FP32 model that it was made from; what FP16 alone costs is shown by that "
            f"model with {option('precision', 'fp16')}. This very file is compared with it by "
            f"{option('reference', 'FP32.onnx')} of compare.",
            code="QD-PLAN-NOT-FP32",
        )


def is_in_fp16(graph: Graph) -> bool:
    """Whether most of the layers that INT8 takes compute in FP16 in the model itself."""
    products = [n for n in graph.nodes if n.op_type in QUANTIZABLE_OPS and not n.domain]
    half = [n for n in products if graph.types.get(n.outputs[0]) == TensorProto.FLOAT16]
    return 2 * len(half) > len(products)


def open_reference(
    path: str, model: Model, sources: Sequence[SampleSpec], sessions: SessionSettings
) -> Model:
    """The FP32 model at `path`, which the quantized `model` was made from.

    Weights that are stored as INT8, inputs that are decoded and outputs that are encoded do not
    make it a quantized one: it still computes in floating point.

    Raises:
        UsageError: it rounds activations itself, or is `model`.
        QdebugError: it cannot be read, or does not fit the samples.
    """
    with given_by("reference"):
        reference = open_model(path, QDQ_OPSET, sources, sessions)
    graph = reference.graph
    constants = ConstantValues(graph)
    rounds = (
        node
        for node in graph.nodes
        if is_quantized(node.op_type)
        and node.op_type != "DequantizeLinear"
        and not constants.is_constant(node.inputs[0])
        and any(t in graph.consumers for t in node.outputs)
    )
    why = next((f"{node.op_type} '{node.name}'" for node in rounds), "")
    if not (why or model.quantized):
        half = narrow_nodes(graph).items()
        why = next((f"{graph.by_name[n].op_type} '{n}' in {form.label}" for n, form in half), "")
    if reference.file.digest == model.file.digest:
        why = "it is the model itself"
    if why:
        raise UsageError(
            f"{option('reference')}: the reference {path} is not in FP32 itself ({why})",
            f"Give the FP32 model that {model.file.path} was made from.",
            code="QD-USAGE-REFERENCE",
        )
    return reference


def build_pair(
    spec: QuantizationSpec,
    context: Context,
    plan: PrecisionPlan,
    model: Model,
    samples: Samples,
    saves_plan: bool = False,
) -> Built:
    """What to compare; calibrates where the plan needs ranges that it does not have.

    Raises:
        UsageError: settings that contradict the model.
        QdebugError: a plan that does not fit it, or a runtime that failed.
    """
    built = _built(spec, context, plan, model, samples, saves_plan)
    pair = built.pair
    asked = pair.precision
    layers = {layer.name: (layer.op_type, pair.precisions[layer.name]) for layer in pair.layers}
    note = unquantized(spec.model, asked, layers)
    if not note:
        return built
    if not spec.allow_unquantized:
        hint = f"Compare it as it is with {option('allow_unquantized')}."
        if any(not pair.reference.by_name[name].domain for name in layers):
            hint += " Or give a plan with layers in lower precision"
            hint += "." if asked in CAST else f", or try {option('precision', 'fp16')}."
        raise UsageError(
            " ".join((f"{note}.", *model.notes)) if model.notes else note,
            hint,
            code="QD-USAGE-NOTHING-TO-QUANTIZE",
        )
    return replace(built, pair=replace(pair, notes=(note, *pair.notes)))


def unquantized(model: str, asked: Precision, layers: Mapping[str, tuple[str, Precision]]) -> str:
    """Why a verdict on a candidate would mean nothing: none of its layers runs in the precision
    that was asked for. "" where one does, and where FP32 was asked for.

    Args:
        model: the file, for the message.
        layers: name -> operator and the precision it runs in.
    """
    if asked is Precision.FP32 or any(p in SCALED or p is asked for _, p in layers.values()):
        return ""
    operators = list(dict.fromkeys(op for op, _ in layers.values()))
    kept = [op for op in operators if op in QUANTIZABLE_OPS]
    name = str(asked).upper()
    if kept and asked in SCALED:
        return (
            f"{model}: nothing runs in {name}: {', '.join(kept)} could, but no such layer is "
            "quantized"
        )
    shown = ", ".join(operators[:5]) + (", …" if len(operators) > 5 else "")
    return f"{model}: nothing runs in {name}: no operator of this model can ({shown})"


def _built(
    spec: QuantizationSpec,
    context: Context,
    plan: PrecisionPlan,
    model: Model,
    samples: Samples,
    saves_plan: bool = False,
) -> Built:
    if model.quantized or spec.reference is not None:
        _refuse_for_quantized(spec, model, saves_plan=saves_plan)
        file = model
        model, notes = explicit(file)
        if spec.reference is None:
            guessed = guess_absorbed(context, model, samples)
            pair = quantized_pair(model, guessed=guessed)
            notes += import_notes(context, file, pair.imported.lowered, samples)
            return Built(for_backend(_noted(pair, notes), spec.backend))
        reference = open_reference(spec.reference, model, spec.samples, context.sessions).graph
        pair = proven(context, quantized_pair(model, reference, spec.reference), samples)
        notes += import_notes(context, file, pair.imported.lowered, samples)
        notes += _repaired_note(model)
        if not model.quantized and all(p is Precision.FP32 for p in pair.precisions.values()):
            notes += (
                f"{spec.model} computes in FP32, as {spec.reference} does: what differs are their "
                "nodes or weights, and not the precision.",
            )
        return Built(for_backend(_noted(pair, notes), spec.backend))
    planned = plan_ranges(spec, context, plan, model, whole(samples))
    pair = planned_pair(model, planned.bound)
    return Built(replace(pair, notes=(*planned.notes, *pair.notes)), planned.gathered)


def _noted(pair: ModelPair, notes: tuple[str, ...]) -> ModelPair:
    return replace(pair, notes=(*notes, *pair.notes))


def for_backend(pair: ModelPair, backend: str) -> ModelPair:
    """`pair` with what the backend takes of a quantized model.

    Raises:
        UsageError: it does not take unsigned or asymmetric codes, and the model has some.
    """
    if not spec_of(backend).symmetric:
        return pair
    graph, count = with_float_biases(pair.candidate)
    check_symmetric(graph, str(pair.model.file.path), "TensorRT")
    if not count:
        return pair
    note = (
        f"{count} biases that are stored as INT32 are FP32 constants of the same values here: "
        "TensorRT dequantizes no INT32."
    )
    return replace(pair, candidate=graph, notes=(*pair.notes, note))


def _repaired_note(model: Model) -> tuple[str, ...]:
    remedies = remedies_in(model.file.proto)
    if not remedies:
        return ()
    return (
        f"{model.file.path} was repaired ({', '.join(remedies)}): weights and biases that differ "
        "from the FP32 model's by more than rounding are meant to.",
    )


def explicit(model: Model) -> tuple[Model, tuple[str, ...]]:
    """`model` with its integer operators as Q/DQ, and what to note about it.

    Raises:
        ModelError: it has one without an equivalent.
    """
    if not has_qoperators(model.graph):
        return model, ()
    found = to_qdq(model.graph)
    graph = Graph.inferred(found.proto)
    origins = {n.name: model.origins.get(n.name, (n.name,)) for n in graph.nodes}
    model = replace(model, graph=graph, origins=origins)
    if not found.replaced:
        return model, ()
    listed = ", ".join(f"{n} {op}" for op, n in found.replaced.items())
    note = f"Integer operators are read as their Q/DQ equivalents ({listed})."
    if accuracy_level(found.proto) == _ROUNDS_WHAT_IT_READS:
        return model, (note, _left_out_note())
    return model, (note,)


_ROUNDS_WHAT_IT_READS = 4
"""The accuracy_level of MatMulNBits with which ONNX Runtime rounds both operands to INT8."""


def _left_out_note() -> str:
    return (
        "With accuracy_level 4, which MatMulNBits has here, ONNX Runtime also rounds what it "
        "multiplies with the weight to INT8. The simulation leaves that out; "
        f"{option('backend', 'onnxruntime')} shows it."
    )


def _refuse_for_quantized(spec: QuantizationSpec, model: Model, *, saves_plan: bool) -> None:
    given = [option(name) for name in _FOR_FP32_MODELS if getattr(spec, name)]
    if saves_plan:
        given.append(option("save_plan"))
    if spec.precision not in (None, "int8" if model.quantized else "fp16"):
        given.append(option("precision"))
    if given:
        how = f"stands next to {option('reference')}"
        if model.quantized:
            how = "is quantized already"
        elif is_in_fp16(model.graph):
            how = "is in FP16 already"
        raise UsageError(
            f"{given[0]}: {model.file.path} {how} and is compared as it is",
            f"Drop {given[0]}, or give the FP32 model instead.",
            code="QD-USAGE-QUANTIZED-MODEL",
        )


def plan_ranges(
    spec: QuantizationSpec,
    context: Context,
    plan: PrecisionPlan,
    model: Model,
    compared: SampleSubset,
    calibrate_on: SampleSubset | None = None,
) -> CalibratedPlan:
    """`plan`, bound to `model`, with the ranges it lacks: of `calibration`, else calibrated, on
    `calibrate_on` or `calib_data`, or on the samples that are `compared`.

    Raises:
        QdebugError: a plan or a calibration that does not fit the model.
    """
    calibrator = parse_method(spec.method)  # before anything is read
    notes: tuple[str, ...] = ()
    if spec.calibration:
        plan, notes = _with_calibration(plan, spec.calibration, model)
    bound = bind_user_plan(plan, model, spec.plan)
    if spec.pin:
        names = (layer.name for layer in select_layers(spec.pin, model, bound.layers, "pin"))
        plan = pinned(bound, names, plan.fallback_precision)
        bound = bind_plan(plan, model, bound.layers)
    # Bound: whatever is saved of it from here on is for this model.
    plan = replace(plan, model_sha256=model.file.sha256, control_flow=model.taken)
    missing = bound.missing_ranges()
    if not missing:
        unused = () if calibrate_on else _unused(spec)
        return CalibratedPlan(replace(bound, plan=plan), None, (*notes, *unused))
    calibration = calibrate_on or _calibration_samples(spec, model, compared)
    gathered = gather_ranges(context, model.graph, calibration)
    ranges = dict[str, TensorRange]()
    for form, tensors in bound.tensors_by_format(missing).items():
        by_form = parse_method(spec.method, form)
        for tensor, amax in calibrated(gathered.histograms, tensors, by_form).items():
            ranges[tensor] = TensorRange(amax, calibrator.name)
    data = (spec.calibrates_on or spec.compared).data
    where = f"{calibrator.name} of {calibration.count} samples of {data}"
    bound = bind_plan(plan.with_ranges(ranges, where), model, bound.layers)
    bound = replace(bound, calibrated=frozenset(missing))
    told: tuple[str, ...] = ()
    if calibrate_on is None:
        told = _compared_too(spec, calibration, compared)
    ranges_told = range_notes(gathered.histograms, missing)
    return CalibratedPlan(bound, gathered, (*notes, *told, *ranges_told))


def _calibration_samples(
    spec: QuantizationSpec, model: Model, compared: SampleSubset
) -> SampleSubset:
    limit = spec.calib_samples
    if spec.calibrates_on is not None:
        return whole(spec.calibrates_on.open(sample_inputs(model.graph)))
    if not is_whole(compared):  # the others are held out
        return first(compared, limit)
    if limit is None:
        return compared
    few = replace(spec.compared, limit=limit, limited_by="calib_samples", batch_size=None)
    return whole(few.open(sample_inputs(model.graph)))


def bind_user_plan(
    plan: PrecisionPlan, model: Model, path: str | None, setting: str = "plan"
) -> BoundPlan:
    """`plan`, bound to `model`. If it was read from a file, that is `path`, given as `setting`.

    Raises:
        PlanError: it does not fit; the message names the file.
    """
    with _of_file(path, option(setting) if setting else ""):
        bound = _bind(plan, model)
        check_ranges(bound)
        return bound


def check_reference(reference: str | None) -> None:
    """Refuse a reference that is no ONNX model.

    Raises:
        UsageError: it is none.
    """
    if reference is None or isinstance(reference, InMemory) or Path(reference).suffix == ".onnx":
        return
    raise UsageError(
        f"{option('reference')}: {reference} is not an ONNX model",
        "Give the FP32 model that the quantized one was made from. (Results of FP32 are kept in "
        "the cache folder, and not read from a run file.)",
        code="QD-USAGE-REFERENCE",
    )


def _with_calibration(
    plan: PrecisionPlan, path: str, model: Model
) -> tuple[PrecisionPlan, tuple[str, ...]]:
    """`plan` with the ranges of a file, and what to note about them. Ranges of the plan itself win:
    they were set by hand or by a search.

    Raises:
        PlanError: the file is not valid, for another model, or has no tensor of the model.
    """
    with given_by("calibration"):
        tensors, unbounded = ranges_for(path, model), read_ranges(path).unbounded
    needed = _bind(plan, model).needed_ranges()
    notes = []
    missing = [t for t in needed if t not in tensors and t not in plan.tensors]
    if missing:
        infinite = ", ".join(f"'{t}'" for t in missing if t in unbounded)
        notes.append(
            f"{path} has no range for {len(missing)} of {len(needed)} quantized tensors, first "
            f"'{missing[0]}': they are calibrated."
            + (f" It has an infinite one for {infinite}." if infinite else "")
        )
    kept = [t for t in needed if t in tensors and t in plan.tensors]
    if kept:
        notes.append(f"The plan's own range is used for {counted(kept, 'tensor')}, not {path}'s.")
    return plan.with_ranges(tensors, f"from {path}"), tuple(notes)


def ranges_for(path: str, model: Model) -> dict[str, TensorRange]:
    """The ranges in a file of any kind, for the tensors that `model` has.

    Raises:
        PlanError: the file is not valid, for another model, has no tensor of the model, or a range
            that no scale can be made of.
    """
    ranges = read_ranges(path)
    if ranges.model_sha256 and ranges.model_sha256 != model.file.sha256:
        raise PlanError(
            f"{path} was made for another model (sha256 {ranges.model_sha256[:12]}…, "
            f"{model.file.path} has {model.file.sha256[:12]}…)",
            "Calibrate this model, or remove 'model' from the file if its tensors are the same.",
            code="QD-PLAN-OTHER-MODEL",
        )
    with _of_file(path):
        check_control_flow(ranges.control_flow, model)
    known = model.graph.tensors
    tensors = {name: entry for name, entry in ranges.tensors.items() if name in known}
    if not tensors:
        first = next(iter(ranges.tensors), "")
        raise PlanError(
            f"{path}, {ranges.source}, has no tensor of {model.file.path}",
            f"Its first is '{first}'. {nearest(first, known)}" if first else _EMPTY,
            code="QD-PLAN-TENSOR",
        )
    found = tensors if ranges.partial else dict(ranges.tensors)
    with _of_file(path):
        check_ranges(_bind(PrecisionPlan(Precision.INT8).with_ranges(found, ""), model))
    return found


@contextmanager
def _of_file(path: str | None, given: str = "") -> Iterator[None]:
    """Errors within, of what was read from `path` if it was read, name it."""
    try:
        yield
    except PlanError as error:
        if path is None:
            raise
        where = f"{given}: {path}" if given else path
        raise error.reworded(f"{where}: {error.message}") from error


def _bind(plan: PrecisionPlan, model: Model) -> BoundPlan:
    return bind_plan(plan, model, find_layers(model.graph))


def _unused(spec: QuantizationSpec) -> tuple[str, ...]:
    if spec.calib_data is None or spec.fits_remedies:
        return ()
    return (f"{option('calib_data', spec.calib_data)} was not read: nothing had to be calibrated.",)


def _compared_too(
    spec: QuantizationSpec, calibration: SampleSubset, compared: SampleSubset
) -> tuple[str, ...]:
    """A note where the ranges are fitted to the very samples that are compared."""
    if spec.calib_data is None:
        return (
            f"No {option('calib_data')}: the ranges come from the compared samples themselves, "
            "which flatters the result.",
        )
    if not same_samples(calibration.samples, compared.samples):
        return ()
    return (
        f"{option('inputs')} and {option('calib_data')} hold the same samples: the ranges come "
        "from the compared samples themselves, which flatters the result.",
    )


def range_notes(histograms: Mapping[str, TensorHistogram], used: Sequence[str]) -> tuple[str, ...]:
    """What to say of a calibration of the tensors `used`: values that are not finite, tensors that
    are all 0, masks."""
    notes = []
    broken = [t for t in used if histograms[t].nan_count or histograms[t].inf_count]
    if broken:
        notes.append(
            f"The FP32 model itself gives NaN or Inf during calibration, first in '{broken[0]}'; "
            "they are left out of the ranges."
        )
    masks = [t for t in used if histograms[t].amax > MASK]
    if masks:
        notes.append(
            f"Quantized tensors that hold a mask (values of {histograms[masks[0]].amax:.2g}): "
            f"{len(masks)}, first '{masks[0]}'. In such a range everything else is 0: keep the "
            "layers that read them in higher precision if there is anything else."
        )
    dead = [t for t in used if histograms[t].amax == 0]
    if dead:
        notes.append(
            f"Quantized tensors that are 0 on all calibration samples: {len(dead)}, first "
            f"'{dead[0]}'. Their scale is set to 1."
        )
    return tuple(notes)
