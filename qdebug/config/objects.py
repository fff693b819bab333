"""Objects in memory as settings hold them: what a Python caller gives in place of a file or a name.

A setting says by its type which objects it takes (config.option.AsObject).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from qdebug.config.option import AsObject, settings_of
from qdebug.errors import UsageError, given_by
from qdebug.inmemory import InMemory


def as_settings(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` by setting of `kind`: paths as text, objects in memory under a name.

    Raises:
        UsageError: an object that cannot be used (QD-USAGE-TYPE).
        QdebugError: samples, a metric or a calibrator that cannot be used.
    """
    accepted = {setting.name: setting.as_object for setting in settings_of(kind)}
    found = {}
    for name, value in values.items():
        with given_by(name):
            found[name] = _converted(accepted.get(name), value)
    return found


def _converted(mark: AsObject | None, value: Any) -> Any:
    if mark is None or isinstance(value, str | None):
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, list | tuple) and not mark.takes_sequences:
        return tuple(_converted(mark, item) for item in value)
    return _CONVERTERS[mark.what](value)


def _path_or(value: Any, kind: type[Any], name: str, wanted: str) -> str:
    """An object of a type that holds what a file would; else the path that it is."""
    if isinstance(value, kind):
        return InMemory(name, value)
    if isinstance(value, os.PathLike):
        path: str = os.fspath(value)
        return path
    raise UsageError(
        f"a value of type {type(value).__name__} cannot be used",
        f"Give {wanted}.",
        code="QD-USAGE-TYPE",
    )


def _model(value: Any) -> str:
    import onnx

    name, wanted = "the model given in memory", "a path or an onnx.ModelProto"
    return _path_or(value, onnx.ModelProto, name, wanted)


def _data(value: Any) -> str:
    from qdebug.network.samples import samples_in_memory

    return os.fspath(value) if isinstance(value, os.PathLike) else samples_in_memory(value)


def _preprocessing(value: Any) -> str:
    from qdebug.network.preprocessing import Preprocessing

    name, wanted = "the preprocessing given in memory", "a preset, a path or a Preprocessing"
    return _path_or(value, Preprocessing, name, wanted)


def _metric(value: Any) -> str:
    from qdebug.metrics.tasks.load import metric_in_memory

    if callable(value):
        return metric_in_memory(value)
    return _path_or(value, str, "", "the name of a metric or a function")


def _calibrator(value: Any) -> Any:
    from qdebug.calibrators.user import calibrator_in_memory

    return calibrator_in_memory(value) if callable(value) else value


def _plan(value: Any) -> str:
    from qdebug.plan.plan import PrecisionPlan

    name, wanted = "the plan given in memory", "a path, a PrecisionPlan or a BisectResult"
    return _path_or(_plan_of(value), PrecisionPlan, name, wanted)


def _plan_of(value: Any) -> Any:
    """The plan of a BisectResult or a Run; any other value as it is."""
    return getattr(value, "plan", value)


def _calibration(value: Any) -> str:
    from qdebug.plan.plan import PrecisionPlan, TensorRange
    from qdebug.plan.rangesfile import Ranges
    from qdebug.results.calibrate import CalibrateResult

    name, digest, value = "the calibration given in memory", "", _plan_of(value)
    taken: Mapping[str, str] = {}
    if isinstance(value, PrecisionPlan):
        return InMemory(name, value)
    if isinstance(value, CalibrateResult):
        digest, taken = value.model.sha256, value.control_flow
        value = {**value.chosen.ranges, **value.weights}
    if isinstance(value, Mapping):
        tensors = {
            str(tensor): amax if isinstance(amax, TensorRange) else TensorRange(float(amax))
            for tensor, amax in value.items()
        }
        value = Ranges(tensors, True, "ranges by tensor", digest, control_flow=taken)
    wanted = "a path, a CalibrateResult, a PrecisionPlan, or a dict of amax by tensor"
    return _path_or(value, Ranges, name, wanted)


def _run(value: Any) -> str:
    from qdebug.results.compare import CompareResult

    name = "the result given in memory"
    return _path_or(value, CompareResult, name, "a path, a Run or a CompareResult")


def _result(value: Any) -> str:
    from qdebug.result import Result

    name = "the result given in memory"
    return _path_or(value, Result, name, "a path, a Run or the result of a command")


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "model": _model,
    "data": _data,
    "metric": _metric,
    "calibrator": _calibrator,
    "plan": _plan,
    "preprocessing": _preprocessing,
    "calibration": _calibration,
    "run": _run,
    "result": _result,
}
"""By AsObject.what."""
