"""`qdebug ranges` on the command line: files, refusals, 80 columns, figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

RANGES = ("ranges", "net.onnx", "--calib-data", "calib.npz", "--no-progress")


def test_table(desk: Any) -> None:
    done = desk.run(*RANGES, "--holdout", "data.npz", "--top", "3")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert "9 tensors" in lines[0] and "8 samples" in lines[0] and "6 more" in lines[1]
    assert lines[2].split()[:3] == ["tensor", "low", "high"] and len(lines[3:6]) == 3
    assert "held-out" in done.out
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)
    assert "held-out" not in desk.run(*RANGES).out


def test_json_is_strict(desk: Any, load_json: Any) -> None:
    x = np.load("calib.npz")["x"]
    x[0, 0, 0, 0] = 40.0
    desk.data("calib.npz", x=x)
    found = desk.run(*RANGES, "--holdout", "data.npz", "--json", "-").json
    assert found["schema"] == "qdebug.ranges/1"
    assert found["source"] == {"kind": "model", "path": "net.onnx"}
    assert found["holdout"] == {"path": "data.npz", "samples": 12}
    tensors = {t["name"]: t for t in found["tensors"]}
    assert len(tensors) == 9
    assert tensors["x"]["high"] == 40.0 and tensors["x"]["read_by"] == ["conv1"]
    assert set(tensors["x"]["percentiles"]) == {"50", "99", "99.9", "99.99"}
    assert tensors["x"]["count"] == x.size and tensors["x"]["calibrators"] is None
    (stretch, *_) = found["coverage"]["stretched_by_one_sample"]
    assert stretch["sample"] == 0
    assert {e["tensor"] for e in found["coverage"]["held_out"]} == {
        t for t, entry in tensors.items() if entry["read_by"]
    }
    assert desk.run(*RANGES, "--tensor", "x", "--json", "x.json").out
    (tensor,) = load_json(Path("x.json").read_text())["tensors"]
    assert tensor["calibrators"][0]["method"] == "minmax"
    octaves = tensor["octaves"]
    counted = sum(o["negative"] + o["positive"] for o in octaves) + tensor["zeros"]
    assert counted == tensor["count"] and octaves[0]["low"] == 32.0


def test_nan_is_shown_and_null_in_json(desk: Any, make: Any) -> None:
    from onnx import helper

    node = helper.make_node
    nodes = [node("Log", ["x"], ["l"], "log"), node("Relu", ["l"], ["out"], "relu")]
    desk.save(make(nodes, {"x": ("N", 4)}, {"out": ("N", 4)}))
    desk.data("calib.npz", x=-np.ones((3, 4), np.float32))
    desk.data("one.npz", x=np.array([[1, -1, 2, 3]], np.float32))
    done = desk.run(*RANGES)
    assert done.code == 0 and "2 tensors, first in l (12 NaN, 0 Inf)" in done.out
    log = next(t for t in desk.run(*RANGES, "--json", "-").json["tensors"] if t["name"] == "l")
    assert log["low"] is None and log["crest_factor"] is None and log["nan_count"] == 12
    assert log["non_finite"]["low"] == "nan"
    assert desk.run(*RANGES, "--tensor", "l").code == 0
    some = desk.run("ranges", "net.onnx", "--calib-data", "one.npz", "--tensor", "l")
    assert some.code == 0 and "1 NaN" in some.out


def test_run_file(desk: Any) -> None:
    desk.result("-o", "run.h5", "--calib-data", "calib.npz", "--method", "percentile:90")
    Path("run.h5").rename("kept")  # known by its content
    from_run = desk.run("ranges", "kept", "--json", "-").json
    from_model = desk.run(*RANGES, "--json", "-").json
    assert from_run["source"]["kind"] == "run"
    planned = {t["name"]: t.pop("planned") for t in from_run["tensors"]}
    assert planned["x"]["method"] == "percentile:90" and planned["x"]["clipped_fraction"] > 0.05
    amax = {t["name"]: t["amax"] for t in from_model["tensors"]}
    assert {t["name"]: t["amax"] for t in from_run["tensors"]} == amax
    assert "plan" in desk.run("ranges", "kept", "--tensor", "x").out


def test_refused(desk: Any) -> None:
    desk.refused("ranges", "net.onnx", says=["QD-USAGE-CALIB-DATA", "--calib-data"])
    desk.refused("ranges", "gone.h5", says=["QD-STORE-NOT-FOUND", "gone.h5"])
    desk.refused(
        "ranges", "gone.onnx", "--calib-data", "calib.npz", says=["QD-MODEL-NOT-FOUND", "gone.onnx"]
    )
    desk.refused(*RANGES, "--sort", "size", says=["QD-USAGE-CHOICE", "--sort", "crest, amax"])
    desk.refused(*RANGES, "--tensor", "r11", says=["QD-USAGE-TENSOR", "'r11'", "'r1'"])
    desk.refused(
        *RANGES, "--json", "no/where.json", says=["QD-STORE-OUTPUT-PATH", "--json: no/where.json"]
    )
    says = ["QD-USAGE-COMMAND-LINE", "--plot", "--tensor NAME", "--json"]
    desk.refused(*RANGES, "--plot", "x.png", says=says)


def test_run_without_ranges(desk: Any) -> None:
    desk.result("-o", "first.h5", "--save-plan", "plan.yaml")
    desk.result("-o", "second.h5", "--plan", "plan.yaml")
    says = ["QD-STORE-NO-RANGES", "second.h5", "--calib-data"]
    desk.refused("ranges", "second.h5", says=says)
    desk.refused(
        *["ranges", "first.h5", "--calib-data", "calib.npz"],
        says=["QD-USAGE-RUN-FILE", "--calib-data: first.h5"],
    )


def test_help_names_every_flag(desk: Any) -> None:
    done = desk.run("ranges", "--help")
    flags = ("--calib-data", "--holdout", "--tensor", "--top", "--sort", "--json")
    assert done.code == 0 and all(flag in done.out for flag in flags)
