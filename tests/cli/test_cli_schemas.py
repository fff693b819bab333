"""What every command writes as JSON fits its JSON Schema, with no key that is not declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

import qdebug
from qdebug.result import Result, json_schema

DIGITS = Path(__file__).parents[2] / "calib_data"
CNN, HOLDOUT, CALIB = (
    str(DIGITS / name) for name in ("digits_cnn.onnx", "digits_holdout.npz", "digits_calib.npz")
)
FEW = ["--inputs", HOLDOUT, "--calib-data", CALIB, "--samples", "16"]
TARGET = ["--weights", "per-tensor", "--target", "output.cosine>=0.99"]
COMMANDS: list[tuple[type[Result], list[str]]] = [
    (qdebug.CompareResult, ["compare", CNN, *FEW, "--metric", "top1", "--fail-on", "metric>=0"]),
    (qdebug.CompareResult, ["compare", CNN, *FEW, "--precision", "fp16"]),
    (qdebug.CompareResult, ["compare", CNN, *FEW, "--backend", "openvino"]),
    (qdebug.CalibrateResult, ["calibrate", CNN, "--calib-data", CALIB, "--metric", "agreement"]),
    (qdebug.RangesResult, ["ranges", CNN, "--calib-data", CALIB, "--tensor", "input"]),
    (qdebug.BisectResult, ["bisect", CNN, *FEW, *TARGET]),
    (qdebug.BisectResult, ["bisect", CNN, *FEW, *TARGET, "--select-point", "1"]),
    (qdebug.InspectResult, ["inspect", CNN, "--diff", CNN]),
    (qdebug.DoctorResult, ["doctor"]),
]


@pytest.mark.parametrize(
    ("result", "arguments"), COMMANDS, ids=lambda x: " ".join(x[::4]) if isinstance(x, list) else ""
)
def test_json_fits_its_schema(desk: Any, result: type[Result], arguments: list[str]) -> None:
    if "openvino" in arguments:
        pytest.importorskip("openvino")
    done = desk.run(*arguments, "--json", "-")
    assert done.code in (0, 1), done.err
    jsonschema.validate(done.json, json_schema(result, closed=True))
