"""`qdebug ranges`, whole: what a run file kept, or one streaming pass over calibration data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qdebug.calibrators.coverage import excesses, growth, share_above, stretches
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.commands.reading import read_data
from qdebug.config.look import RangesSettings
from qdebug.errors import QdebugError, StoreError, UsageError
from qdebug.execute.context import context_of, session_settings
from qdebug.execute.control_flow import open_model
from qdebug.execute.gather import Gathered, from_records, gather_ranges
from qdebug.execute.model_pair import check_not_quantized
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.subset import whole
from qdebug.network.samplespec import given_specs
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.planfile import parse_plan
from qdebug.plan.select import nearest
from qdebug.result import ModelRef
from qdebug.results.calibrate import Coverage
from qdebug.results.orders import ORDERS
from qdebug.results.ranges import (
    CalibrationData,
    HeldOutData,
    PlannedRange,
    RangesCoverage,
    RangesResult,
    RangesSource,
    TensorDynamics,
)
from qdebug.results.recorded import is_run
from qdebug.store.reader import RunReader
from qdebug.types import Precision, ProgressCallback, ignore_progress
from qdebug.wording import option

_Readers = Mapping[str, tuple[str, ...]]


def ranges(settings: RangesSettings, progress: ProgressCallback = ignore_progress) -> RangesResult:
    """The dynamic ranges that `settings` ask for.

    Raises:
        UsageError: an unknown order.
        QdebugError: other bad input, or a runtime that failed.
    """
    result = _of_run(settings) if is_run(settings.source) else _of_model(settings, progress)
    tensors = tuple(
        replace(t, calibrators=t.calibrated()) if t.name in settings.tensors else t
        for t in result.tensors
    )
    return replace(result, tensors=tensors)


def _of_model(settings: RangesSettings, progress: ProgressCallback) -> RangesResult:
    calibration, holdout = settings.calibrates_on, settings.held_out
    if calibration is None or settings.calib_data is None:
        read_model(settings.source)  # what is no model at all is said first
        raise UsageError(
            f"{option('calib_data')} is missing: {settings.source} is a model, and its ranges come "
            "from data",
            f"Give samples to calibrate on with {option('calib_data')}.",
            code="QD-USAGE-CALIB-DATA",
        )
    plan = PrecisionPlan(Precision.INT8)
    sessions = session_settings(settings)
    sources = given_specs(calibration, holdout)
    model = open_model(settings.source, required_opset(plan), sources, sessions, progress)
    check_not_quantized(model, "its ranges are in it")
    inputs = sample_inputs(model.graph)
    subset = whole(calibration.open(inputs))
    held_out = None if holdout is None else whole(holdout.open(inputs))
    data = read_data(calibration, holdout)
    context = context_of(settings, progress)
    gathered = gather_ranges(context, model.graph, subset)
    seen: Gathered | None = None
    if held_out is not None:
        seen = gather_ranges(context, model.graph, held_out)
    order = [*(spec.name for spec in inputs), *model.graph.activations()]
    found = _dynamics(gathered, order, _readers(model, plan), {})
    chosen = _chosen(found, settings)
    return RangesResult(
        source=RangesSource("model", settings.source),
        model=ModelRef(settings.source, model.file.sha256),
        calibration=CalibrationData(settings.calib_data, subset.count, gathered.from_cache),
        holdout=HeldOutData(settings.holdout, held_out.count)
        if settings.holdout and held_out
        else None,
        sort=settings.sort,
        tensors=chosen,
        coverage=_coverage(chosen, gathered, seen),
        notes=model.notes,
        data=data,
    )


def _of_run(settings: RangesSettings) -> RangesResult:
    _refuse_for_run(settings)
    with RunReader(settings.source) as reader:
        records, manifest = reader.ranges(), reader.manifest
        plan_text, results = reader.plan_text, reader.results
    if not records:
        raise StoreError(
            f"{settings.source}: holds no ranges: nothing was calibrated in that run, because its "
            f"plan or {option('calibration')} had every range, or its model was quantized already "
            "or is not INT8.",
            f"Give the FP32 model and {option('calib_data')} instead.",
            code="QD-STORE-NO-RANGES",
        )
    try:
        gathered = from_records(records)
    except KeyError as error:
        raise StoreError(
            f"{settings.source}: its ranges are damaged, or another version of qdebug wrote them "
            f"({error}).",
            "Repeat the comparison that wrote the file.",
            code="QD-STORE-VERSION",
        ) from error
    told: dict[str, Any] = {"model": {}, "settings": {}, **manifest}
    plan = _plan(plan_text)
    readers = _readers_of_run(told["model"], plan) if plan else None
    planned = {
        name: _planned(entry, gathered.histograms[name])
        for name, entry in (plan.tensors if plan else {}).items()
        if name in gathered.histograms
    }
    computed = [tensor["name"] for tensor in results.get("tensors", ())]
    order = [*(name for name in records if name not in computed), *computed]
    chosen = _chosen(_dynamics(gathered, order, readers, planned), settings)
    flags = told["settings"]
    return RangesResult(
        source=RangesSource("run", settings.source),
        model=ModelRef(told["model"].get("path", ""), told["model"].get("sha256", "")),
        calibration=CalibrationData(
            flags.get("calib_data") or flags.get("inputs", ""), len(gathered.samples), False
        ),
        sort=settings.sort,
        tensors=chosen,
        coverage=_coverage(chosen, gathered, None),
    )


def _refuse_for_run(settings: RangesSettings) -> None:
    for name in ("calib_data", "holdout", "samples", "batch_size"):
        if getattr(settings, name) is not None:
            raise UsageError(
                f"{option(name)}: {settings.source} is a run file, and its ranges are "
                "those of that run",
                f"Leave it out, or give the FP32 model and {option('calib_data')} instead.",
                code="QD-USAGE-RUN-FILE",
            )


def _dynamics(
    gathered: Gathered,
    order: Sequence[str],
    readers: _Readers | None,
    planned: Mapping[str, PlannedRange],
) -> list[TensorDynamics]:
    """All that was gathered, by `order`: a pass yields the model's outputs first."""
    rank = {name: i for i, name in reversed(list(enumerate(order)))}
    names = sorted(gathered.histograms, key=lambda name: rank.get(name, len(order)))
    return [
        TensorDynamics(
            name,
            position,
            gathered.histograms[name],
            gathered.sample_amax[name],
            None if readers is None else readers.get(name, ()),
            planned.get(name),
        )
        for position, name in enumerate(names)
    ]


