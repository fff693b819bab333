"""`qdebug inspect`: a real build log, files of every kind, the audit and the gate."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from rich.console import Console

from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.library import LibraryKind, load_library
from qdebug.commands.inspect import InspectSettings, inspect
from qdebug.display.inspect import view
from qdebug.display.terminal import print_view
from qdebug.errors import QdebugError
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.lower import lower
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.planfile import plan_to_yaml
from qdebug.types import Precision

LAYERS = {
    "Layers": [
        {"Name": "conv1 + relu1", "LayerType": "CaskConvolution",
         "Inputs": [{"Name": "x", "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Int8"}],
         "Outputs": [{"Name": "r1", "Dimensions": [1, 4, 8, 8], "Format/Datatype": "Int8"}],
         "Weights": {"Type": "Int8", "Count": 108}, "HasSparseWeights": 1, "TacticName": "i8i8",
         "Metadata": "[ONNX Layer: conv1]\x1f[ONNX Layer: relu1]"},
        {"Name": "conv2", "LayerType": "CaskConvolution",
         "Inputs": [{"Name": "r1", "Dimensions": [1, 4, 8, 8], "Format/Datatype": "Half"}],
         "Outputs": [{"Name": "r2", "Dimensions": [1, 4, 8, 8], "Format/Datatype": "Half"}],
         "HasSparseWeights": 0, "Metadata": "[ONNX Layer: conv2]"},
        {"Name": "fc", "LayerType": "gemm",
         "Inputs": [{"Name": "r2", "Dimensions": [1, 4], "Format/Datatype": "Int8"}],
         "Outputs": [{"Name": "out", "Dimensions": [1, 5], "Format/Datatype": "Float"}],
         "Weights": {"Type": "Int8", "Count": 20}, "HasSparseWeights": 0,
         "Metadata": "[ONNX Layer: fc]"},
    ],
    "Bindings": ["x", "out"],
}  # fmt: skip
PROFILE = [{"count": 1}] + [
    {"name": name, "averageMs": ms} for name, ms in (("conv1 + relu1", 1), ("conv2", 6), ("fc", 3))
]


@cache
def _build() -> tuple[str, str]:
    """The small network's INT8 plan, and the log of its build by TensorRT for RTX, with no GPU."""
    try:
        library = load_library(LibraryKind.RTX)
    except QdebugError as error:
        pytest.skip(f"needs TensorRT for RTX: {error}")
    model = prepare_model(read_model("net.onnx"))
    layers = find_layers(model.graph)
    plan = PrecisionPlan(Precision.INT8, model_sha256=model.file.sha256)
    missing = bind_plan(plan, model, layers).missing_ranges()
    plan = plan.with_ranges({t: TensorRange(4.0) for t in missing}, "a test")
    shape = ShapeRange((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))
    settings = BuildSettings(compute_capabilities=((8, 9),), profile={"x": shape})
    built = build_engine(library, lower(bind_plan(plan, model, layers)).graph.proto, settings)
    return plan_to_yaml(plan, "net.onnx"), built.log


@pytest.fixture
def real(desk: Any) -> Any:
    """The desk with that plan and log as plan.yaml and build.log."""
    plan, log = _build()
    desk.write("plan.yaml", plan)
    desk.write("build.log", log)
    return desk


@pytest.fixture
def told(desk: Any) -> Any:
    """The desk with layer information and a profile: layers.json, profile.json."""
    desk.write("layers.json", json.dumps(LAYERS))
    desk.write("profile.json", json.dumps(PROFILE))
    return desk


def test_a_build_log_is_audited_against_its_plan_as_a_program(real: Any) -> None:
    done = real.spawn("inspect", "build.log", "--expect", "plan.yaml", "--fail-on", "int8_share>=1")
    assert (done.code, done.err) == (0, "")
    assert "3 layers, all int8" in done.out and "(plan.yaml): 4 as-planned, 1 gone" in done.out
    assert done.out.splitlines()[-1] == "PASSED"


def test_the_json_tells_of_every_layer_and_every_node(real: Any) -> None:
    done = real.run("inspect", "build.log", "--expect", "plan.yaml", "--json", "-")
    result = done.json
    assert (done.code, result["schema"], result["source"]) == (0, "qdebug.inspect/1", "build-log")
    audit = {row["name"]: row for row in result["audit"]["layers"]}
    assert {audit[n]["verdict"] for n in ("conv1", "conv2", "fc")} == {"as-planned"}
    nodes = {n["name"]: n["engine_layers"] for row in audit.values() for n in row["nodes"]}
    assert nodes.keys() == {"conv1", "relu1", "conv2", "add", "relu2", "pool", "flatten", "fc"}
    gone = {row["name"] for row in audit.values() if row["verdict"] == "gone"}
    names = {layer["name"] for layer in result["layers"]}
    assert all(set(to) <= names and (to or node in gone) for node, to in nodes.items())
    assert result["values"]["int8_mac_share"] == 1
    assert result["verdict"]["passed"] is True


