"""Plans as YAML files, written for people to read and edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qdebug.errors import PlanError
from qdebug.formats.registry import FORMAT_OF, WEIGHT_ONLY
from qdebug.inmemory import InMemory, path_in
from qdebug.inputfiles import HDF5_MAGIC, open_file
from qdebug.plan.plan import BLOCK_SIZE, LEAST_BLOCK, Granularity, PrecisionPlan, TensorRange
from qdebug.plan.trtcache import CACHE_MAGIC
from qdebug.types import Precision
from qdebug.wording import option
from qdebug.yamlfile import dump_yaml, parse_yaml, read_yaml

PLAN_SCHEMA = "qdebug.plan/1"


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


_Amax = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_bool)]


class Strict(BaseModel):
    """A part of a file in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


class ModelKey(Strict):
    """The model that a file was made for."""

    path: str = ""
    sha256: str = ""


class TensorEntry(Strict):
    """The range of one tensor in a file."""

    amax: _Amax | list[_Amax]
    scale: float | list[float] | None = None  # written for readers; amax decides
    method: str = "manual"


ControlFlow = dict[str, Literal["then_branch", "else_branch"]]
"""See `network.inline.Taken`."""


def _planned(value: object) -> object:
    """Refuse a precision that no plan may ask for, whether or not a model may have it."""
    if not isinstance(value, str) or value not in FORMAT_OF:
        names = [f"'{p}'" for p in FORMAT_OF]
        raise ValueError(f"Input should be {', '.join(names[:-1])} or {names[-1]}")
    return value


_PlannedPrecision = Annotated[Precision, BeforeValidator(_planned)]


class _PlanFile(Strict):
    """The file. Only `schema` is required: every other key has the default of PrecisionPlan."""

    schema_: Literal["qdebug.plan/1"] = Field(alias="schema")
    model: ModelKey = ModelKey()
    precision: _PlannedPrecision = Precision.INT8
    fallback_precision: Literal["bf16", "fp16", "fp32"] = "fp32"
    weights: Granularity = Granularity.PER_CHANNEL
    block_size: int = Field(BLOCK_SIZE, ge=LEAST_BLOCK)
    calibration: str = ""
    control_flow: ControlFlow = {}
    layers: dict[str, _PlannedPrecision] = {}
    tensors: dict[str, TensorEntry] = {}


def read_plan(path: str | Path) -> PrecisionPlan:
    """Read a plan, or take the PrecisionPlan that is `InMemory`.

    Raises:
        PlanError: "file:line: what is wrong".
    """
    if isinstance(path, InMemory):
        plan: PrecisionPlan = path.value
        return plan
    return _plan_of(_read_file(Path(path)))


def _read_file(path: Path) -> _PlanFile:
    start = b""
    with suppress(OSError), open_file(path) as file:
        start = file.read(len(HDF5_MAGIC))
    others = (
        (
            path.suffix == ".onnx" and path.is_file(),
            "a model",
            "Give a plan, as 'qdebug bisect' writes, or ranges, as 'qdebug calibrate' does.",
        ),
        (
            start == HDF5_MAGIC,
            "a run file",
            "Give the plan that 'qdebug compare' writes with --save-plan, or 'qdebug bisect' "
            "with -o.",
        ),
        (
            start.startswith(CACHE_MAGIC),
            "a calibration cache of TensorRT",
            f"Give it as {option('calibration')}.",
        ),
    )
    for found, what, hint in others:
        if found:
            raise PlanError(f"{path} is {what}, not a plan", hint, code="QD-PLAN-FILE")
    return read_yaml(path, _PlanFile, PlanError)


def parse_plan(text: str, name: str) -> PrecisionPlan:
    """The plan in the text of a plan file, which is called `name` in messages.

    Raises:
        PlanError: "name:line: what is wrong".
    """
    return _plan_of(parse_yaml(text, name, _PlanFile, PlanError))