def _chosen(found: list[TensorDynamics], settings: RangesSettings) -> tuple[TensorDynamics, ...]:
    known = {t.name for t in found}
    for name in settings.tensors:
        if name not in known:
            raise UsageError(
                f"{option('tensors')}: {settings.source} has no ranges of a tensor '{name}'",
                nearest(name, known),
                code="QD-USAGE-TENSOR",
            )
    wanted = [t for t in found if not settings.tensors or t.name in settings.tensors]
    return tuple(sorted(wanted, key=ORDERS[settings.sort].key))


def _coverage(
    tensors: Sequence[TensorDynamics], gathered: Gathered, seen: Gathered | None
) -> RangesCoverage:
    """The coverage of the tensors that INT8 layers read, or of all."""
    over = [t for t in tensors if t.read_by] or tensors
    amax = {t.name: t.sample_amax for t in over}
    largest = {t.name: t.amax for t in over}
    beyond = excesses(largest, seen.sample_amax) if seen else []
    found = stretches(amax, gathered.samples)
    return RangesCoverage(len(over), Coverage(growth(amax), tuple(found), tuple(beyond)))


def _planned(entry: TensorRange, seen: TensorHistogram) -> PlannedRange:
    amax = float(np.max(entry.amax))
    return PlannedRange(amax, entry.method, share_above(seen, amax))


def _readers(model: Model, plan: PrecisionPlan) -> _Readers:
    """The layers that read each tensor in INT8 under `plan`."""
    bound = bind_plan(plan, model, find_layers(model.graph))
    readers: dict[str, list[str]] = {}
    for layer in bound.quantized_layers():
        for tensor in layer.quantized_inputs:
            readers.setdefault(tensor, []).append(layer.name)
    return {tensor: tuple(layers) for tensor, layers in readers.items()}


def _plan(text: str) -> PrecisionPlan | None:
    """The plan of a run; None where it had none, or one that this version cannot read."""
    if not text:
        return None
    try:
        return parse_plan(text, "plan")
    except QdebugError:
        return None


def _readers_of_run(model: Mapping[str, Any], plan: PrecisionPlan) -> _Readers | None:
    """As _readers, where the model is still the file that was run; else None."""
    try:
        file = read_model(str(model.get("path", "")))
        if file.sha256 != model.get("sha256"):
            return None
        return _readers(prepare_model(file, required_opset(plan)), plan)
    except QdebugError:
        return None
