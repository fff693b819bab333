"""`qdebug bisect` where its first answer does not hold: literally, or on held-out samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from pytest import approx

from qdebug.plan.planfile import read_plan

BUNDLED = Path(__file__).parents[2] / "calib_data"
CNN, HOLDOUT, CALIB = (
    str(BUNDLED / name) for name in ("digits_cnn.onnx", "digits_holdout.npz", "digits_calib.npz")
)
DIGITS = [CNN, "--inputs", HOLDOUT, "--calib-data", CALIB, "--weights", "per-tensor",
          "--metric", "top1"]  # fmt: skip
DATA = ["--inputs", "data.npz", "--calib-data", "calib.npz"]
TARGET = ["--target", "output.sqnr_db>=55"]


def test_a_set_that_fails_on_held_out_samples_is_searched_on_with_them(desk: Any) -> None:
    # The cheapest set has 10 dB where it was searched, and 9.2 dB on the others.
    target = "output.sqnr_db>=10"
    done = desk.run("bisect", *DIGITS, "--target", target, "--json", "-", "-o", "p.yaml")
    result = done.json
    assert result["passed"] and result["minimal"]
    assert 0 < len(result["pinned"]) < result["candidates"] / 2
    assert any("used in the search" in note for note in result["notes"])
    assert result["verified_on"]["used_in_search"]
    held_out = result["verified_on"]["value"]
    assert 10 <= result["achieved"] <= held_out  # the worse of the two
    # What is said of the samples searched is said of this answer, not of the one that failed.
    assert all(c["used_in_search"] == (c["on"] == "held-out samples") for c in result["checks"])
    everywhere = desk.run(
        "compare", CNN, "--inputs", HOLDOUT, "--plan", "p.yaml", "--json", "-"
    ).json["outputs"][0]["sqnr_db"]
    assert result["achieved"] - 0.1 <= everywhere <= held_out + 0.1


def test_held_out_samples_do_not_calibrate(desk: Any) -> None:
    x = np.random.default_rng(1).normal(size=(12, 3, 8, 8)).astype(np.float32)
    x[3] *= 100  # held out: the fourth of every ten, at a share of 0.3
    desk.data("few.npz", x=x)
    flags = ["net.onnx", "--inputs", "few.npz", *TARGET, "--calib-samples", "5", "-o", "p.yaml"]
    desk.run("bisect", *flags)
    assert read_plan("p.yaml").tensors["x"].amax == approx(np.abs(x[[0, 1, 2, 4, 5]]).max())


def test_a_metric_that_rises_is_no_drop(desk: Any) -> None:
    desk.write("mine.py", "import numpy as np\ndef error(outputs, reference):\n"
               "    return float(np.abs(outputs['out'] - reference['out']).max())\n")  # fmt: skip
    metric = ["--metric", "mine.py:error"]
    says = ["QD-USAGE-METRIC-DIRECTION", "--max-rise 0"]
    desk.refused("bisect", "net.onnx", *DATA, *metric, "--max-drop", "0", says=says)
    result = desk.run(
        "bisect", "net.onnx", *DATA, *metric, "--max-rise", "0.001", "--json", "-"
    ).json
    assert result["passed"] and result["pinned"]
    assert result["target"] == "metric<=0+0.001" and result["achieved"] <= 0.001


def test_an_accuracy_that_rises_is_one(desk: Any) -> None:
    """Better in INT8 than in FP32 by more than may be lost, and worse with shuffled outputs."""
    desk.write("mine.py", "import numpy as np\ndef right(outputs, reference):\n"
               "    same = np.allclose(outputs['out'], reference['out'], atol=1)\n"
               "    exact = np.array_equal(outputs['out'], reference['out'])\n"
               "    return 0.5 if exact else 0.9 if same else 0.0\n")  # fmt: skip
    flags = ["--metric", "mine.py:right", "--max-drop", "0.1", "--json", "-"]
    done = desk.run("bisect", "net.onnx", *DATA, *flags)
    assert done.code == 0 and not done.json["notes"]


def test_what_is_pinned_by_hand_was_not_shown_to_be_needed(desk: Any) -> None:
    flags = ["--max-drop", "0.01", "--pin", "op:Conv", "--json", "-"]
    found = desk.run("bisect", *DIGITS, *flags).json
    assert [layer["user_pinned"] for layer in found["layers"]] == [True] * 13
    assert {layer["if_unpinned"] for layer in found["layers"]} == {None}


def test_a_fixed_batch(desk: Any, cnn: Any) -> None:
    desk.save(cnn(4), "four.onnx")
    flags = [*DATA, *TARGET, "--holdout-share", "0.5", "--json", "-"]
    result = desk.run("bisect", "four.onnx", *flags).json
    assert result["passed"] and result["pinned"]
    assert result["samples"] % 4 == 0


def test_layers_without_a_time_in_the_profile_are_said(desk: Any) -> None:
    search = ["bisect", "net.onnx", *DATA, *TARGET, "--profile", "p.json", "--json", "-"]
    layers = desk.run("bisect", "net.onnx", *DATA, *TARGET, "--pin", "*", "--json", "-").json
    names = [layer["name"] for layer in layers["layers"]]
    entries = [{"name": name, "averageMs": 0.1, "medianMs": 0.1} for name in names]
    for timed, notes in ((1, 1), (len(names), 0)):
        desk.write("p.json", json.dumps([{"count": 1}, *entries[:timed]]))
        said = [n for n in desk.run(*search).json["notes"] if "--profile-layers" in n]
        assert len(said) == notes
        assert all(names[1] in n for n in said)
