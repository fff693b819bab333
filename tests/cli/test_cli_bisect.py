"""`qdebug bisect` as its users run it: contract, bad input, killed searches, the plan."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import helper
from patience import PATIENCE_S

from qdebug.plan.planfile import read_plan

BUNDLED = Path(__file__).parents[2] / "calib_data"
CNN = str(BUNDLED / "digits_cnn.onnx")
DIGITS = [
    CNN,
    "--inputs",
    str(BUNDLED / "digits_holdout.npz"),
    "--calib-data",
    str(BUNDLED / "digits_calib.npz"),
    "--weights",
    "per-tensor",
    "--metric",
    "top1",
    "--batch-size",
    "25",
]
SMALL = ["net.onnx", "--inputs", "data.npz", "--calib-data", "calib.npz"]
TARGET = ["--target", "output.sqnr_db>=55"]
KEYS = {
    "schema", "headline", "model", "precision", "samples", "target", "passed", "achieved",
    "baseline", "ceiling", "reference_metric", "pinned", "layers", "candidates", "evaluations",
    "minimal", "explanation", "cost", "pareto", "history", "verified_on", "checks",
    "notes", "engine", "selected_point", "fp16_kernels", "pinned_by_plan", "target_text", "metric",
    "held_out_samples", "failed", "data", "framework", "reference_interval",
}  # fmt: skip


@pytest.fixture
def found(desk: Any) -> Any:
    """The bundled network, whose INT8 with one scale per weight loses 21 points."""

    def search(*flags: str) -> Any:
        done = desk.run("bisect", *DIGITS, *flags, "--json", "-")
        assert done.code in (0, 1), done.err
        return done.json

    return search


def test_the_contract_and_the_plan(desk: Any, found: Any) -> None:
    result = found("--max-drop", "0.01", "-o", "precision.yaml")
    assert set(result) - {"non_finite"} == KEYS
    assert result["schema"] == "qdebug.bisect/1"
    assert result["passed"] and result["minimal"]
    assert result["baseline"] < 0.9 < result["achieved"]
    assert result["evaluations"] == len(result["history"])
    assert {frozenset(h) - {"non_finite", "failure"} for h in result["history"]} == {
        frozenset(
            {
                "pinned",
                "to",
                "value",
                "metric",
                "passed",
                "seconds",
                "noise",
                "verdict",
                "held_out",
                "on_engine",
                "worst_group",
            }
        )
    }
    assert 0 < len(result["pinned"]) < result["candidates"]
    assert 0 < result["cost"]["pinned_share"] < 1
    assert result["verified_on"]["passed"] and result["verified_on"]["samples"] == 150
    # Proof: each layer, taken out of the set, was evaluated and fails.
    failing = {tuple(h["pinned"]) for h in result["history"] if not h["passed"]}
    for name in result["pinned"]:
        assert tuple(sorted(set(result["pinned"]) - {name})) in failing
    plan = read_plan("precision.yaml")
    assert sorted(plan.layers) == sorted(result["pinned"])
    assert "weight-range" in Path("precision.yaml").read_text("utf-8")
    again = desk.run("compare", *DIGITS[:3], "--plan", "precision.yaml", "--metric", "top1",
                     "--fail-on", "metric>=0.97", "--json", "-")  # fmt: skip
    assert again.code == 0, again.err


def test_the_report_shows_the_layers_and_the_verdict(desk: Any) -> None:
    done = desk.run("bisect", *DIGITS, "--max-drop", "0.01", "--json", "found.json")
    assert done.code == 0
    found = json.loads(Path("found.json").read_text())
    shown = done.out.splitlines()
    for name in found["pinned"]:
        assert any(name in line for line in shown), name
    assert "weight-range" in done.out and shown[-2].startswith("PASSED")
    met = desk.run("bisect", *SMALL, "--target", "output.cosine>=0.5").out
    assert met.splitlines()[-2].startswith("PASSED")


def test_a_plan_that_pins_already(desk: Any) -> None:
    pins = "layers: {conv1: fp32}\n"
    desk.write("pins.yaml", f"schema: qdebug.plan/1\nprecision: int8\n{pins}")
    search = ["bisect", *SMALL, "--plan", "pins.yaml", "--pin-to", "fp32"]
    met = desk.run(*search, "--target", "output.cosine>=0.5").out
    assert "pinned by the plan  1 layer to fp32: conv1" in met
    last = met.splitlines()[-2]
    assert last.startswith("PASSED") and "output.cosine>=0.5" in last
    added = desk.run(*search, *TARGET, "-o", "out.yaml").out
    assert "nothing pinned" not in added and "the plan alone" in added
    assert "Layers to keep in higher precision, besides those of the plan" in added
    assert "2 layers pinned besides the plan's 1 layer" in added
    assert "# by the plan that was searched from\n  conv1: fp32" in Path("out.yaml").read_text()
    result = desk.run(*search, *TARGET, "--json", "-").json
    assert result["pinned_by_plan"] == {"conv1": "fp32"}
    assert result["pinned"] and "conv1" not in result["pinned"]


def test_pins_by_hand(desk: Any, found: Any) -> None:
    free = found("--max-drop", "0.01", "--pin-to", "fp32")
    without = found("--max-drop", "0.01", "--pin-to", "fp32", "--never-pin", free["pinned"][0])
    assert free["pinned"][0] not in without["pinned"]
    forced = found("--max-drop", "0.01", "--pin-to", "fp32", "--pin", "op:Gemm")
    gemm = [x for x in forced["layers"] if x["op_type"] == "Gemm"]
    assert gemm and all(x["user_pinned"] and x["to"] == "fp32" for x in gemm)
    assert all({x["name"] for x in gemm} <= set(h["pinned"]) for h in forced["history"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], ["QD-USAGE-TARGET", "--target", "--max-drop"]),
        ([*TARGET, "--max-drop", "0.1"], ["QD-USAGE-TARGET", "--target", "--max-drop"]),
        (["--max-drop", "0.1"], ["QD-METRIC-MISSING", "--metric"]),
        (["--metric", "top1", "--max-drop", "1%"], ["QD-USAGE-VALUE", "--max-drop", "0.01"]),
        (["--metric", "top1", "--max-rise", "-1"], ["QD-USAGE-VALUE", "--max-rise"]),
        (
            ["--metric", "top1", "--max-rise", "0.1"],
            ["QD-USAGE-METRIC-DIRECTION", "--max-drop 0.1"],
        ),
        (["--target", "metric>=0.9"], ["QD-METRIC-MISSING", "--target", "--metric"]),
        (["--target", "output.cosin>=0.9"], ["QD-METRIC-CONDITION-NAME", "'output.cosine'"]),
        (["--target", "layer.local_sqnr_db>=9"], ["QD-METRIC-CONDITION-NOT-MEASURED"]),
        ([*TARGET, "--pin", "conv"], ["QD-PLAN-LAYER", "--pin", "'conv"]),
        (
            [*TARGET, "--pin", "conv1", "--never-pin", "op:Conv"],
            ["QD-USAGE-PIN-CONFLICT", "--pin", "--never-pin"],
        ),
        ([*TARGET, "--never-pin", "*"], ["QD-USAGE-NOTHING-TO-PIN", "--never-pin"]),
        ([*TARGET, "--precision", "fp32"], ["QD-USAGE-NOTHING-TO-PIN"]),
        ([*TARGET, "--strategy", "rank"], ["QD-USAGE-COMMAND-LINE", "--strategy", "one search"]),
        ([*TARGET, "--journal", "j.jsonl"], ["QD-USAGE-COMMAND-LINE", "--journal", "cache folder"]),
        (
            [*TARGET, "--profile-layers", "x.json"],
            ["QD-USAGE-PROFILE", "--profile-layers", "--profile"],
        ),
        ([*TARGET, "--pin-to", "int4"], ["QD-USAGE-CHOICE", "--pin-to", "fp16"]),
        ([*TARGET, "--pin-to", "int8"], ["QD-USAGE-NOTHING-TO-PIN", "INT8", "--pin-to"]),
        ([*TARGET, "--samples", "1"], ["QD-USAGE-HOLDOUT", "--holdout"]),
        (
            [*TARGET, "--memory-budget", "lots"],
            ["QD-USAGE-VALUE", "--memory-budget", "'lots'", "512M"],
        ),
        ([*TARGET, "--holdout", "data.npz"], ["QD-USAGE-HOLDOUT-SAME", "data.npz", "--inputs"]),
        ([*TARGET, "-o", "data.npz", "--force"], ["QD-USAGE-SAME-FILE", "data.npz", "--inputs"]),
        ([*TARGET, "--metric", "nothing.py:f"], ["QD-METRIC-FUNCTION", "nothing.py"]),
        (
            [*TARGET, "--select-point", "knees"],
            ["QD-USAGE-POINT", "--select-point", "'knees'", "knee"],
        ),
        ([*TARGET, "--select-point", "0"], ["QD-USAGE-POINT", "--select-point", "'0'"]),
    ],
)
def test_bad_input(desk: Any, flags: list[str], says: list[str]) -> None:
    desk.refused("bisect", *SMALL, *flags, says=says)


def test_an_existing_plan_is_kept(desk: Any) -> None:
    desk.write("precision.yaml", "mine")
    desk.refused(
        "bisect",
        *SMALL,
        *TARGET,
        "-o",
        "precision.yaml",
        says=["QD-STORE-OUTPUT-EXISTS", "--force"],
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--metric", "top1", "--target", "metric>=1.01"], "FP32"),
        (["--target", "output.sqnr_db>=55", "--never-pin", "fc"], "--never-pin"),
    ],
)
def test_impossible_targets_are_explained(desk: Any, flags: list[str], named: str) -> None:
    done = desk.run("bisect", *SMALL, *flags, "-o", "precision.yaml", "--json", "found.json")
    assert done.code == 1
    found = json.loads(Path("found.json").read_text())
    assert found["achieved"] is None and not found["passed"]
    assert named in found["explanation"]
    assert not Path("precision.yaml").exists()


def test_fp32_everywhere_meets_any_target(desk: Any) -> None:
    flags = ["--precision", "fp16", "--target", "output.sqnr_db>=1000"]
    assert desk.run("bisect", *SMALL, *flags).code == 0


def test_a_candidate_whose_outputs_break_is_a_failure_not_the_end(desk: Any, make: Any) -> None:
    """In FP16 the first layer overflows; a metric that needs finite outputs then gives NaN."""
    nodes = [
        helper.make_node("MatMul", ["x", "big"], ["a"], "big"),
        helper.make_node("MatMul", ["a", "small"], ["y"], "small"),
    ]
    weights = {
        "big": np.full((4, 4), 3e4, np.float32),
        "small": np.full((4, 2), 1e-5, np.float32),
    }
    desk.save(make(nodes, {"x": ("N", 4)}, {"y": ("N", 2)}, weights), "over.onnx")
    desk.data("over.npz", x=np.ones((10, 4), np.float32))
    desk.write("mean.py", "def metric(outputs):\n    return float(outputs['y'].mean())\n")
    result = desk.run(
        "bisect", "over.onnx", "--inputs", "over.npz", "--precision", "fp16",
        "--metric", "mean.py:metric", "--target", "metric>=1", "--json", "-",
    ).json  # fmt: skip
    assert result["passed"], result
    broken = [h for h in result["history"] if h["verdict"] == "failed-to-build"]
    assert broken and "NaN or Inf" in broken[0]["failure"]
    assert result["pinned"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_search_goes_on_with_the_same_answer(desk: Any, how: signal.Signals) -> None:
    """What was evaluated is in the memo, and is not run again."""
    flags = [*SMALL, *TARGET]
    cache = Path(os.environ["QDEBUG_CACHE_DIR"])
    expected = desk.run("bisect", *flags, "--no-cache", "--json", "-").json
    deadline = time.monotonic() + PATIENCE_S
    with desk.started("bisect", *flags) as running:
        while time.monotonic() < deadline and running.poll() is None:
            if len([*cache.glob("memo/*")]) >= 3:
                break
            time.sleep(0.01)
        running.send_signal(how)
        running.communicate(timeout=PATIENCE_S)
    kept = {path.name for path in cache.glob("memo/*")}
    assert kept
    found = desk.run("bisect", *flags, "--json", "-").json
    assert found["pinned"] == expected["pinned"]
    assert [h["value"] for h in found["history"]] == [h["value"] for h in expected["history"]]
    assert [c["value"] for c in found["checks"]] == [c["value"] for c in expected["checks"]]


def test_a_second_run_evaluates_nothing_new(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = desk.run("bisect", *SMALL, *TARGET, "--json", "-").json

    def never(*_: object) -> None:
        raise AssertionError("a candidate was lowered")

    monkeypatch.setattr("qdebug.execute.variants.lower", never)
    second = desk.run("bisect", *SMALL, *TARGET, "--json", "-").json
    for each in (first, second):
        for entry in each["history"]:
            del entry["seconds"]
    assert first["history"] == second["history"]
    assert first["pinned"] == second["pinned"]


def test_a_metric_that_fails_is_said(desk: Any) -> None:
    desk.write("mine.py", "def metric(outputs):\n    raise ValueError('no such class')\n")
    flags = ["--metric", "mine.py:metric", "--target", "metric>=0.9"]
    done = desk.run("bisect", *SMALL, *flags)
    assert done.code == 2 and "[QD-METRIC-RAISED]" in done.err and "mine.py" in done.err


def test_budgets_end_with_the_best_so_far(desk: Any, found: Any) -> None:
    result = found("--max-drop", "0.01", "--max-evaluations", "3")
    assert result["evaluations"] <= 3
    assert not result["minimal"]
    assert "3" in result["explanation"].split()


def test_a_configuration_holds_it_all(desk: Any) -> None:
    desk.write("run.yaml", yaml.safe_dump({
        "command": "bisect", "model": "net.onnx", "inputs": "data.npz", "calib-data": "calib.npz",
        "target": "output.sqnr_db>=55", "never-pin": ["fc"], "holdout-share": 0.5,
        "memory-budget": "1G",
    }))  # fmt: skip
    result = desk.run("bisect", "--config", "run.yaml", "--json", "-").json
    assert result["samples"] == 6
    assert "fc" not in result["pinned"]


def test_a_run_without_an_engine_is_no_profile(desk: Any, cnn: Any) -> None:
    desk.run("compare", "net.onnx", "--inputs", "data.npz", "-o", "run.h5")
    search = [*SMALL, *TARGET, "--profile", "run.h5"]
    desk.refused("bisect", *search, says=["QD-USAGE-PROFILE-RUN", "--profile"])
    desk.save(cnn("batch"), "other.onnx")
    desk.refused("bisect", "other.onnx", *search[1:], says=["QD-USAGE-PROFILE-RUN", "net.onnx"])
