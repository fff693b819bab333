"""The verdict: --fail-on in every scope, and end-to-end metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("output.cosine>=0.5", 0),
        ("output.sqnr_db>=200", 1),
        ("layer.sqnr_db>=1", 0),
        ("layer.local_sqnr_db>=200", 1),
        ("layer.local_sqnr_db >= 1", 0),
        ("tensor.inf_count<=0", 0),
        ("tensor.max_abs_err<1e-9", 1),
        ("tensor.nan_count<1", 0),
        ("metric>=0", 0),
        ("metric>2", 1),
    ],
)
def test_each_scope(desk: Any, condition: str, code: int) -> None:
    done = desk.compare("--metric", "agreement", "--fail-on", condition, "--json", "-")
    assert done.code == code, done.err
    verdict = done.json["verdict"]
    assert verdict["passed"] is (code == 0)
    assert [c["passed"] for c in verdict["conditions"]] == [code == 0]
    assert verdict["conditions"][0]["expression"] == condition


def test_the_worst_value_is_reported(desk: Any) -> None:
    result = desk.result("--fail-on", "layer.local_sqnr_db>=0", "--fail-on", "tensor.rmse<=9")
    local, rmse = (c["value"] for c in result["verdict"]["conditions"])
    assert local == min(x["local_sqnr_db"] for x in result["layers"] if x["local_sqnr_db"])
    assert rmse == max(t["rmse"] for t in result["tensors"])


def test_one_of_several_fails(desk: Any) -> None:
    flags = ("--fail-on", "output.cosine>=0.5", "--fail-on", "output.sqnr_db>=200")
    done = desk.compare(*flags)
    assert done.code == 1 and done.out.count("FAILED") == 1
    lines = [line.split()[:2] for line in done.out.splitlines()]
    assert ["holds", "output.cosine>=0.5:"] in lines and ["FAILS", "output.sqnr_db>=200:"] in lines
    assert desk.compare(*flags[:2]).out.count("PASSED") == 1
    assert "PASSED" not in desk.compare().out


def test_nan_fails_every_condition(desk: Any, make: Any) -> None:
    from onnx import helper

    big = np.full((4, 4), 3e4, np.float32)
    nodes = [helper.make_node("MatMul", ["x", "big"], ["y"], "big")]
    desk.save(make(nodes, {"x": ("N", 4)}, {"y": ("N", 4)}, {"big": big}), "hot.onnx")
    desk.data("hot.npz", x=np.ones((3, 4), np.float32))
    for condition in ("output.rmse>=0", "output.rmse<=1e30"):
        args = ("hot.onnx", "--inputs", "hot.npz", "--precision", "fp16", "--fail-on", condition)
        done = desk.run("compare", *args, "--json", "-")
        assert done.code == 1
        (found,) = done.json["verdict"]["conditions"]
        assert found["value"] is None and found["non_finite"] == {"value": "nan"}


SCORE = """
import numpy as np

def score(outputs, labels, reference):
    assert set(outputs) == set(reference) == {"out"}
    assert outputs["out"].shape == (12, 5) and labels["labels"].shape == (12,)
    return float(np.mean(np.argmax(outputs["out"], axis=1) == labels["labels"]))

def accuracy(y_true, y_pred):
    return float(np.mean(y_true == y_pred))
"""


def test_a_function_of_a_file_and_of_a_module_agree_with_top1(desk: Any) -> None:
    desk.write("score.py", SCORE)
    desk.write("scoring.py", SCORE)
    results = [desk.result("--metric", m) for m in ("top1", "score.py:score", "scoring:accuracy")]
    values = [(r["metric"]["reference"], r["metric"]["candidate"]) for r in results]
    assert values[0] == values[1] == values[2]
    assert results[1]["metric"]["name"] == "score.py:score"


def test_agreement_of_the_reference_with_itself_is_1(desk: Any) -> None:
    metric = desk.result("--metric", "agreement")["metric"]
    assert metric["reference"] == 1 and 0 <= metric["candidate"] <= 1


def test_metric_over_several_capture_groups_sees_each_sample_once(desk: Any) -> None:
    whole = desk.result("--metric", "top1")
    parts = desk.result("--metric", "top1", "--memory-budget", "1")
    worst = [[each["sample"] for each in r["metric"].pop("worst")] for r in (whole, parts)]
    assert whole["metric"] == parts["metric"] and worst[0] == worst[1]


def test_clipping_of_the_models_own_input_is_shown(desk: Any) -> None:
    x = np.load("data.npz")["x"]
    desk.write("p.yaml", "schema: qdebug.plan/1\ntensors:\n  x: {amax: 0.5}\n")
    result = desk.result("--plan", "p.yaml")
    conv = next(layer for layer in result["layers"] if layer["name"] == "conv1")
    assert conv["input_clipped_fraction"] == np.count_nonzero(np.abs(x) > 0.5) / x.size
    assert "x" not in {t["name"] for t in result["tensors"]}
    parts = desk.result("--plan", "p.yaml", "--memory-budget", "1")
    again = next(layer for layer in parts["layers"] if layer["name"] == "conv1")
    assert again["input_clipped_fraction"] == conv["input_clipped_fraction"]
