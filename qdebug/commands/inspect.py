"""`qdebug inspect`: what a file says about an engine, audited and gated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qdebug.backends.tensorrt.serialized import read_engine
from qdebug.config.look import InspectSettings
from qdebug.engine_info.audit import audit_plan
from qdebug.engine_info.diff import diff
from qdebug.engine_info.files.onnx_file import info_of_graph, with_nodes
from qdebug.engine_info.files.opening import (
    open_device,
    open_engine_file,
    open_profile,
    open_times,
)
from qdebug.engine_info.files.timing import with_times
from qdebug.engine_info.layers import EngineInfo, InfoSource
from qdebug.engine_info.summary import GATE_NAMES, by_precision, gate_values, summarize
from qdebug.errors import UsageError, given_by
from qdebug.execute.model_pair import bind_user_plan, check_not_quantized
from qdebug.inmemory import InMemory
from qdebug.network.inputshapes import InputShapes, parse_shapes
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model, with_taken
from qdebug.plan.lower import required_opset
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import BoundPlan, TensorRange, bind_plan
from qdebug.plan.planfile import model_for, named_model, read_plan
from qdebug.results.conditions import parse_value_condition
from qdebug.results.inspect import EngineDiff, InspectResult, inspection_of
from qdebug.wording import option


def inspect(settings: InspectSettings) -> InspectResult:
    """Inspect a file.

    Raises:
        QdebugError: a file that cannot be read or is none of the known kinds, a plan that does not
            fit, an engine of another model, an unknown condition.
        UsageError: a profile to compare with, without its engine.
    """
    conditions = [parse_value_condition(text, GATE_NAMES) for text in settings.fail_on]
    info = _timed(_opened(settings.file, parse_shapes(settings.shape)), settings.profile, "profile")
    if settings.timing:
        with given_by("timing"):
            info = replace(info, executions=open_times(Path(settings.timing)))
    if settings.metadata:
        with given_by("metadata"):
            info = replace(info, device=open_device(Path(settings.metadata)))
    audit = None
    if settings.expect:
        model, bound = _bound(settings.expect, settings.model)
        info = with_nodes(info, planned_pair(model, bound).candidate)
        audit = audit_plan(model, bound.layers, planned_pair(model, bound).precisions, info)
    elif settings.model:
        with given_by("model"):
            info = with_nodes(info, prepare_model(read_model(settings.model)).graph)
    if settings.diff_profile and not settings.diff:
        raise UsageError(
            f"{option('diff_profile')} is of the engine of {option('diff')}, which is not given",
            f"Give both, or {option('profile')} for times of this one.",
            code="QD-USAGE-DIFF-PROFILE",
        )
    other = _compared(settings.diff, settings.diff_profile, info) if settings.diff else None
    return inspection_of(
        settings.file,
        info,
        summarize(info),
        conditions,
        audit=audit,
        plan=settings.expect or "",
        diff=other,
    )


def _opened(file: str, shapes: InputShapes = ()) -> EngineInfo:
    """What a file, or a model in memory, says; with `shapes` of a model's inputs.

    Raises:
        QdebugError: it cannot be read.
        UsageError: it has shapes of its own.
    """
    if isinstance(file, InMemory):
        return info_of_graph(prepare_model(read_model(file), shapes=shapes, fed=False).graph)
    info = open_engine_file(Path(file), read_engine, shapes)
    if shapes and info.source is not InfoSource.ONNX:
        raise UsageError(
            f"{option('shape')} is for the inputs of an ONNX model, and {file} is none",
            f"Leave {option('shape')} out: an engine has the shapes that it was built for.",
            code="QD-USAGE-SHAPE",
        )
    return info


def _bound(plan_file: str, model_file: str | None) -> tuple[Model, BoundPlan]:
    with given_by("expect"):
        plan = read_plan(plan_file)
        path = model_for(plan_file, named_model(plan_file), model_file)
    with given_by("model" if model_file else "expect"):
        model = prepare_model(read_model(path), required_opset(plan))
        model = with_taken(model, plan.control_flow)
    check_not_quantized(model, "a plan is for an FP32 model")
    bound = bind_user_plan(plan, model, plan_file, "expect")
    # Which precision is asked for does not depend on the ranges, so a plan without will do.
    ranges = {tensor: TensorRange(1.0) for tensor in bound.missing_ranges()}
    return model, bind_plan(plan.with_ranges(ranges, plan.calibration), model, bound.layers)


def _timed(info: EngineInfo, profile: str | None, setting: str) -> EngineInfo:
    if not profile:
        return info
    with given_by(setting):
        times = open_profile(Path(profile))
    return with_times(info, times, profile, setting)


def _compared(path: str, profile: str | None, info: EngineInfo) -> EngineDiff:
    with given_by("diff"):
        other = _timed(_opened(path), profile, "diff_profile")
    return EngineDiff(
        path, gate_values(summarize(other)), diff(info, other), by_precision(other), other.device
    )