def _plan_of(file: _PlanFile) -> PrecisionPlan:
    return PrecisionPlan(
        precision=file.precision,
        fallback_precision=Precision(file.fallback_precision),
        layers=file.layers,
        tensors={name: tensor_range(entry) for name, entry in file.tensors.items()},
        weights=file.weights,
        block_size=file.block_size,
        model_sha256=file.model.sha256,
        calibration=file.calibration,
        control_flow=file.control_flow,
    )


def named_model(path: str | Path) -> str:
    """The model file that a plan names, "" when it names none.

    Raises:
        PlanError: as read_plan.
    """
    if isinstance(path, InMemory):
        return ""
    return _read_file(Path(path)).model.path


def model_for(
    source: str | Path, named: str, given: str | None = None, hint: str | None = None
) -> str:
    """The model file of a plan or a calibration: the one that is given, else the one that it names,
    looked for from the working directory and then beside it, as files that belong together move.

    Args:
        source: the plan's file.
        named: the model in it, "" for none.
        given: by the user, who needs no plan to name it.
        hint: how it is given.

    Raises:
        PlanError: it names none, or none that is there.
    """
    if given:
        return given
    hint = hint or f"Give it with {option('model')}."
    if not named:
        raise PlanError(f"{source} names no model", hint, code="QD-PLAN-NO-MODEL")
    folder = Path(source).parent
    for path in (Path(named), folder / named, folder / Path(named).name):
        if path.exists():
            return str(path)
    raise PlanError(
        f"{source} is for {named}: no such file, neither here nor beside it",
        hint,
        code="QD-PLAN-NO-MODEL",
    )


def plan_to_yaml(
    plan: PrecisionPlan,
    model_path: str = "",
    *,
    header: Sequence[str] = (),
    why: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The text of a plan file; reading it gives `plan` back.

    Args:
        header: comment lines for the top of the file.
        why: a comment for each layer that the plan names.
    """
    data: dict[str, Any] = {"schema": PLAN_SCHEMA}
    if plan.model_sha256:
        data["model"] = {"path": path_in(model_path), "sha256": plan.model_sha256}
    data["precision"] = str(plan.precision)
    data["fallback_precision"] = str(plan.fallback_precision)
    data["weights"] = str(plan.weights)
    if plan.block_size != BLOCK_SIZE or not WEIGHT_ONLY.isdisjoint(
        {plan.precision, *plan.layers.values()}
    ):
        data["block_size"] = plan.block_size
    if plan.calibration:
        data["calibration"] = plan.calibration
    if plan.control_flow:
        data["control_flow"] = dict(plan.control_flow)
    tensors = {
        name: {
            "amax": [*map(float, entry.amax)]
            if isinstance(entry.amax, tuple)
            else float(entry.amax),
            "method": entry.method,
        }
        for name, entry in plan.tensors.items()
    }
    return (
        "".join(_comment(line) for line in header)
        + dump_yaml(data)
        + _layers_to_yaml(plan.layers, why)
        + dump_yaml({"tensors": tensors})
    )


def _layers_to_yaml(layers: Mapping[str, Precision], why: Mapping[str, str]) -> str:
    if not layers:
        return dump_yaml({"layers": {}})
    text = "layers:\n"
    for name, precision in layers.items():
        if name in why:
            text += _comment(why[name], "  ")
        text += indent(dump_yaml({name: str(precision)}), "  ")
    return text


def _comment(line: str, before: str = "") -> str:
    """A comment holds names of the user's, which may hold line breaks."""
    safe = "".join(c if c.isprintable() else "�" for c in line)
    return f"{before}# {safe}".rstrip() + "\n"


def tensor_range(entry: TensorEntry) -> TensorRange:
    """The range that an entry stands for."""
    amax = tuple(entry.amax) if isinstance(entry.amax, list) else entry.amax
    return TensorRange(amax, entry.method)
