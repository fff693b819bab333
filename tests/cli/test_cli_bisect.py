"""`qdebug bisect` as its users run it: contract, bad input, killed searches, the plan."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import helper
from patience import PATIENCE_S

from qdebug.backends.ort_fast.prefix_cache import PrefixCache
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
    "schema", "model", "precision", "strategy", "samples", "target", "passed", "achieved",
    "baseline", "ceiling", "reference_metric", "pinned", "layers", "candidates", "evaluations",
    "minimal", "explanation", "cost", "pareto", "history", "verified_on", "checks", "execution",
    "notes", "engine", "selected_point", "fp16_kernels", "pinned_by_plan", "target_text", "metric",
    "held_out_samples", "grain", "earlier_evaluations", "failed", "data", "framework",
    "reference_interval", "metric_step", "blocks",
}  # fmt: skip


@pytest.fixture
def found(desk: Any) -> Any:
    """The bundled network, whose INT8 with one scale per weight loses 21 points."""

    def search(*flags: str) -> Any:
        done = desk.run("bisect", *DIGITS, *flags, "--json", "-")
        assert done.code in (0, 1), done.err
        # At 0.01, what a search may lose on 150 held-out samples is a single one.
        assert all("which may be chance" in line for line in done.err.splitlines())
        return done.json

    return search


def test_the_contract_and_the_plan(desk: Any, found: Any) -> None:
    result = found("--max-drop", "0.01", "-o", "precision.yaml")
    assert set(result) - {"non_finite"} == KEYS
    assert result["schema"] == "qdebug.bisect/1"
    assert result["passed"] and result["minimal"]
    assert result["baseline"] < 0.9 < result["achieved"]
    assert result["evaluations"] == len(result["history"])
    assert result["metric_step"] == 1 / result["samples"]
    assert {frozenset(h) - {"non_finite", "failure"} for h in result["history"]} == {
        frozenset(
            {
                "pinned",
                "to",
                "replayed",
                "value",
                "metric",
                "passed",
                "seconds",
                "noise",
                "verdict",
                "held_out",
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


def test_every_strategy_meets_the_target_and_auto_is_the_cheapest(found: Any) -> None:
    target = ["--target", "metric>=0.97", "--pin-to", "fp32"]
    results = {
        name: found(*target, "--strategy", name)
        for name in ("auto", "rank", "ddmin", "prefix", "suffix")
    }
    assert all(r["passed"] for r in results.values())
    cheapest = results.pop("auto")
    for name, result in results.items():
        assert cheapest["cost"]["plan"] <= result["cost"]["plan"], name
    assert cheapest["evaluations"] < results["ddmin"]["evaluations"]


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


def test_a_finished_search_again_evaluates_nothing(desk: Any) -> None:
    first, again = (desk.run("bisect", *SMALL, *TARGET, "--json", "-").json for _ in range(2))
    assert not any(e["replayed"] for e in first["history"])
    assert all(e["replayed"] for e in again["history"])


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
        (["--target", "output.cosin>=0.9"], ["QD-METRIC-CONDITION-NAME", "'cosine'"]),
        (["--target", "layer.local_sqnr_db>=9"], ["QD-METRIC-CONDITION-NOT-MEASURED"]),
        ([*TARGET, "--pin", "conv"], ["QD-PLAN-LAYER", "--pin", "'conv"]),
        (
            [*TARGET, "--pin", "conv1", "--never-pin", "op:Conv"],
            ["QD-USAGE-PIN-CONFLICT", "--pin", "--never-pin"],
        ),
        ([*TARGET, "--never-pin", "*"], ["QD-USAGE-NOTHING-TO-PIN", "--never-pin"]),
        ([*TARGET, "--precision", "fp32"], ["QD-USAGE-NOTHING-TO-PIN"]),
        ([*TARGET, "--strategy", "fastest"], ["QD-USAGE-CHOICE", "--strategy", "auto"]),
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
        (["--target", "output.sqnr_db>=55", "--never-pin", "fc"], "'fc'"),
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


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("raise ValueError('no such class')", "QD-METRIC-RAISED"),
        ("return float('nan')", "QD-METRIC-VALUE"),
    ],
)
def test_a_metric_that_fails_keeps_what_was_evaluated(desk: Any, body: str, code: str) -> None:
    # The first call is of FP32.
    desk.write(
        "mine.py",
        "calls = 0\ndef metric(outputs):\n    global calls\n    calls += 1\n"
        f"    if calls > 2:\n        {body}\n    return 0.5\n",
    )
    flags = ["--metric", "mine.py:metric", "--target", "metric>=0.9", "--no-int8-kernels",
             "--journal", "j.jsonl"]  # fmt: skip
    done = desk.run("bisect", *SMALL, *flags)
    assert done.code == 2
    assert f"[{code}]" in done.err and "mine.py" in done.err
    lines = Path("j.jsonl").read_text().splitlines()
    assert len(lines) == 2  # the header, and the search before it failed
    desk.write("mine.py", "def metric(outputs):\n    return 0.5\n")  # mended: another search
    assert "[QD-STORE-JOURNAL]" in desk.run("bisect", *SMALL, *flags).err


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


def test_a_journal_of_another_search_is_refused(desk: Any) -> None:
    flags = [*SMALL, *TARGET, "--journal", "j.jsonl"]
    assert desk.run("bisect", *flags).code == 0
    desk.data("data.npz", x=np.zeros((12, 3, 8, 8), np.float32))
    desk.refused("bisect", *flags, says=["QD-STORE-JOURNAL", "j.jsonl", "--force"])
    desk.write("j.jsonl", "no journal\n")
    desk.refused("bisect", *flags, says=["QD-STORE-JOURNAL", "j.jsonl", "--force"])


def test_paths_that_are_spelled_otherwise_are_the_same_search(desk: Any) -> None:
    desk.write("mine.py", "def metric(outputs):\n    return float(outputs['out'].mean() > -9)\n")
    flags = ("--target", "metric>=1", "--journal", "j.jsonl", "--json", "-", "--metric")
    assert desk.run("bisect", *SMALL, *flags, "mine.py:metric").code == 0
    here = Path.cwd()
    other = [here / word if "." in word else word for word in SMALL]
    for metric in ("./mine.py:metric", f"{here}/mine.py:metric"):
        done = desk.run("bisect", *other, *flags, metric)
        assert done.code == 0, done.err
        assert all(entry["replayed"] for entry in done.json["history"])


def test_a_second_run_evaluates_nothing_new(desk: Any) -> None:
    first = desk.run("bisect", *SMALL, *TARGET, "--json", "-").json
    second = desk.run("bisect", *SMALL, *TARGET, "--json", "-").json
    assert not any(h["replayed"] for h in first["history"])
    assert all(h["replayed"] for h in second["history"])
    for each in (first, second):
        for entry in each["history"]:
            del entry["replayed"]
    assert first["history"] == second["history"]
    assert first["pinned"] == second["pinned"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_search_goes_on(desk: Any, how: signal.Signals) -> None:
    desk.write(
        "slow.py",
        "import time\ndef metric(outputs, labels):\n    time.sleep(0.3)\n"
        "    return float((outputs['out'].argmax(1) == labels['labels']).mean())\n",
    )
    flags = [*SMALL, "--metric", "slow.py:metric", "--target", "metric>=0.0",
             "--strategy", "prefix", "--journal", "j.jsonl"]  # fmt: skip
    flags[flags.index("metric>=0.0")] = "metric<=-1"  # never met: everything is tried
    journal = desk.folder / "j.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    with desk.started("bisect", *flags) as running:
        while time.monotonic() < deadline:
            if journal.exists() and journal.read_bytes().count(b"\n") >= 2:
                break
            time.sleep(0.02)
        running.send_signal(how)
        _, said = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == (130 if how == signal.SIGINT else -9)
    if how == signal.SIGINT:
        assert "interrupted" in said and "rerun the command to resume" in said
    done = desk.run("bisect", *flags, "--json", "-")
    assert done.code == 1
    replayed = [h["replayed"] for h in done.json["history"]]
    assert replayed[0] is True


def test_budgets_end_with_the_best_so_far(desk: Any, found: Any) -> None:
    result = found("--max-drop", "0.01", "--max-evaluations", "3")
    assert result["evaluations"] <= 3
    assert not result["minimal"]
    assert "3" in result["explanation"].split()


def test_the_memory_budget_bounds_what_is_stored_and_changes_no_evaluation(
    found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, most = PrefixCache.reserve, [0]

    def watched(store: PrefixCache, *arguments: Any) -> bool:
        reserved = reserve(store, *arguments)
        most[0] = max(most[0], store.size)
        return reserved

    monkeypatch.setattr(PrefixCache, "reserve", watched)
    held, histories = [], []
    for budget in ("512M", "40K"):
        most[0] = 0
        history = found("--max-drop", "0.01", "--no-cache", "--memory-budget", budget)["history"]
        histories.append([{**evaluation, "seconds": 0} for evaluation in history])
        held.append(most[0])
    assert held[0] > 40 << 10 >= held[1] > 0
    assert histories[0] == histories[1]


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
