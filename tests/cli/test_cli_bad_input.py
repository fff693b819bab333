"""Every kind of bad input: exit 2, one message that names it and the next step, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

BASE = ("compare", "net.onnx", "--inputs", "data.npz", "-o", "run.h5")


def with_flags(*flags: str) -> tuple[str, ...]:
    return (*BASE, *flags)


# ---- the model


def test_no_such_model(desk: Any) -> None:
    desk.refused(
        "compare", "no.onnx", "--inputs", "data.npz", says=["no.onnx", "QD-MODEL-NOT-FOUND"]
    )


def test_model_is_no_onnx_file(desk: Any) -> None:
    desk.write("text.onnx", "This is a letter, not a network.\n" * 40)
    words = ["text.onnx", "QD-MODEL-TRUNCATED"]
    desk.refused("compare", "text.onnx", "--inputs", "data.npz", "-o", "r.h5", says=words)
    desk.refused(
        "compare", "data.npz", "--inputs", "data.npz", says=["data.npz", "QD-MODEL-TRUNCATED"]
    )
    desk.refused("compare", ".", "--inputs", "data.npz", says=[".: ", "QD-MODEL-UNREADABLE"])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.95])
def test_truncated_model(desk: Any, share: float) -> None:
    whole = Path("net.onnx").read_bytes()
    Path("cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    says = ["cut.onnx: ", "QD-MODEL-TRUNCATED"]
    desk.refused("compare", "cut.onnx", "--inputs", "data.npz", "-o", "run.h5", says=says)


@pytest.mark.parametrize("opset", [7, 99])
def test_unsupported_opset(desk: Any, cnn: Callable[..., onnx.ModelProto], opset: int) -> None:
    proto = cnn()
    proto.opset_import[0].version = opset
    desk.save(proto, "old.onnx")
    says = [f"old.onnx: opset {opset} ", "9 to ", "QD-MODEL-OPSET"]
    desk.refused("compare", "old.onnx", "--inputs", "data.npz", says=says)


def test_operator_that_the_runtime_lacks(desk: Any, make: Any) -> None:
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], "f")]
    desk.save(make(nodes, {"x": (1, 4)}, {"y": (1, 4)}), "odd.onnx")
    desk.data("four.npz", x=np.ones((2, 4), np.float32))
    desk.refused("compare", "odd.onnx", "--inputs", "four.npz", says=["Frobnicate"])


# ---- the samples


def test_no_such_samples(desk: Any) -> None:
    desk.refused(
        "compare", "net.onnx", "--inputs", "no.npz", says=["no.npz", "QD-SAMPLES-NOT-FOUND"]
    )
    desk.write("data.csv", "1,2,3")
    desk.refused(
        "compare", "net.onnx", "--inputs", "data.csv", says=["data.csv", "QD-SAMPLES-FORMAT"]
    )


def test_truncated_samples(desk: Any) -> None:
    whole = Path("data.npz").read_bytes()
    Path("cut.npz").write_bytes(whole[: len(whole) // 2])
    desk.refused("compare", "net.onnx", "--inputs", "cut.npz", "-o", "r.h5", says=["cut.npz"])


def test_input_name(desk: Any, pictures: Any) -> None:
    desk.data("named.npz", image=pictures(2), mask=pictures(2))
    says = ["named.npz", "'x'", "image"]
    desk.refused("compare", "net.onnx", "--inputs", "named.npz", says=says)


def test_input_shape(desk: Any) -> None:
    desk.data("wide.npz", x=np.zeros((2, 3, 8, 9), np.float32))
    says = ["wide.npz", "'x'", "2, 3, 8, 9", "3, 8, 8"]
    desk.refused("compare", "net.onnx", "--inputs", "wide.npz", says=says)


def test_input_dtype(desk: Any) -> None:
    desk.data("ints.npz", x=np.zeros((2, 3, 8, 8), np.int32))
    says = ["ints.npz", "'x'", "int32", "float32"]
    desk.refused("compare", "net.onnx", "--inputs", "ints.npz", says=says)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["--inputs", "--calib-data"])
def test_nan_or_inf_in_the_samples(desk: Any, pictures: Any, bad: float, where: str) -> None:
    x = pictures(6)
    x[4, 1, 2, 3] = bad
    desk.data("bad.npz", x=x)
    inputs = "bad.npz" if where == "--inputs" else "data.npz"
    flags = ["--calib-data", "bad.npz" if where == "--calib-data" else "calib.npz"]
    says = ["bad.npz", "'x'", "NaN" if np.isnan(bad) else "Inf", "sample 4"]
    desk.refused("compare", "net.onnx", "--inputs", inputs, *flags, "-o", "run.h5", says=says)


def test_zero_samples_and_an_empty_calibration_set(desk: Any, pictures: Any) -> None:
    desk.data("none.npz", x=pictures(0))
    desk.refused(
        "compare", "net.onnx", "--inputs", "none.npz", says=["none.npz", "QD-SAMPLES-EMPTY"]
    )
    desk.refused(*with_flags("--calib-data", "none.npz"), says=["none.npz", "QD-SAMPLES-EMPTY"])
    Path("empty").mkdir()
    desk.refused(*with_flags("--calib-data", "empty"), says=["empty"])


def test_object_arrays_are_refused(desk: Any) -> None:
    marker = Path("executed")

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (marker,))

    desk.data("pickle.npz", x=np.array([Trap()], object))
    desk.refused(
        "compare", "net.onnx", "--inputs", "pickle.npz", says=["pickle.npz", "QD-SAMPLES-OBJECTS"]
    )
    np.save("pickle.npy", np.array([Trap()], object), allow_pickle=True)
    desk.refused(
        "compare", "net.onnx", "--inputs", "pickle.npy", says=["pickle.npy", "QD-SAMPLES-OBJECTS"]
    )
    assert not marker.exists()


def test_script_that_ends_the_program(desk: Any) -> None:
    desk.write("feeds.py", "import sys\nsys.exit(0)\n")
    says = ["sys.exit"]
    desk.refused("compare", "net.onnx", "--inputs", "feeds.py:load_data", says=says)


# ---- flags


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--precision", "foo"], ["--precision", "'foo'", "int8, fp16, fp32"]),
        (["--precision", "fp61"], ["--precision", "Did you mean 'fp16'?"]),
        (["--backend", "tensort"], ["--backend", "'tensort'", "Did you mean 'tensorrt'"]),
        (["--method", "magic"], ["--method", "'magic'", "minmax"]),
        (["--method", "percentile:200"], ["--method", "percentile:200"]),
        (["--keep", "some"], ["--keep some", "worst:N"]),
        (["--keep", "worst:0"], ["--keep worst:0"]),
        (["--memory-budget", "lots"], ["--memory-budget", "'lots'", "512M"]),
        (["--samples", "0"], ["--samples"]),
        (["--fail-on", "cosine"], ["--fail-on", "'cosine'", "output.cosine>=0.99"]),
        (["--fail-on", "output.cosin>=1"], ["--fail-on", "'cosin'", "Did you mean 'cosine'?"]),
        (["--fail-on", "output.cosine>=high"], ["--fail-on", "'high'"]),
        (["--fail-on", "outptu.cosine>=1"], ["--fail-on", "'outptu'", "output"]),
        (["--fail-on", "metric>=0.9"], ["--fail-on", "--metric"]),
        (["--fail-on", "output.worst_sample<=3"], ["--fail-on", "'worst_sample'"]),
        (["--metric", "top5"], ["--metric", "'top5'", "top1, agreement"]),
        (["--metric", "no.py:score"], ["no.py", "QD-METRIC-FUNCTION"]),
        (["--metric", "no_such_module:f"], ["--metric", "'no_such_module'"]),
        (["--metric", "math:no_such"], ["--metric", "'no_such'"]),
        (["--reference", "net.onnx"], ["--reference", "net.onnx", "QD-USAGE-REFERENCE"]),
        (["--reference", "no.h5"], ["no.h5", "QD-STORE-NOT-FOUND"]),
        (["--reference", "data.npz"], ["data.npz"]),
        (["--plan", "no.yaml"], ["no.yaml", "QD-PLAN-FILE"]),
        (["--calibration", "no.yaml"], ["no.yaml"]),
        (["--calib-data", "no.npz"], ["no.npz", "QD-SAMPLES-NOT-FOUND"]),
        (["--config", "no.yaml"], ["no.yaml", "QD-USAGE-CONFIG-FILE"]),
        (["--precison", "int8"], ["--precison", "--precision"]),
        (["--json", "no/where.json"], ["--json: no/where.json", "mkdir -p"]),
        (["--json", "."], ["--json: .", "QD-STORE-OUTPUT-PATH"]),
        (["--save-plan", "no/p.yaml"], ["--save-plan: no/p.yaml", "mkdir -p"]),
        (["-o", "no/run.h5"], ["no/run.h5", "mkdir -p"]),
        (["surplus.onnx"], ["surplus.onnx"]),
        (["--json", "run.h5"], ["--json: run.h5", "--output", "QD-USAGE-SAME-FILE"]),
        (["--json", "net.onnx"], ["--json: net.onnx", "MODEL", "QD-USAGE-SAME-FILE"]),
        (["--force", "-o", "net.onnx"], ["--output: net.onnx", "MODEL", "QD-USAGE-SAME-FILE"]),
        (
            ["--force", "--save-plan", "data.npz"],
            ["--save-plan: data.npz", "--inputs", "QD-USAGE-SAME-FILE"],
        ),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("-") else "",
)
def test_flags(desk: Any, flags: list[str], says: list[str]) -> None:
    desk.refused(*with_flags(*flags), says=says)


def test_a_target_is_checked_before_the_run(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the run was started")

    monkeypatch.setattr("qdebug.pipeline.compare.command._run", never)
    monkeypatch.setattr("qdebug.pipeline.compare.command.build_pair", never)
    desk.write("plan.yaml", "")
    desk.data("bare.npz", x=np.zeros((2, 3, 8, 8), np.float32))
    for flags in (
        ["--json", "no/x.json"],
        ["--save-plan", "no/x.yaml"],
        ["--save-plan", "plan.yaml"],
        ["--metric", "no.py:f"],
        ["--fail-on", "nothing"],
        ["--inputs", "bare.npz", "--metric", "top1"],
    ):
        desk.refused(*with_flags(*flags), says=[])


def test_missing_arguments(desk: Any) -> None:
    desk.refused("compare", says=["MODEL", "QD-USAGE-REQUIRED"])
    desk.refused("compare", "net.onnx", says=["--inputs", "QD-USAGE-REQUIRED"])
    desk.refused("compare", "--inputs", "data.npz", says=["MODEL", "QD-USAGE-REQUIRED"])
    desk.refused("calibrate", says=["MODEL", "QD-USAGE-REQUIRED"])
    desk.refused("calibrate", "net.onnx", says=["--calib-data", "QD-USAGE-REQUIRED"])
    desk.refused("frobnicate", says=["frobnicate"])


@pytest.mark.parametrize("length", [300, 5000])
def test_names_too_long_for_a_file(desk: Any, length: int) -> None:
    name = "x" * length
    for flags in (["--json", name], ["--save-plan", name], ["-o", name], ["--config", name]):
        desk.refused(*with_flags(*flags), says=[name[:50]])
    for flags in (["--inputs", f"{name}.npz"], ["--plan", name], ["--calib-data", f"{name}.npz"]):
        desk.refused(*with_flags(*flags), says=[name[:50]])
    desk.refused("compare", name, "--inputs", "data.npz", says=[name[:50]])


# ---- plans and configurations


def test_plan_with_an_unknown_layer_names_the_nearest(desk: Any) -> None:
    desk.write("p.yaml", "schema: qdebug.plan/1\nlayers:\n  conv_2: fp32\n")
    says = ["'conv_2'", "'conv2'"]
    desk.refused(*with_flags("--plan", "p.yaml"), says=says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema: qdebug.plan/1\nprecision: int4\n", ["p.yaml:2", "precision", "int8"]),
        ("schema: qdebug.plan/1\nlayers:\n  conv1: int8\n  conv2: int9\n", ["p.yaml:4", "int9"]),
        ("schema: qdebug.plan/1\ntensors:\n  nope: {amax: 1}\n", ["'nope'", "nearest"]),
        ("schema: qdebug.plan/1\ntensors:\n  x: {amax: -1}\n", ["p.yaml:3", "-1"]),
        ("schema: qdebug.plan/9\n", ["p.yaml:1", "qdebug.plan/1"]),
        ("a: [1\n", ["p.yaml:"]),
        ("", ["p.yaml:1"]),
    ],
)
def test_bad_plan(desk: Any, text: str, says: list[str]) -> None:
    desk.write("p.yaml", text)
    desk.refused(*with_flags("--plan", "p.yaml"), says=says)


def test_plan_of_another_model(desk: Any, cnn: Any) -> None:
    assert desk.compare("--save-plan", "p.yaml").code == 0
    other = cnn()
    other.graph.doc_string = "another one"
    desk.save(other)
    desk.refused(*with_flags("--plan", "p.yaml"), says=["QD-PLAN-OTHER-MODEL", "net.onnx"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("frobnicate: 1", ["c.yaml:3", "frobnicate", "fail-on", "QD-USAGE-CONFIG-FILE"]),
        ("precision: foo", ["c.yaml:3", "precision", "'int8', 'fp16' or 'fp32'", "foo"]),
        ("backend: cuda", ["backend", "'cuda'", "simulation"]),
        ("samples: -3", ["c.yaml:3", "samples", "-3"]),
        ("memory-budget: lots", ["memory-budget", "lots"]),
        ("command: bisect", ["c.yaml:3", "command", "compare"]),
        ("model: other.onnx", ["c.yaml:3", "'model'"]),
    ],
)
def test_bad_configuration(desk: Any, line: str, says: list[str]) -> None:
    desk.write("c.yaml", f"model: net.onnx\ninputs: data.npz\n{line}\n")
    desk.refused("compare", "--config", "c.yaml", says=says)


# ---- metrics


def test_missing_labels(desk: Any, pictures: Any) -> None:
    desk.data("bare.npz", x=pictures(3))
    says = ["labels", "QD-METRIC-LABELS"]
    desk.refused("compare", "net.onnx", "--inputs", "bare.npz", "--metric", "top1", says=says)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise KeyError('boxes')", ["raised KeyError: 'boxes'", "score.py, line 2"]),
        ("return float('nan')", ["returned nan"]),
        ("return 'good'", ["returned a str"]),
        ("return None", ["NoneType"]),
    ],
)
def test_metric_that_fails_loses_nothing_else(desk: Any, body: str, says: list[str]) -> None:
    desk.write("score.py", f"def score(outputs, labels):\n    {body}\n")
    done = desk.compare("--metric", "score.py:score", "-o", "run.h5", "--keep", "none")
    assert done.code == 2
    for words in ["--metric score.py:score", *says, "Everything else is in run.h5"]:
        assert words in done.err
    assert "Traceback" not in done.err
    import h5py

    with h5py.File("run.h5") as file:
        assert file.attrs["complete"]
        stored = json.loads(file["results"][()])
    assert stored["metric"] is None and len(stored["layers"]) == 5
    assert sorted(p.name for p in Path().iterdir() if "run" in p.name) == ["run.h5"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def score(predictions): return 1\n", ["'predictions'", "outputs, labels and reference"]),
        ("def other(): return 1\n", ["'score'"]),
        ("import no_such_package\n", ["no_such_package", "line 1"]),
        ("def score(:\n", ["score.py", "line 1"]),
    ],
)
def test_metric_file_that_cannot_be_used(desk: Any, text: str, says: list[str]) -> None:
    desk.write("score.py", text)
    desk.refused(*with_flags("--metric", "score.py:score"), says=says)


def test_metric_on_outputs_of_changing_shape(desk: Any, make: Any) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], "find"),
        helper.make_node("Cast", ["i"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    desk.save(make(nodes, {"x": ("N", 4)}, {"y": (2, "k")}), "find.onnx")
    desk.data("f.npz", x=np.array([[1, 0, 0, 0], [1, 1, 0, 0]], np.float32), labels=np.arange(2))
    done = desk.run(
        "compare", "find.onnx", "--inputs", "f.npz", "--metric", "top1", "--allow-unquantized"
    )
    assert done.code == 2
    assert "'y'" in done.err and "QD-METRIC-SHAPES" in done.err


# ---- outputs


def test_existing_outputs_need_force(desk: Any) -> None:
    for flag, name in (("-o", "old.h5"), ("--save-plan", "old.yaml")):
        desk.write(name, "precious")
        args = ("compare", "net.onnx", "--inputs", "data.npz", flag, name)
        desk.refused(*args, says=[name, "--force", "EXISTS]"])
        assert desk.run(*args, "--force").code == 0
        assert Path(name).read_bytes()[:8] != b"precious"


def test_outputs_that_are_no_files(desk: Any) -> None:
    for flag in ("-o", "--save-plan", "--json"):
        desk.refused(
            "compare", "net.onnx", "--inputs", "data.npz", flag, ".", "--force", says=["."]
        )


# ---- a tensor without range is no error


def test_constant_zero_tensor_works_with_a_note(desk: Any, make: Any) -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], "first"),
        node("Relu", ["c"], ["r"], "relu"),
        node("Conv", ["r", "w"], ["y"], "second"),
    ]
    weight = -np.ones((2, 2, 1, 1), np.float32)  # what the ReLU lets through is 0
    shape = ("N", 2, 4, 4)
    desk.save(make(nodes, {"x": shape}, {"y": shape}, {"w": weight}), "dead.onnx")
    desk.data("d.npz", x=np.abs(np.random.default_rng(0).normal(size=(3, 2, 4, 4))).astype("f4"))
    done = desk.run("compare", "dead.onnx", "--inputs", "d.npz", "--json", "-", "-o", "dead.h5")
    assert done.code == 0
    assert any("'r'" in note and "scale is set to 1" in note for note in done.json["notes"])
    second = next(x for x in done.json["layers"] if x["name"] == "second")
    assert second["max_abs_err"] == 0


# ---- files of another kind


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("export", "net.onnx"), "QD-PLAN-FILE"),
        (("compare", "--plan", "net.onnx", "--inputs", "data.npz"), "QD-PLAN-FILE"),
        (("ranges", "data.npz"), "QD-MODEL-TRUNCATED"),
        (("ranges", "net.onnx"), "QD-USAGE-CALIB-DATA"),
        (("inspect", "data.npz"), "QD-USAGE-ENGINE-FILE"),
        (("export", "net.onnx", "--model", "net.onnx", "-o", "data.npz"), "QD-PLAN-FILE"),
    ],
)
def test_a_file_of_another_kind(desk: Any, command: tuple[str, ...], code: str) -> None:
    desk.refused(*command, says=[code])