def test_a_layer_built_otherwise_than_planned_fails_and_is_named(real: Any) -> None:
    plan = yaml.safe_load(Path("plan.yaml").read_text())
    plan["layers"] = {"relu2": "fp16"}  # any node's name stands for the layer
    real.write("plan.yaml", yaml.safe_dump(plan))
    done = real.run("inspect", "build.log", "--expect", "plan.yaml")
    assert done.code == 1
    line = next(x for x in done.out.splitlines() if x.endswith("mismatch"))
    assert line.split() == ["conv2", "Conv", "fp16", "int8", "mismatch"]
    assert done.out.splitlines()[-1] == "FAILED"
    result = real.run("inspect", "build.log", "--expect", "plan.yaml", "--json", "-").json
    assert result["audit"]["mismatches"] == ["conv2"]
    assert result["values"]["mismatch_count"] == 1


def test_the_lowered_model_and_its_engine_are_both_what_was_planned(real: Any) -> None:
    assert real.run("export", "plan.yaml", "--to", "onnx", "-o", "int8.onnx").code == 0
    assert real.run("inspect", "int8.onnx", "--expect", "plan.yaml").code == 0
    done = real.run("inspect", "net.onnx", "--expect", "plan.yaml", "--json", "-")
    assert done.code == 1 and len(done.json["audit"]["mismatches"]) == 3
    result = real.run("inspect", "net.onnx", "--diff", "build.log", "--json", "-").json
    changed = {c["node"]: c["changed"] for c in result["diff"]["changes"]}
    assert changed["conv1"][0] == "precision" and result["diff"]["values"]["int8_share"] == 1


def test_times_findings_and_a_diff_are_shown(told: Any) -> None:
    done = told.run("inspect", "layers.json", "--profile", "profile.json")
    assert done.code == 0
    for figures in ("10 ms, 4 in int8", "1 × int8 → fp16, 1 × fp16 → int8", "1 of 3"):
        assert figures in done.out
    detailed = told.run("inspect", "layers.json", "-v").out
    assert "i8i8" in detailed and "x int8 [1, 3, 8, 8]" in detailed
    other = json.loads(json.dumps(LAYERS).replace("Half", "Int8"))
    told.write("other.json", json.dumps(other))
    done = told.run("inspect", "layers.json", "--diff", "other.json")
    assert "1 of 4" in done.out
    assert ["conv2", "fp16", "int8", "precision"] in [x.split() for x in done.out.splitlines()]


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (["int8_share>=0.6"], 0),
        (["int8_share>=0.6", "left_high<=0"], 1),
        (["int8_mac_share>0"], 1),  # not told without the model
        (["mismatch_count<=0"], 1),  # nothing was audited
    ],
)
def test_the_gate(told: Any, conditions: list[str], code: int) -> None:
    flags = [part for c in conditions for part in ("--fail-on", c)]
    done = told.run("inspect", "layers.json", *flags)
    assert done.code == code
    assert done.out.count("FAILS") == code


def test_a_gate_on_a_share_fails_with_the_layers_that_may_hide_products(desk: Any) -> None:
    opaque = {"Name": "{ForeignNode[a...b]}", "LayerType": "Myelin"}
    desk.write("swin.json", json.dumps({**LAYERS, "Layers": [LAYERS["Layers"][0], opaque]}))
    done = desk.run(
        *("inspect", "swin.json", "--fail-on", "int8_share>=0.5", "--json", "-"),
        *("--html", "page.html"),
    )
    assert (done.code, done.json["opaque"]) == (1, ["{ForeignNode[a...b]}"])
    assert [(s["precision"], s["products"]) for s in done.json["products"]] == [("int8", 1)]
    (condition,) = done.json["verdict"]["conditions"]
    assert condition["value"] is None and condition["reason"].startswith("1 layer ")


def test_nodes_that_are_named_anew_are_matched_by_structure(told: Any) -> None:
    other = json.dumps(LAYERS).replace("Half", "Int8").replace("conv", "op_")
    told.write("other.json", other.replace('"relu1', '"op_2').replace("fc", "op_7"))
    times = json.dumps(PROFILE).replace("conv", "op_").replace("fc", "op_7")
    told.write("other_profile.json", times.replace("6", "7"))
    done = told.run(
        *("inspect", "layers.json", "--profile", "profile.json", "--diff", "other.json"),
        *("--diff-profile", "other_profile.json", "--json", "-"),
    )
    diff = done.json["diff"]
    assert (diff["matched_by"], diff["compared_nodes"]) == ("structure", 3)
    (change,) = diff["changes"]
    assert (change["node"], change["changed"]) == ("conv2", ["precision", "time"])
    (work,) = diff["work"]
    assert (work["role"], work["ms_before"], work["ms_after"]) == ("matrix", 10, 11)
    shown = told.run(
        *("inspect", "layers.json", "--profile", "profile.json", "--diff", "other.json"),
        *("--diff-profile", "other_profile.json"),
    ).out
    assert "loses 1 ms in 3 conv/matmul" in shown and "Slower in INT8" in shown


