"""Plans as YAML files, written for people to read and edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qdebug.errors import PlanError
from qdebug.plan.plan import Granularity, PrecisionPlan, TensorRange
from qdebug.types import Precision
from qdebug.yamlfile import read_yaml

PLAN_SCHEMA = "qdebug.plan/1"


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


_Amax = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_bool)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _ModelKey(_Strict):
    path: str = ""
    sha256: str = ""


class _TensorEntry(_Strict):
    amax: _Amax | list[_Amax]
    scale: float | list[float] | None = None  # written for readers; amax decides
    method: str = "manual"


class _PlanFile(_Strict):
    """The file. Only `schema` is required: every other key has the default of PrecisionPlan."""

    schema_: Literal["qdebug.plan/1"] = Field(alias="schema")
    model: _ModelKey = _ModelKey()
    precision: Precision = Precision.INT8
    rest: Literal["fp16", "fp32"] = "fp32"
    weights: Granularity = Granularity.PER_CHANNEL
    calibration: str = ""
    layers: dict[str, Precision] = {}
    tensors: dict[str, _TensorEntry] = {}


def read_plan(path: str | Path) -> PrecisionPlan:
    """Read a plan.

    Raises:
        PlanError: "file:line: what is wrong".
    """
    file = read_yaml(Path(path), _PlanFile, PlanError)
    return PrecisionPlan(
        precision=file.precision,
        rest=Precision(file.rest),
        layers=file.layers,
        tensors={name: _range(entry) for name, entry in file.tensors.items()},
        weights=file.weights,
        model_sha256=file.model.sha256,
        calibration=file.calibration,
    )


def named_model(path: str | Path) -> str:
    """The model file that a plan names, "" when it names none.

    Raises:
        PlanError: as read_plan.
    """
    return read_yaml(Path(path), _PlanFile, PlanError).model.path


def plan_to_yaml(plan: PrecisionPlan, model_path: str = "") -> str:
    """The text of a plan file; reading it gives `plan` back."""
    data: dict[str, Any] = {"schema": PLAN_SCHEMA}
    if plan.model_sha256:
        data["model"] = {"path": model_path, "sha256": plan.model_sha256}
    data["precision"] = str(plan.precision)
    data["rest"] = str(plan.rest)
    data["weights"] = str(plan.weights)
    if plan.calibration:
        data["calibration"] = plan.calibration
    data["layers"] = {name: str(precision) for name, precision in plan.layers.items()}
    data["tensors"] = {
        name: {
            "amax": list(entry.amax) if isinstance(entry.amax, tuple) else entry.amax,
            "method": entry.method,
        }
        for name, entry in plan.tensors.items()
    }
    text = _dump(data, allow_unicode=True)
    # PyYAML writes these as they are, and reads them back as a space.
    return _dump(data, allow_unicode=False) if any(c in text for c in _LINE_BREAKS) else text


_LINE_BREAKS = "\x85\u2028\u2029"


def _dump(data: dict[str, Any], *, allow_unicode: bool) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=allow_unicode, width=100)


def _range(entry: _TensorEntry) -> TensorRange:
    amax = tuple(entry.amax) if isinstance(entry.amax, list) else entry.amax
    return TensorRange(amax, entry.method)
