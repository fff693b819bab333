"""A file that is missing, of another kind or does not fit: the message names flag and file."""

from __future__ import annotations

from typing import Any

import pytest

DATA = ("--inputs", "data.npz")
COMPARE = ("compare", "net.onnx", *DATA)
BISECT = ("bisect", "net.onnx", *DATA, "--target", "output.sqnr_db>=10")
SWEEP = ("sweep", "net.onnx", *DATA)
CALIBRATE = ("calibrate", "net.onnx", "--calib-data", "calib.npz")
PLAN = "schema: qdebug.plan/1\nprecision: int8\n"
CODES = {
    **dict.fromkeys(
        ("--inputs", "--calib-data", "--holdout"), ("QD-SAMPLES-NOT-FOUND", "QD-SAMPLES-FORMAT")
    ),
    **dict.fromkeys(
        ("--plan", "--expect", "--calibration", "--from-cache"), ("QD-PLAN-FILE", "QD-PLAN-FILE")
    ),
    "--profile": ("QD-USAGE-FILE-UNREADABLE", "QD-USAGE-ENGINE-FILE"),
    "--diff": ("QD-USAGE-FILE-UNREADABLE", "QD-USAGE-ENGINE-FILE"),
    "--reference": ("QD-USAGE-REFERENCE", "QD-USAGE-REFERENCE"),
    "--config": ("QD-USAGE-CONFIG-FILE", "QD-USAGE-CONFIG-FILE"),
}
"""Of a file that is missing, and of one of another kind."""


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (COMPARE, "--plan"),
        (("compare", *DATA), "--plan"),
        (BISECT, "--plan"),
        (SWEEP, "--plan"),
        (("inspect", "net.onnx"), "--expect"),
        (COMPARE, "--calibration"),
        (BISECT, "--calibration"),
        (SWEEP, "--calibration"),
        (CALIBRATE, "--from-cache"),
        (BISECT, "--profile"),
        (("inspect", "net.onnx"), "--profile"),
        (("inspect", "net.onnx"), "--diff"),
        (("compare", "net.onnx"), "--inputs"),
        (COMPARE, "--calib-data"),
        (SWEEP, "--calib-data"),
        (BISECT, "--holdout"),
        (CALIBRATE, "--holdout"),
        (("ranges", "net.onnx"), "--calib-data"),
        (COMPARE, "--reference"),
        (("compare",), "--config"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_files(desk: Any, command: tuple[str, ...], flag: str) -> None:
    missing, foreign = CODES[flag]
    desk.refused(*command, flag, "nope.yaml", says=[missing, f"error: {flag}: nope.yaml"])
    desk.write("letter.yaml", "Dear network: how are you?\n")
    desk.refused(*command, flag, "letter.yaml", says=[foreign, f"error: {flag}: letter.yaml"])


def test_layer_information_is_told_from_the_profile_beside_it(desk: Any) -> None:
    desk.write("p.json", '[{"count": 1}, {"name": "conv1", "averageMs": 1.0}]')
    command = (*BISECT, "--profile", "p.json", "--profile-layers")
    desk.refused(
        *command,
        "nope.json",
        says=["QD-USAGE-FILE-UNREADABLE", "error: --profile-layers: nope.json"],
    )


def test_a_kind_of_file_that_belongs_to_another_flag(desk: Any) -> None:
    desk.write("cache", "TRT-101600-EntropyCalibration2\nx: 3c010a14\n")
    says = ["QD-PLAN-FILE", "--plan: cache", "--calibration"]
    desk.refused(*COMPARE, "--plan", "cache", says=says)
    desk.write("scales.yaml", "schema: qdebug.scales/1\ntensors: {x: {amax: 1.0}}\n")
    says = ["QD-PLAN-FILE", "--plan: scales.yaml:1: schema", "--calibration"]
    desk.refused(*COMPARE, "--plan", "scales.yaml", says=says)
    desk.write("other.yaml", "layers: {}\n")
    says = ["QD-PLAN-FILE", "--plan: other.yaml:1: schema", "'schema: qdebug.plan/1'"]
    desk.refused(*COMPARE, "--plan", "other.yaml", says=says)


@pytest.mark.parametrize("command", [COMPARE, BISECT, SWEEP], ids=lambda value: value[0])
def test_a_plan_that_does_not_fit(desk: Any, command: tuple[str, ...]) -> None:
    desk.write("plan.yaml", PLAN + "layers: {conv9: fp32}\n")
    says = ["QD-PLAN-LAYER", "error: --plan: plan.yaml", "'conv9'", "'conv"]
    desk.refused(*command, "--plan", "plan.yaml", says=says)
    desk.refused(
        "export", "plan.yaml", "--model", "net.onnx", says=["QD-PLAN-LAYER", "error: plan.yaml"]
    )


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("x: {amax: [1.0, 2.0]}", ["'x'", "one amax, not 2"]),
        ("w1: {amax: [1.0, 2.0]}", ["'w1'", "'conv1'", "4 output channels", "2 amax"]),
    ],
)
def test_a_range_that_the_model_cannot_use(desk: Any, entry: str, says: list[str]) -> None:
    desk.write("scales.yaml", f"schema: qdebug.scales/1\ntensors: {{{entry}}}\n")
    for command, flag in ((COMPARE, "--calibration"), (BISECT, "--calibration")):
        named = ["QD-PLAN-AMAX-COUNT", f"error: {flag}: scales.yaml: ", *says]
        desk.refused(*command, flag, "scales.yaml", says=named)
    named[1] = "error: --from-cache: scales.yaml: "
    desk.refused(*CALIBRATE, "--from-cache", "scales.yaml", says=named)
    command = ("export", "scales.yaml", "--model", "net.onnx", "--missing", "float")
    named[1] = "error: scales.yaml: "
    desk.refused(*command, says=named)
    desk.write("plan.yaml", f"{PLAN}tensors: {{{entry}}}\n")
    named[1] = "error: --plan: plan.yaml: "
    desk.refused(*COMPARE, "--plan", "plan.yaml", says=named)


def test_models_to_export(desk: Any) -> None:
    desk.write("letter.txt", "Dear network: how are you?\n")
    desk.write("plan.yaml", PLAN)
    command = ("export", "plan.yaml", "--model", "letter.txt")
    desk.refused(*command, says=["QD-MODEL-TRUNCATED", "error: --model: letter.txt"])


def test_a_profile_is_read_before_anything_runs(desk: Any) -> None:
    lines = ["def load():", "    raise SystemError('too early')", "    yield {}"]
    desk.write("mine.py", "\n".join(lines))
    command = ("bisect", "net.onnx", "--inputs", "mine.py:load", "--target", "output.sqnr_db>=10")
    desk.refused(
        *command,
        "--profile",
        "nope.json",
        says=["QD-USAGE-FILE-UNREADABLE", "--profile: nope.json"],
    )