def test_engines_that_have_nothing_in_common_are_compared_in_total(told: Any) -> None:
    layer = {"Name": "z", "LayerType": "kgen", "Outputs": [{"Name": "o", "Dimensions": [1, 77]}]}
    told.write("else.json", json.dumps({"Layers": [layer]}))
    diff = told.run("inspect", "layers.json", "--diff", "else.json", "--json", "-").json["diff"]
    assert (diff["matched_by"], diff["changes"], diff["compared_nodes"]) == ("totals", [], 0)
    assert [(w["role"], w["layers_before"], w["layers_after"]) for w in diff["work"]] == [
        ("matrix", 3, 0), ("other", 0, 1)
    ]  # fmt: skip


def test_the_table_is_written_as_csv_that_spreadsheets_open(told: Any) -> None:
    done = told.run("inspect", "layers.json", "--profile", "profile.json", "--csv", "layers.csv")
    assert done.code == 0
    text = Path("layers.csv").read_bytes()
    assert text.startswith(b"\xef\xbb\xbf")
    rows = list(csv.DictReader(io.StringIO(text.decode("utf-8-sig"))))
    assert [(r["layer"], r["precision"], float(r["ms"])) for r in rows] == [
        ("conv1 + relu1", "int8", 1), ("conv2", "fp16", 6), ("fc", "int8", 3)
    ]  # fmt: skip
    assert float(rows[1]["time_share"]) == 0.6
    assert float(rows[0]["macs"]) == 108 * 64
    told.refused(
        "inspect",
        "layers.json",
        "--csv",
        "layers.csv",
        says=["QD-STORE-OUTPUT-EXISTS", "layers.csv"],
    )


def test_a_profile_of_another_engine_is_refused_with_the_count(told: Any) -> None:
    told.write("few.json", json.dumps([PROFILE[0], PROFILE[3], {"name": "z", "averageMs": 1}]))
    says = ["QD-USAGE-PROFILE-OTHER-ENGINE", "1 of the engine's 3 layers", "'z'"]
    told.refused("inspect", "layers.json", "--profile", "few.json", says=says)


