"""Files of `qdebug calibrate`: those it is given are judged, those it writes are checked first, and
what it keeps is never trusted blindly."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import helper

CALIBRATE = ("calibrate", "net.onnx", "--calib-data", "calib.npz", "--holdout", "data.npz")
CALIBRATE = (*CALIBRATE, "--no-progress")


def cache(entries: dict[str, float], kind: str = "EntropyCalibration2") -> str:
    lines = [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in entries.items()]
    return "\n".join([f"TRT-101600-{kind}", *lines]) + "\n"


def difference(desk: Any, file: str, *flags: str) -> Any:
    done = desk.run(*CALIBRATE, "--method", "minmax", "--from-cache", file, *flags, "--json", "-")
    assert done.code == 0, done.err
    return done.json["cache_difference"]


def test_a_cache_of_every_tensor_is_known_whatever_is_kept(desk: Any) -> None:
    """TensorRT writes a range for every tensor: those that no INT8 layer reads are not unknown."""
    scales = dict.fromkeys(["x", "c1", "r1", "c2", "s", "r2", "p", "f", "out", "gone"], 0.05)
    desk.write("old.cache", cache(scales, "MinMaxCalibration"))
    first = difference(desk, "old.cache")
    assert (first["unknown"], first["missing"]) == (["gone"], [])
    assert first["unused"] == len(scales) - 1 - 3  # conv1, conv2 and fc read one each
    assert desk.run("ranges", "net.onnx", "--calib-data", "calib.npz").code == 0
    assert difference(desk, "old.cache") == first  # though the ranges of all are kept now
    assert "gone" in desk.run(*CALIBRATE, "--from-cache", "old.cache").out


def test_tensors_that_are_folded_away_are_known(desk: Any, make: Any) -> None:
    rng = np.random.default_rng(0)
    conv = helper.make_node("Conv", ["x", "w"], ["c"], "conv")
    norm = helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["out"], "norm")
    weights: dict[str, Any] = {"w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32)}
    weights |= {name: np.ones(4, np.float32) for name in "gbmv"}
    desk.save(make([conv, norm], {"x": ("N", 3, 8, 8)}, {"out": ("N", 4, 6, 6)}, weights))
    desk.write("old.cache", cache({"x": 0.03, "c": 1.0, "out": 1.0}))
    assert difference(desk, "old.cache")["unknown"] == []


def test_ranges_are_compared_with_those_of_their_own_method(desk: Any) -> None:
    """Entropy cuts outliers off: its ranges are no fault of a cache that it made."""
    x = np.random.default_rng(0).normal(size=(8, 3, 8, 8)).astype(np.float32)
    x[0, 0, 0, 0] = 20.0
    desk.data("calib.npz", x=x)
    flags = ("--method", "minmax,entropy", "--json", "-")
    methods = desk.run(*CALIBRATE, *flags).json["methods"]
    scale = {name: methods[name]["tensors"]["x"]["scale"] for name in methods}
    assert scale["minmax"] > 4 * scale["entropy"]
    desk.write("entropy.cache", cache({"x": scale["entropy"]}))
    assert difference(desk, "entropy.cache")["different"] == []
    between = cache({"x": scale["minmax"] / 3})  # percentile has no kind of its own
    desk.write("between.cache", between)
    assert difference(desk, "between.cache")["different"] == []
    for factor, by in ((1 / 3, "entropy"), (40, "minmax")):
        desk.write("off.cache", cache({"x": scale["entropy"] * factor}))
        assert [d["method"] for d in difference(desk, "off.cache")["different"]] == [by]
    desk.write("minmax.cache", cache({"x": scale["entropy"]}, "MinMaxCalibration"))
    (found,) = difference(desk, "minmax.cache")["different"]
    assert (found["tensor"], found["method"], found["fresh"]) == ("x", "minmax", 20.0)
    assert "20 by minmax" in desk.run(*CALIBRATE, "--from-cache", "minmax.cache").out
    scales = {"schema": "qdebug.scales/1", "tensors": {"x": {"amax": 2.0, "method": "by hand"}}}
    desk.write("hand.yaml", yaml.safe_dump(scales))
    assert difference(desk, "hand.yaml")["different"][0]["method"] == "minmax"


def test_a_range_of_a_tensor_that_is_0_now_is_off(desk: Any) -> None:
    desk.data("calib.npz", x=np.zeros((8, 3, 8, 8), np.float32))
    desk.write("old.cache", cache({"x": 0.05, "r1": 0.0, "f": 1e-40}))
    found = difference(desk, "old.cache")
    assert {"tensor": "x", "fresh": 0.0}.items() <= found["different"][0].items()
    assert found["degenerate"] == ["r1", "f"]
    (note,) = desk.run(*CALIBRATE, "--from-cache", "old.cache", "--json", "-").json["notes"]
    assert "'x'" in note


def test_a_bad_cache_is_refused_before_the_model_runs(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdebug.run.runner._Sessions.run", None)
    desk.write("bad.cache", "TRT-101600-EntropyCalibration2\nx: 7fc00000\n")
    desk.refused(
        *CALIBRATE, "--from-cache", "bad.cache", says=["QD-PLAN-CACHE", "bad.cache:2", "'x'", "nan"]
    )
    desk.write("other.cache", cache({"y": 1.0}))
    desk.refused(*CALIBRATE, "--from-cache", "other.cache", says=["QD-PLAN-TENSOR", "net.onnx"])


def test_targets_are_checked_before_the_model_runs(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdebug.run.runner._Sessions.run", None)
    desk.write("old.yaml", "")
    desk.refused(
        *CALIBRATE,
        "-o",
        "old.yaml",
        says=["QD-STORE-OUTPUT-EXISTS", "--output: old.yaml", "--force"],
    )
    desk.refused(*CALIBRATE, "-o", ".", says=["QD-STORE-OUTPUT-PATH", "--output: ."])
    desk.refused(
        *CALIBRATE,
        "--trt-cache",
        "no/a.cache",
        says=["QD-STORE-OUTPUT-PATH", "--trt-cache", "mkdir -p"],
    )
    desk.refused(
        *CALIBRATE,
        "--json",
        "no/a.json",
        says=["QD-STORE-OUTPUT-PATH", "--json: no/a.json", "mkdir -p"],
    )
    says = ["QD-USAGE-SAME-FILE", "net.onnx", "MODEL"]
    for flag in ("-o", "--trt-cache", "--json"):
        desk.refused(*CALIBRATE, flag, "net.onnx", "--force", says=says)
    both = ("-o", "one", "--trt-cache", "one")
    desk.refused(*CALIBRATE, *both, says=["QD-USAGE-SAME-FILE", "--trt-cache: one", "--output"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_takes_no_files(desk: Any) -> None:
    Path("closed").mkdir(mode=0o500)
    desk.refused(
        *CALIBRATE, "-o", "closed/scales.yaml", says=["QD-STORE-OUTPUT-PATH", "closed/scales.yaml"]
    )


def test_values_that_are_not_finite_are_told(desk: Any, make: Any) -> None:
    nodes = [
        helper.make_node("Log", ["x"], ["l"], "log"),
        helper.make_node("MatMul", ["l", "w"], ["out"], "fc"),
    ]
    weights = {"w": np.ones((4, 2), np.float32)}
    desk.save(make(nodes, {"x": ("N", 4)}, {"out": ("N", 2)}, weights))
    x = np.random.default_rng(0).uniform(0.1, 1, (6, 4)).astype(np.float32)
    desk.data(x=x)
    x[2, 1] = 0.0
    desk.data("calib.npz", x=x)
    done = desk.run(*CALIBRATE)
    assert done.code == 0
    (note,) = desk.run(*CALIBRATE, "--json", "-").json["notes"]
    assert "'l'" in note and note in done.out


def test_a_single_sample(desk: Any) -> None:
    desk.data("one.npz", x=np.load("calib.npz")["x"][:1])
    desk.data("other.npz", x=np.load("calib.npz")["x"][1:2])
    flags = ("--calib-data", "one.npz", "--holdout", "other.npz", "--json", "-")
    found = desk.run("calibrate", "net.onnx", *flags).json
    assert (found["calibration_samples"], found["held_out_samples"]) == (1, 1)
    assert len(found["methods"]) == 5 and found["coverage"]["growth"]["samples"] == [1]
    flags = ("--calib-data", "one.npz")
    desk.refused("calibrate", "net.onnx", *flags, says=["QD-USAGE-HOLDOUT", "--holdout"])


def test_samples_do_not_judge_their_own_calibration(desk: Any) -> None:
    says = ["QD-USAGE-HOLDOUT-SAME", "--holdout: calib.npz", "--calib-data"]
    flags = ("--calib-data", "calib.npz", "--holdout", "calib.npz")
    desk.refused("calibrate", "net.onnx", *flags, says=says)
    desk.refused("calibrate", "net.onnx", *flags, "--samples", "3", says=says)  # nor some of them


def test_users_calibrators_of_one_name_are_all_tried(desk: Any) -> None:
    desk.write("a.py", "def entropy(h):\n    return h.amax\n\ndef mix(h):\n    return h.amax / 2\n")
    desk.write("b.py", "def half(h):\n    return h.amax / 2\n")
    Path("sub").mkdir()
    desk.write("sub/b.py", "def half(h):\n    return h.amax / 4\n")
    specs = ("a.py:entropy", "a.py:mix", "b.py:half", "sub/b.py:half")
    flags = [flag for spec in specs for flag in ("--calibrator", spec)]
    found = desk.run(*CALIBRATE, "--method", "entropy", *flags, "--json", "-").json["methods"]
    assert list(found) == ["entropy", "a.py:entropy", "mix", "half", "sub/b.py:half"]
    amax = {name: method["tensors"]["x"]["amax"] for name, method in found.items()}
    assert amax["half"] == 2 * amax["sub/b.py:half"] == amax["a.py:entropy"] / 2


def test_a_configuration_file_and_flags_over_it(desk: Any) -> None:
    lines = ["command: calibrate", "model: net.onnx", "calib-data: calib.npz"]
    lines += ["method: [minmax, 'percentile:99']", "holdout-share: 0.5", "output: scales.yaml"]
    desk.write("run.yaml", "\n".join(lines))
    found = desk.run("calibrate", "--config", "run.yaml", "--json", "-").json
    assert set(found["methods"]) == {"minmax", "percentile:99"}
    assert found["held_out_samples"] == 4 and Path("scales.yaml").exists()
    over = ["--method", "entropy", "--holdout-share", "0.25", "-o", "over.yaml", "--json", "-"]
    found = desk.run("calibrate", "--config", "run.yaml", *over).json
    assert set(found["methods"]) == {"entropy"} and found["held_out_samples"] == 2
    again = ("calibrate", "--config", "run.yaml")
    desk.refused(*again, says=["QD-STORE-OUTPUT-EXISTS", "scales.yaml", "--force"])
    desk.refused(
        *again, "-o", "run.yaml", "--force", says=["QD-USAGE-SAME-FILE", "--output", "--config"]
    )
    desk.refused(*again, "--method", ",", says=["QD-USAGE-VALUE", "--method"])
    desk.write("run.yaml", "\n".join([*lines, "select-point: 3"]))
    desk.refused(*again, says=["QD-USAGE-CONFIG-FILE", "--config: run.yaml:7: select-point"])
    desk.refused("compare", *again[1:], says=["QD-USAGE-CONFIG-FILE", "command: must be"])


def test_one_scale_per_weight_reaches_what_is_written_of_the_calibration(desk: Any) -> None:
    given = ["net.onnx", "--calib-data", "calib.npz", "--method", "minmax"]
    compared = ["net.onnx", "--inputs", "data.npz", "--effect", "none", "--json", "-"]
    found = []
    for weights in ("per-tensor", "per-channel"):
        done = desk.run("calibrate", *given, "--weights", weights, "-o", f"{weights}.yaml")
        assert done.code == 0, done.err
        seen = desk.run("compare", *compared, "--calibration", f"{weights}.yaml").json
        asked = desk.run(
            "compare", *compared, "--calib-data", "calib.npz", "--weights", weights
        ).json
        assert seen["outputs"][0]["sqnr_db"] == asked["outputs"][0]["sqnr_db"]
        found.append(seen["outputs"][0]["sqnr_db"])
    assert found[0] != found[1]
