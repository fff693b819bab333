"""From settings to a subject: read the plan, calibrate where it lacks ranges, lower it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdebug.calibrate.histogram import TensorHistogram
from qdebug.calibrate.methods import parse_method
from qdebug.config import CompareSettings
from qdebug.errors import UsageError
from qdebug.model.layers import find_layers
from qdebug.model.load import read_model
from qdebug.model.prepare import Model, prepare_model
from qdebug.model.samples import Samples, open_samples
from qdebug.pipeline.context import Context
from qdebug.pipeline.ranges import calibrated, gather_ranges
from qdebug.pipeline.subject import Subject, planned_subject, quantized_subject
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import BoundPlan, Granularity, PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.planfile import read_plan
from qdebug.types import Precision


@dataclass(frozen=True)
class Built:
    """A subject and the ranges that were gathered for it, if any were."""

    subject: Subject
    histograms: Mapping[str, TensorHistogram] = field(default_factory=dict)


def plan_from(settings: CompareSettings) -> PrecisionPlan:
    """The plan the settings ask for: that of the file, with the flags given on top."""
    plan = read_plan(settings.plan) if settings.plan else PrecisionPlan(Precision.INT8)
    if settings.precision:
        plan = replace(plan, precision=Precision(settings.precision))
    if settings.rest:
        plan = replace(plan, rest=Precision(settings.rest))
    if settings.weights:
        plan = replace(plan, weights=Granularity(settings.weights))
    if settings.calibration:
        # A plan's own amax was set by hand or by a search, so it wins over a calibration file.
        ranges = read_plan(settings.calibration).tensors
        plan = plan.with_ranges(ranges, f"from {settings.calibration}")
    return plan


def load_model(path: str, plan: PrecisionPlan) -> Model:
    """The user's model at the opset that `plan` needs."""
    return prepare_model(read_model(path), required_opset(plan))


def build_subject(context: Context, plan: PrecisionPlan, model: Model, samples: Samples) -> Built:
    """What to compare; calibrates where the plan needs ranges that it does not have.

    Raises:
        QdebugError: settings that contradict the model, or a plan that does not fit it.
    """
    settings = context.settings
    if model.quantized:
        return Built(quantized_subject(model, settings))
    if names_model(settings.reference):
        raise UsageError(
            f"--reference: {settings.model} is an FP32 model and is its own reference",
            "Give --reference only with a model that carries Q/DQ, or a run file (.h5) to reuse.",
        )
    calibrator = parse_method(settings.method)
    bound = _bind(plan, model)
    if not bound.missing_ranges():
        return Built(planned_subject(model, bound))
    data = settings.calib_data
    calibration = samples
    if data is not None:
        calibration = open_samples(data, model.graph.inputs, limit=settings.calib_samples)
    histograms = gather_ranges(context, model.graph, calibration)
    missing = bound.missing_ranges()
    ranges = {
        tensor: TensorRange(amax, calibrator.name)
        for tensor, amax in calibrated(histograms, missing, calibrator).items()
    }
    where = f"{calibrator.name} of {calibration.count} samples of {data or settings.inputs}"
    plan = replace(plan.with_ranges(ranges, where), model_sha256=model.file.sha256)
    subject = planned_subject(model, _bind(plan, model))
    return Built(replace(subject, notes=_notes(data, histograms, missing)), histograms)


def names_model(reference: str | None) -> bool:
    """Whether --reference names a model rather than a run file."""
    return reference is not None and Path(reference).suffix == ".onnx"


def _bind(plan: PrecisionPlan, model: Model) -> BoundPlan:
    return bind_plan(plan, model, find_layers(model.graph))


def _notes(
    data: str | None, histograms: Mapping[str, TensorHistogram], used: list[str]
) -> tuple[str, ...]:
    notes = []
    if data is None:
        notes.append(
            "No --calib-data: the ranges come from the compared samples themselves, which flatters "
            "the result."
        )
    broken = [t for t in used if histograms[t].nan_count or histograms[t].inf_count]
    if broken:
        notes.append(
            f"The FP32 model itself yields NaN or Inf while calibrating, first in '{broken[0]}'; "
            "they are left out of the ranges."
        )
    dead = [t for t in used if histograms[t].amax == 0]
    if dead:
        notes.append(
            f"{len(dead)} quantized tensors are 0 on all calibration samples, first '{dead[0]}': "
            "their scale is set to 1."
        )
    return tuple(notes)
