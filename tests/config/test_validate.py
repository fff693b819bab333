"""Defaults, then a configuration file, then flags; or Python keywords. One set of checks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.commands import COMMANDS, Command, command_of
from qdebug.config.compare import CompareSettings
from qdebug.config.flag import settings_of
from qdebug.config.search import BisectSettings
from qdebug.config.sweep import SweepSettings
from qdebug.config.validate import settings_in_file, settled
from qdebug.config.values import parse_bytes
from qdebug.errors import UsageError

GIVEN = {"model": "m.onnx", "inputs": "i.npz"}


def from_flags(kind: type[Any], flags: dict[str, Any], file: str | None = None) -> Any:
    """Settings as the command line makes them."""
    places = settings_in_file(command_of(kind), file)
    return settled(kind, {n: p.value for n, p in places.items()} | flags)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda c: c.name)
def test_the_file_takes_every_setting_under_its_name_with_hyphens(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    keys = [s.key for s in settings_of(command.settings)]
    file.write_text("".join(f"{key}: x\n" for key in keys) or "{}")
    names = {s.name for s in settings_of(command.settings)}
    assert settings_in_file(command, str(file)).keys() == names


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "command: compare\nmodel: a.onnx\ninputs: a.npz\nprecision: fp16\nkeep: all\n"
        "memory-budget: 512M\nfail-on: [output.cosine>=0.9, layer.sqnr_db>=10]\nforce: true\n"
    )
    found = from_flags(CompareSettings, {"precision": "int8"}, str(file))
    assert (found.model, found.precision, found.keep) == ("a.onnx", "int8", "all")
    assert found.memory_budget == 512 << 20 and found.force
    assert found.fail_on == ("output.cosine>=0.9", "layer.sqnr_db>=10")
    assert found.method == CompareSettings("m", "i").method  # neither: the default
    flags = {"fail_on": ["metric>=1"], "samples": "3"}
    gate = from_flags(CompareSettings, flags, str(file))
    assert (gate.fail_on, gate.samples) == (("metric>=1",), 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.model = "b.onnx"


def test_what_is_missing_is_named_with_an_example() -> None:
    with refused("QD-USAGE-REQUIRED", "inputs", "qdebug compare model.onnx"):
        from_flags(CompareSettings, {"model": "m.onnx"})


@pytest.mark.parametrize("setting", ["plan", "metric", "output", "custom_op_library", "fail_on"])
@pytest.mark.parametrize("several", [False, True])
def test_an_empty_value_is_refused(setting: str, several: bool) -> None:
    given = {"model": "m", "inputs": "i", setting: [""] if several else ""}
    with refused("QD-USAGE-VALUE", setting):
        from_flags(CompareSettings, given)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("512M", 512 << 20),
        ("2G", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("64kB", 64 << 10),
        (" 1t ", 1 << 40),
    ],
)
def test_sizes(text: str, size: int, tmp_path: Path) -> None:
    assert parse_bytes(text) == size
    file = tmp_path / "run.yaml"
    file.write_text(f"model: a\ninputs: b\nmemory-budget: {text}\n")
    assert from_flags(CompareSettings, {}, str(file)).memory_budget == size


@pytest.mark.parametrize("text", ["", "null", "~"])
def test_no_value_is_the_default(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"model: a\ninputs: b\nmemory-budget: {text}\n")
    given = {"model": "a", "inputs": "b", "memory_budget": None}
    default = CompareSettings(model="a", inputs="b")
    assert from_flags(CompareSettings, {}, str(file)) == default
    assert settled(CompareSettings, given) == default


@pytest.mark.parametrize(
    ("kind", "name", "value", "code"),
    [
        (CompareSettings, "precision", "foo", "CHOICE"),
        (CompareSettings, "fallback_precision", "int8", "CHOICE"),
        (CompareSettings, "backend", "x", "BACKEND-UNKNOWN"),
        (CompareSettings, "effect", "x", "CHOICE"),
        (CompareSettings, "weights", "per-row", "CHOICE"),
        (CompareSettings, "batch_size", "0", "VALUE"),
        (CompareSettings, "samples", "0", "VALUE"),
        (CompareSettings, "samples", "many", "VALUE"),
        (CompareSettings, "optimization_level", "6", "VALUE"),
        *((CompareSettings, "workspace", text, "VALUE") for text in ("M", "0", "-1", "inf", "1X")),
        (BisectSettings, "max_drop", "1%", "VALUE"),
        (BisectSettings, "max_rise", "-1", "VALUE"),
        (BisectSettings, "time_limit", "0", "VALUE"),
        (BisectSettings, "holdout_share", "1", "VALUE"),
        (SweepSettings, "precision", ["int8,fp4"], "CHOICE"),
        (SweepSettings, "typing", [","], "VALUE"),
        (CompareSettings, "precison", "int8", "KEYWORD"),
    ],
)
def test_a_value_that_is_not_accepted(kind: type[Any], name: str, value: Any, code: str) -> None:
    with pytest.raises(UsageError) as raised:
        settled(kind, GIVEN | {name: value})
    assert raised.value.code == f"QD-USAGE-{code}"
    assert name in raised.value.message


@pytest.mark.parametrize("value", [[{"a": 1}], [["minmax"]], {"a": 1}])
def test_what_may_have_several_values_takes_no_lists_of_lists(value: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for name, setting in (("calibrate", "method"), ("repair", "only"), ("sweep", "precision")):
        settings = COMMANDS[name].settings
        data = {"calib_data": "i.npz"} if name != "sweep" else {"inputs": "i.npz"}
        given = {"model": "m.onnx", **data}
        file.write_text(json.dumps({setting: value}))
        with refused("QD-USAGE-CONFIG-FILE"):
            from_flags(settings, given, str(file))
        with refused("QD-USAGE-VALUE"):
            settled(settings, {**given, setting: value})


def test_a_percentage_is_answered_with_the_number_to_write() -> None:
    with pytest.raises(UsageError) as raised:
        from_flags(BisectSettings, GIVEN | {"max_drop": "1%"})
    assert "0.01" in raised.value.hint


def test_axes_are_lists_with_commas_and_switches_may_be_yaml_truth_values(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("precision: int8,fp16\ntf32: [off, on]\noptimization-level: 3\n")
    found = from_flags(SweepSettings, GIVEN, str(file))
    assert (found.precision, found.tf32) == (("int8", "fp16"), ("off", "on"))
    assert found.optimization_level == ("3",)
    flags = GIVEN | {"precision": ["fp32", "int8,fp32"]}
    assert from_flags(SweepSettings, flags, str(file)).precision == ("fp32", "int8")


def test_objects_are_taken_from_python_and_nowhere_else(tmp_path: Path) -> None:
    def half(histogram: object) -> float:
        return 0.5

    arrays = {"x": [1.0, 2.0]}
    found = settled(
        CalibrateSettings,
        {"model": Path("m.onnx"), "calib_data": arrays, "calibrator": half, "method": "mse"},
    )
    assert found.model == "m.onnx" and found.calib_data.value.keys() == {"x"}
    assert [c.value for c in found.calibrator] == [half] and found.method == ("mse",)
    file = tmp_path / "run.yaml"
    file.write_text("calib-data: {x: [1.0, 2.0]}\n")
    with refused("QD-USAGE-CONFIG-FILE", "calib-data"):
        from_flags(CalibrateSettings, {"model": "m.onnx"}, str(file))
