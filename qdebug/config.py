"""Settings of a run: defaults < file < flags, resolved once and frozen."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from qdebug.errors import UsageError
from qdebug.yamlfile import read_yaml

BACKENDS = ("ort",)

PrecisionName = Literal["int8", "fp16", "fp32"]
RestName = Literal["fp16", "fp32"]
WeightsName = Literal["per-channel", "per-tensor"]
StorageName = Literal["float32", "float16"]
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "backend": BACKENDS,
    "precision": get_args(PrecisionName),
    "rest": get_args(RestName),
    "weights": get_args(WeightsName),
    "keep_dtype": get_args(StorageName),
}


@dataclass(frozen=True)
class CompareSettings:
    """Everything `qdebug compare` can be told. Names are those of the flags.

    Attributes:
        model: the ONNX file.
        inputs: DATA to compare on.
        precision: "int8", "fp16" or "fp32"; None takes the plan's, or int8.
        rest: precision of layers without an INT8 form; None takes the plan's, or fp32.
        weights: "per-channel" or "per-tensor"; None takes the plan's, or per-channel.
        plan: a plan file; layers and ranges that it names are kept.
        calibration: a file with ranges.
        calib_data: DATA to calibrate on; None calibrates on `inputs`.
        method: the calibrator.
        reference: an FP32 model to compare with, or a run file whose reference is reused.
        samples, calib_samples: how many to use; None uses all.
        batch_size: for a dynamic batch axis; None chooses.
        local_samples: about how many samples the local errors are measured on.
        memory_budget: bytes that captured tensors may take at a time.
        keep, keep_dtype: which activations the run file keeps, and as what.
        fail_on: gate conditions.
        metric: end-to-end accuracy.
        output: the run file; None writes none.
        force: replace an existing run file.
        save_plan: write the plan that was run to this file.
        cache: reuse what an earlier calibration pass over the same model and data gathered.
    """

    model: str
    inputs: str
    precision: str | None = None
    rest: str | None = None
    weights: str | None = None
    backend: str = "ort"
    plan: str | None = None
    calibration: str | None = None
    calib_data: str | None = None
    method: str = "minmax"
    reference: str | None = None
    samples: int | None = None
    calib_samples: int | None = None
    batch_size: int | None = None
    local_samples: int = 16
    memory_budget: int = 2 << 30
    keep: str = "worst:2"
    keep_dtype: StorageName = "float32"
    fail_on: tuple[str, ...] = ()
    metric: str | None = None
    output: str | None = None
    force: bool = False
    save_plan: str | None = None
    cache: bool = True


class CompareFile(BaseModel):
    """A run configuration file. Paths in it are relative to the working directory."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )

    command: Literal["compare"] = "compare"
    model: str | None = None
    inputs: str | None = None
    precision: PrecisionName | None = None
    rest: RestName | None = None
    weights: WeightsName | None = None
    backend: str | None = None
    plan: str | None = None
    calibration: str | None = None
    calib_data: str | None = None
    method: str | None = None
    reference: str | None = None
    samples: int | None = Field(None, gt=0)
    calib_samples: int | None = Field(None, gt=0)
    batch_size: int | None = Field(None, gt=0)
    local_samples: int | None = Field(None, gt=0)
    memory_budget: str | int | None = None
    keep: str | None = None
    keep_dtype: StorageName | None = None
    fail_on: tuple[str, ...] | None = None
    metric: str | None = None
    output: str | None = None
    force: bool | None = None
    save_plan: str | None = None
    cache: bool | None = None


def resolve_compare(flags: Mapping[str, Any], file: Path | None) -> CompareSettings:
    """Settings from defaults, then `file`, then `flags` (a flag that is None was not given).

    Raises:
        UsageError: the file is not valid, a value is none of the choices, or the model or the
            inputs are nowhere.
    """
    values: dict[str, Any] = {}
    if file is not None:
        read = read_yaml(file, CompareFile, UsageError)
        values = {k: v for k, v in read.model_dump().items() if v is not None and k != "command"}
    values |= {k: v for k, v in flags.items() if v is not None and v != ()}
    for name, flag in (("model", "MODEL"), ("inputs", "--inputs")):
        if not values.get(name):
            raise UsageError(f"{flag} is missing", "Run 'qdebug compare --help' for an example.")
    for name, known in _CHOICES.items():
        _check_choice(name, values.get(name), known)
    if "memory_budget" in values:
        values["memory_budget"] = parse_bytes(str(values["memory_budget"]))
    settings = CompareSettings(model=values.pop("model"), inputs=values.pop("inputs"))
    return replace(settings, **values)


def _check_choice(name: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        close = difflib.get_close_matches(value, known, n=1)
        hint = f"Did you mean '{close[0]}'? " if close else ""
        raise UsageError(
            f"--{name.replace('_', '-')}: unknown value '{value}'",
            f"{hint}Known: {', '.join(known)}.",
        )


def parse_bytes(text: str) -> int:
    """Bytes for "512M", "2G", "1.5GiB" or a plain number.

    Raises:
        UsageError: it is none of these.
    """
    units = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
    body = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = body[-1:] if body[-1:] in units else ""
    try:
        value = float(body.removesuffix(unit) if unit else body)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"--memory-budget: '{text}' is no size", "Write for example 512M or 2G.")
    return int(value * 2 ** units[unit])


@dataclass(frozen=True)
class CalibrateSettings:
    """Everything `qdebug calibrate` can be told. Names are those of the flags.

    Attributes:
        model: the ONNX file.
        calib_data: DATA to calibrate on.
        methods: names of calibrators, tried all.
        calibrators: the user's own, each `file.py:function`.
        holdout: DATA to judge on; None holds out `holdout_share` of `calib_data`.
        metric: end-to-end accuracy on the held-out samples.
        mix: also try the best method of each tensor.
        from_cache: a file with ranges to judge beside the methods.
        weights, rest: as of `compare`.
        samples, batch_size: as of `compare`.
        cache: reuse what an earlier pass over the same model and data gathered.
    """

    model: str
    calib_data: str
    methods: tuple[str, ...] = ("minmax", "percentile", "entropy", "mse", "mean-max")
    calibrators: tuple[str, ...] = ()
    holdout: str | None = None
    holdout_share: float = 0.2
    metric: str | None = None
    mix: bool = False
    from_cache: str | None = None
    weights: str = "per-channel"
    rest: str = "fp32"
    samples: int | None = None
    batch_size: int | None = None
    cache: bool = True


def calibrate_settings(**values: Any) -> CalibrateSettings:
    """Settings from flags; one that is None was not given.

    Raises:
        UsageError: a value that no flag knows.
    """
    given = {name: value for name, value in values.items() if value is not None}
    settings = CalibrateSettings(**given)
    if settings.weights not in ("per-channel", "per-tensor"):
        raise UsageError(
            f"--weights: unknown '{settings.weights}'", "Known: per-channel, per-tensor."
        )
    return settings
