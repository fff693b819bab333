"""Files with ranges: our own scales.yaml, a plan, or a calibration cache of TensorRT or of ONNX
Runtime's TensorRT execution provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from qdebug.errors import PlanError
from qdebug.formats.base import Format
from qdebug.formats.registry import FORMAT_OF, WEIGHT_FORMAT_OF
from qdebug.inmemory import InMemory, path_in
from qdebug.inputfiles import read_text
from qdebug.network.inline import Taken
from qdebug.plan.ortcache import is_ort_cache, read_ort_cache
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.plan.planfile import (
    ControlFlow,
    ModelKey,
    Strict,
    TensorEntry,
    named_model,
    read_plan,
    tensor_range,
)
from qdebug.plan.quantize import scale_of
from qdebug.plan.trtcache import is_cache, read_cache
from qdebug.types import Precision
from qdebug.yamlfile import dump_yaml, read_yaml

SCALES_SCHEMA = "qdebug.scales/1"


@dataclass(frozen=True)
class Ranges:
    """Ranges by tensor name.

    Attributes:
        tensors: the ranges.
        partial: the file may hold tensors that a model does not have (a cache of TensorRT names
            its own; scales of another export), so unknown names are not errors.
        source: what kind of file it was, for people.
        written_by: the version of TensorRT and the calibrator in the header of a cache, else "".
        model_sha256: of the model it was made for, "" where the file does not say.
        model_path: where that model was, "" where the file does not say.
        control_flow: see `PrecisionPlan`.
        precision: that they were calibrated for.
        unbounded: tensors whose range is infinite in the file, and is none.
    """

    tensors: Mapping[str, TensorRange]
    partial: bool
    source: str
    model_sha256: str = ""
    model_path: str = ""
    written_by: str = ""
    control_flow: Taken = field(default_factory=dict)
    precision: Precision = Precision.INT8
    unbounded: tuple[str, ...] = ()


class _ScalesFile(Strict):
    schema_: Literal["qdebug.scales/1"] = Field(alias="schema")
    model: ModelKey = ModelKey()
    method: str = ""
    calibration: str = ""
    control_flow: ControlFlow = Field(default_factory=dict)
    precision: Literal["int8", "fp8", "a16w8"] = "int8"  # an amax is one in any of them
    tensors: dict[str, TensorEntry] = Field(default_factory=dict)


def read_ranges(path: str | Path) -> Ranges:
    """Read the ranges in a file of any of these kinds, or take those that are `InMemory`:
    `Ranges`, or the ranges of a `PrecisionPlan`.

    Raises:
        PlanError: it is none of them, or not valid.
    """
    if isinstance(path, InMemory):
        given: Ranges | PrecisionPlan = path.value
        if isinstance(given, Ranges):
            return given
        return Ranges(
            given.tensors,
            False,
            "a plan",
            given.model_sha256,
            control_flow=given.control_flow,
        )
    path = Path(path)
    if is_cache(path):
        cache = read_cache(path)
        method = f"TensorRT {cache.kind}"
        tensors = {name: TensorRange(amax, method) for name, amax in cache.amax.items()}
        source = f"a calibration cache of TensorRT {cache.release}"
        written_by = f"TensorRT {cache.release}, {cache.kind}"
        return Ranges(tensors, True, source, written_by=written_by, unbounded=cache.unbounded)
    if is_ort_cache(path):
        found = read_ort_cache(path)
        kind = "ONNX Runtime's TensorRT execution provider"
        ranges = {name: TensorRange(amax, kind) for name, amax in found.items()}
        return Ranges(ranges, True, f"a calibration table of {kind}", written_by=kind)
    if _schema_of(path) == SCALES_SCHEMA:
        file = read_yaml(path, _ScalesFile, PlanError)
        entries = {name: tensor_range(entry) for name, entry in file.tensors.items()}
        return Ranges(
            entries,
            True,
            "scales",
            file.model.sha256,
            file.model.path,
            control_flow=file.control_flow,
            precision=Precision(file.precision),
        )
    plan = read_plan(path)
    return Ranges(
        plan.tensors,
        False,
        "a plan",
        plan.model_sha256,
        named_model(path),
        control_flow=plan.control_flow,
    )


def scales_to_yaml(
    activations: Mapping[str, TensorRange],
    weights: Mapping[str, TensorRange],
    *,
    precision: Precision = Precision.INT8,
    method: str,
    calibration: str,
    model_path: str,
    model_sha256: str,
    control_flow: Taken,
) -> str:
    """The text of scales.yaml: amax, scale and method of every tensor."""

    def entries(tensors: Mapping[str, TensorRange], form: Format) -> dict[str, Any]:
        return {
            name: {
                "amax": np.asarray(entry.amax).tolist(),
                "scale": scale_of(entry.amax, f"tensor '{name}'", form).tolist(),
                "method": entry.method,
            }
            for name, entry in tensors.items()
        }

    data: dict[str, Any] = {
        "schema": SCALES_SCHEMA,
        "model": {"path": path_in(model_path), "sha256": model_sha256},
        "method": method,
        "calibration": calibration,
        **({"control_flow": dict(control_flow)} if control_flow else {}),
        **({} if precision is Precision.INT8 else {"precision": str(precision)}),
        "tensors": {
            **entries(activations, FORMAT_OF[precision]),
            **entries(weights, WEIGHT_FORMAT_OF[precision]),
        },
    }
    return dump_yaml(data)


def _schema_of(path: Path) -> str:
    """The schema that a YAML file claims; "" where that cannot be told."""
    try:
        for line in read_text(path).splitlines():
            if line.startswith("schema:"):
                return line.removeprefix("schema:").split("#")[0].strip().strip("'\"")
    except (OSError, UnicodeDecodeError):
        pass  # read_plan says what is wrong
    return ""
