"""The types of settings that a Python caller may give as objects: text in settings, with the object
behind it where there is one (`inmemory.InMemory`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, ValidationInfo

from qdebug.config.flag import File, InPython
from qdebug.errors import UsageError, given_by
from qdebug.inmemory import InMemory
from qdebug.network.preprocessing import parse_preprocessing


def _taking(convert: Callable[[Any], str]) -> PlainValidator:
    """Text and paths as text, all else as `convert` does; its errors name the setting."""

    def text(value: Any, info: ValidationInfo) -> str:
        if isinstance(value, str | PurePath):
            return value if isinstance(value, str) else str(value)
        with given_by(info.field_name or ""):
            return convert(value)

    return PlainValidator(text)


def _held(value: Any, kind: type[Any] | tuple[type[Any], ...], what: str, wanted: str) -> str:
    """An object of a type that holds what a file would; else the path that it is.

    Raises:
        UsageError: it is of another type.
    """
    if isinstance(value, kind):
        return InMemory(f"the {what} given in memory", value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise UsageError(
        f"a value of type {type(value).__name__} cannot be used",
        f"Give {wanted}.",
        code="QD-USAGE-TYPE",
    )


def _model(value: Any) -> str:
    import onnx

    return _held(value, onnx.ModelProto, "model", "a path or an onnx.ModelProto")


def _data(value: Any) -> str:
    from qdebug.network.samples import samples_in_memory

    return samples_in_memory(value)


def _preprocessing(value: Any) -> str:
    from qdebug.network.preprocessing import Preprocessing

    wanted = "a preset, a path or a Preprocessing"
    return _held(value, Preprocessing, "preprocessing", wanted)


def _metric(value: Any) -> str:
    from qdebug.metrics.tasks.load import metric_in_memory

    if callable(value):
        return metric_in_memory(value)
    return _held(value, str, "metric", "the name of a metric or a function")


def _calibrator(value: Any) -> str:
    from qdebug.calibrators.user import calibrator_in_memory

    if callable(value):
        return calibrator_in_memory(value)
    return _held(value, str, "calibrator", "FILE:FUNCTION or a function")


def _plan(value: Any) -> str:
    from qdebug.plan.plan import PrecisionPlan

    plan = getattr(value, "plan", value)  # of a BisectResult or a Run
    return _held(plan, PrecisionPlan, "plan", "a path, a PrecisionPlan or a BisectResult")


def _calibration(value: Any) -> str:
    from qdebug.plan.plan import PrecisionPlan, TensorRange
    from qdebug.plan.rangesfile import Ranges
    from qdebug.results.calibrate import CalibrateResult

    digest, taken, value = "", dict[str, str](), getattr(value, "plan", value)
    if isinstance(value, CalibrateResult):
        digest, taken = value.model.sha256, dict(value.control_flow)
        value = {**value.chosen.ranges, **value.weights}
    if isinstance(value, Mapping):
        tensors = {
            str(tensor): amax if isinstance(amax, TensorRange) else TensorRange(float(amax))
            for tensor, amax in value.items()
        }
        value = Ranges(tensors, True, "ranges by tensor", digest, control_flow=taken)
    wanted = "a path, a CalibrateResult, a PrecisionPlan, or a dict of amax by tensor"
    what = "plan" if isinstance(value, PrecisionPlan) else "calibration"
    return _held(value, (PrecisionPlan, Ranges), what, wanted)


def _result(value: Any) -> str:
    from qdebug.result import Result

    return _held(value, Result, "result", "a path, a Run or the result of a command")


def _run(value: Any) -> str:
    from qdebug.results.compare import CompareResult

    return _held(value, CompareResult, "result", "a path, a Run or a CompareResult")


Model = Annotated[str, _taking(_model), File(), InPython("onnx.ModelProto")]
Data = Annotated[str, _taking(_data), File(), InPython("Mapping[str, ArrayLike] | Iterable[Feeds]")]
Metric = Annotated[str, _taking(_metric), InPython("Callable[..., float]")]
Calibrator = Annotated[str, _taking(_calibrator), InPython("Callable[..., float]")]
Calibration = Annotated[
    str,
    _taking(_calibration),
    File(),
    InPython("CalibrateResult | PrecisionPlan | Mapping[str, float]"),
]
Pictures = Annotated[
    str,
    _taking(_preprocessing),
    AfterValidator(parse_preprocessing),
    InPython("Preprocessing"),
]
Plan = Annotated[str, _taking(_plan), File(), InPython("PrecisionPlan | BisectResult | Run")]
PlanOrRanges = Annotated[
    str,
    _taking(_calibration),
    File(),
    InPython("PrecisionPlan | BisectResult | CalibrateResult | Run"),
]
RunOrProfile = Annotated[str, _taking(_run), File(), InPython("CompareResult | Run")]
ResultFile = Annotated[
    str,
    _taking(_result),
    File(),
    InPython(
        "Run | CompareResult | CalibrateResult | RangesResult | BisectResult | RepairResult | "
        "SweepResult | InspectResult"
    ),
]