def test_the_model_tells_the_work_that_layer_information_does_not(told: Any) -> None:
    values = told.run("inspect", "layers.json", "--model", "net.onnx", "--json", "-").json["values"]
    work = [4 * 64 * 27, 4 * 64 * 36, 20]
    assert values["int8_mac_share"] == pytest.approx(1 - work[1] / sum(work))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gone.log"], ["QD-USAGE-FILE-UNREADABLE", "gone.log"]),
        (["data.npz"], ["QD-USAGE-ENGINE-FILE", "data.npz"]),
        (
            ["layers.json", "--fail-on", "int8_shar>1"],
            ["QD-METRIC-CONDITION-NAME", "'int8_share'", "fused_share"],
        ),
        (["layers.json", "--fail-on", "output.int8_share>1"], ["QD-METRIC-CONDITION-NAME"]),
        (
            ["layers.json", "--fail-on", "int8_share>=most"],
            ["QD-METRIC-CONDITION-SYNTAX", "=most"],
        ),
        (["layers.json", "--profile", "layers.json"], ["QD-USAGE-ENGINE-FILE", "layers.json"]),
        (["layers.json", "--expect", "bare.yaml"], ["QD-PLAN-NO-MODEL", "--model"]),
        (
            ["layers.json", "--expect", "bare.yaml", "--model", "data.npz"],
            ["QD-MODEL-FORMAT", "data.npz"],
        ),
        (
            ["names.json", "--expect", "bare.yaml", "--model", "net.onnx"],
            ["QD-USAGE-AUDIT-NAMES-ONLY", "profilingVerbosity"],
        ),
        (
            ["other.json", "--expect", "bare.yaml", "--model", "net.onnx"],
            ["QD-USAGE-AUDIT-OTHER-MODEL"],
        ),
        (["layers.json", "--diff-profile", "profile.json"], ["QD-USAGE-DIFF-PROFILE", "--diff"]),
        (
            ["layers.json", "--diff", "layers.json", "--diff-profile", "other.json"],
            ["QD-USAGE-ENGINE-FILE", "--diff-profile"],
        ),
        (["layers.json", "--json", "layers.json"], ["QD-USAGE-SAME-FILE", "FILE"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_refused(told: Any, arguments: list[str], says: list[str]) -> None:
    told.write("bare.yaml", "schema: qdebug.plan/1\n")
    told.write("names.json", '{"Layers": ["conv1"], "Bindings": []}')
    other = json.dumps(LAYERS)
    for name in ("conv1", "relu1", "conv2", "fc"):
        other = other.replace(name, f"another_{name}")
    told.write("other.json", other)
    told.refused("inspect", *arguments, says=says)


def test_a_terminal_of_80_columns_is_enough(real: Any) -> None:
    result = inspect(InspectSettings("build.log", expect="plan.yaml", diff="net.onnx"))
    for detailed in (False, True):
        page = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
        print_view(page, view(result, top=50, detailed=detailed))
        lines = page.file.getvalue().splitlines()
        assert detailed or max(map(len, lines)) <= 80
        assert any("conv1" in line and "correlation" in line for line in lines)


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("shape", "macs"),
    [
        ((1, 3, 8, 8), "6.91 k per sample"),
        (("N", 3, 8, 8), "6.91 k per sample"),
        (("frames", 3, 8, 8), "6.91 k for frames = 1"),
        ((4, 3, 8, 8), "27.6 k per execution"),
        (("N", 3, "height", 8), "unknown: height "),
        (("N", 3, None, None), "unknown: axis 2 and axis 3 "),
    ],
)
def test_the_work_of_a_model_is_unknown_where_an_axis_is(
    desk: Any, make: Callable[..., onnx.ModelProto], shape: tuple[Any, ...], macs: str
) -> None:
    """4 filters of 3 × 3 × 3 at 64 places: 6912 multiply-accumulates."""
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4)
    weight = np.zeros((4, 3, 3, 3), np.float32)
    desk.save(make([conv], {"x": shape}, {"y": (shape[0], 4, *shape[2:])}, {"w": weight}), "c.onnx")
    done = desk.run("inspect", "c.onnx")
    (line,) = (line for line in done.out.splitlines() if line.startswith("MACs"))
    assert line.removeprefix("MACs").strip().startswith(macs)
    found = desk.run("inspect", "c.onnx", "--json", "-").json
    (product,) = found["products"]
    assert product["macs"] == (None if "unknown" in macs else 6912 * (4 if shape[0] == 4 else 1))
    assert found["values"]["fp32_mac_share"] == (None if "unknown" in macs else 1)


def test_a_shape_for_free_axes_tells_the_work(
    desk: Any, make: Callable[..., onnx.ModelProto]
) -> None:
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4)
    axes, weight = ("N", 3, "h", "w"), np.zeros((4, 3, 3, 3), np.float32)
    desk.save(make([conv], {"x": axes}, {"y": ("N", 4, "h", "w")}, {"w": weight}), "c.onnx")
    found = desk.run("inspect", "c.onnx", "--shape", "x:Nx3x8x8", "--json", "-").json
    assert found["products"][0]["macs"] == 6912
    desk.refused("inspect", "c.onnx", "--shape", "y:1x3x8x8", says=["QD-USAGE-SHAPE", "'y'"])
    desk.write("info.json", json.dumps(LAYERS))
    desk.refused("inspect", "info.json", "--shape", "x:1", says=["QD-USAGE-SHAPE", "info.json"])


def test_a_row_per_sample_of_a_product_behind_a_reshape(
    desk: Any, make: Callable[..., onnx.ModelProto]
) -> None:
    """The leading axis of what it reads is batch × 5: one sample is 5 rows."""
    nodes = [
        onnx.helper.make_node("Reshape", ["x", "shape"], ["rows"], "reshape"),
        onnx.helper.make_node("MatMul", ["rows", "w"], ["y"], "matmul"),
    ]
    constants = {"shape": np.array([-1, 8], np.int64), "w": np.zeros((8, 2), np.float32)}
    desk.save(make(nodes, {"x": ("N", 5, 8)}, {"y": ("M", 2)}, constants), "r.onnx")
    (product,) = desk.run("inspect", "r.onnx", "--json", "-").json["products"]
    assert product["macs"] == 5 * 8 * 2


def test_inputs_and_outputs_come_first(desk: Any) -> None:
    done = desk.run("inspect", "net.onnx")
    found = desk.run("inspect", "net.onnx", "--json", "-").json
    assert [t["name"] for t in found["model_inputs"]] == ["x"]
    shape = found["model_inputs"][0]["shape"]
    shown = ["input", "x", "fp32", *" × ".join(map(str, shape)).split()]
    assert _lines(done.out)[2] == shown
    assert _lines(done.out)[3][0] == "output"
