"""Bad input of every kind: exit 2, one message that names it and the next step, nothing written.
Files that are missing or of another kind are in test_cli_file_flags."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

BASE = ("compare", "net.onnx", "--inputs", "data.npz", "-o", "run.h5")


def with_flags(*flags: str) -> tuple[str, ...]:
    """BASE, in which `flags` replace what they give again."""
    pairs = [BASE[i : i + 2] for i in range(2, len(BASE), 2)]
    kept = [word for pair in pairs if pair[0] not in flags for word in pair]
    return (*BASE[:2], *kept, *flags)


# ---- the flags


def test_a_flag_that_is_gone_says_what_to_use(desk: Any) -> None:
    says = ["QD-USAGE-COMMAND-LINE", "--segments is no longer there", "--memory-budget"]
    desk.refused(*BASE, "--segments", "3", says=says)


# ---- the model


def test_no_such_model(desk: Any) -> None:
    desk.refused(
        "compare", "no.onnx", "--inputs", "data.npz", says=["QD-MODEL-NOT-FOUND", "no.onnx"]
    )


def test_model_is_no_onnx_file(desk: Any) -> None:
    desk.write("text.onnx", "This is a letter, not a network.\n" * 40)
    words = ["QD-MODEL-TRUNCATED", "text.onnx"]
    desk.refused("compare", "text.onnx", "--inputs", "data.npz", "-o", "r.h5", says=words)
    desk.refused(
        "compare", "data.npz", "--inputs", "data.npz", says=["QD-MODEL-FORMAT", "data.npz"]
    )
    desk.refused("compare", ".", "--inputs", "data.npz", says=["QD-MODEL-UNREADABLE", ".: "])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.95])
def test_truncated_model(desk: Any, share: float) -> None:
    whole = Path("net.onnx").read_bytes()
    Path("cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    says = ["QD-MODEL-TRUNCATED", "cut.onnx: "]
    desk.refused("compare", "cut.onnx", "--inputs", "data.npz", "-o", "run.h5", says=says)


@pytest.mark.parametrize("opset", [7, 99])
def test_unsupported_opset(desk: Any, cnn: Callable[..., onnx.ModelProto], opset: int) -> None:
    proto = cnn()
    proto.opset_import[0].version = opset
    desk.save(proto, "old.onnx")
    says = ["QD-MODEL-OPSET", "old.onnx", f"opset {opset} ", "9 to "]
    desk.refused("compare", "old.onnx", "--inputs", "data.npz", says=says)


def test_operator_that_the_runtime_lacks(desk: Any, make: Any) -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["h"], "f"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "m"),
    ]
    weights = {"w": np.eye(4, dtype=np.float32)}
    desk.save(make(nodes, {"x": (1, 4)}, {"y": (1, 4)}, weights), "odd.onnx")
    desk.data("four.npz", x=np.ones((2, 4), np.float32))
    desk.refused(
        "compare", "odd.onnx", "--inputs", "four.npz", says=["QD-MODEL-REFUSED", "Frobnicate"]
    )


# ---- the samples


def test_truncated_samples(desk: Any) -> None:
    whole = Path("data.npz").read_bytes()
    Path("cut.npz").write_bytes(whole[: len(whole) // 2])
    desk.refused(
        "compare",
        "net.onnx",
        "--inputs",
        "cut.npz",
        "-o",
        "r.h5",
        says=["QD-SAMPLES-DAMAGED", "cut.npz"],
    )


def test_input_name(desk: Any, pictures: Any) -> None:
    desk.data("named.npz", image=pictures(2), mask=pictures(2))
    says = ["QD-SAMPLES-NAMES", "named.npz", "'x'", "image"]
    desk.refused("compare", "net.onnx", "--inputs", "named.npz", says=says)


def test_input_shape(desk: Any) -> None:
    desk.data("wide.npz", x=np.zeros((2, 3, 8, 9), np.float32))
    says = ["QD-SAMPLES-SHAPE", "wide.npz", "'x'", "2, 3, 8, 9", "3, 8, 8"]
    desk.refused("compare", "net.onnx", "--inputs", "wide.npz", says=says)


def test_input_dtype(desk: Any) -> None:
    desk.data("ints.npz", x=np.zeros((2, 3, 8, 8), np.int32))
    says = ["QD-SAMPLES-DTYPE", "ints.npz", "'x'", "int32", "float32"]
    desk.refused("compare", "net.onnx", "--inputs", "ints.npz", says=says)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["--inputs", "--calib-data"])
def test_nan_or_inf_in_the_samples(desk: Any, pictures: Any, bad: float, where: str) -> None:
    x = pictures(6)
    x[4, 1, 2, 3] = bad
    desk.data("bad.npz", x=x)
    inputs = "bad.npz" if where == "--inputs" else "data.npz"
    flags = ["--calib-data", "bad.npz" if where == "--calib-data" else "calib.npz"]
    says = [
        "QD-SAMPLES-NON-FINITE",
        "bad.npz",
        "'x'",
        "NaN" if np.isnan(bad) else "Inf",
        "sample 4",
    ]
    desk.refused("compare", "net.onnx", "--inputs", inputs, *flags, "-o", "run.h5", says=says)


def test_zero_samples_and_an_empty_calibration_set(desk: Any, pictures: Any) -> None:
    desk.data("none.npz", x=pictures(0))
    desk.refused(
        "compare", "net.onnx", "--inputs", "none.npz", says=["QD-SAMPLES-EMPTY", "none.npz"]
    )
    desk.refused(*with_flags("--calib-data", "none.npz"), says=["QD-SAMPLES-EMPTY", "none.npz"])
    Path("empty").mkdir()
    desk.refused(*with_flags("--calib-data", "empty"), says=["QD-SAMPLES-FORMAT", "empty"])


def test_object_arrays_are_refused(desk: Any) -> None:
    marker = Path("executed")

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (marker,))

    desk.data("pickle.npz", x=np.array([Trap()], object))
    desk.refused(
        "compare", "net.onnx", "--inputs", "pickle.npz", says=["QD-SAMPLES-OBJECTS", "pickle.npz"]
    )
    np.save("pickle.npy", np.array([Trap()], object), allow_pickle=True)
    desk.refused(
        "compare", "net.onnx", "--inputs", "pickle.npy", says=["QD-SAMPLES-OBJECTS", "pickle.npy"]
    )
    assert not marker.exists()


def test_script_that_ends_the_program(desk: Any) -> None:
    desk.write("feeds.py", "import sys\nsys.exit(0)\n")
    says = ["QD-USAGE-SCRIPT-EXIT", "sys.exit"]
    desk.refused("compare", "net.onnx", "--inputs", "feeds.py:load_data", says=says)


# ---- flags


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--precision", "foo"],
            ["QD-USAGE-CHOICE", "--precision", "'foo'", "int8, fp8, a16w8, bf16, fp16, fp32"],
        ),
        (["--precision", "fp61"], ["QD-USAGE-CHOICE", "--precision", "'fp16'"]),
        (
            ["--backend", "tensort"],
            ["QD-USAGE-BACKEND-UNKNOWN", "--backend", "'tensort'", "'tensorrt'"],
        ),
        (["--method", "magic"], ["QD-USAGE-CALIBRATOR", "--method", "'magic'", "minmax"]),
        (
            ["--method", "percentile:200"],
            ["QD-USAGE-CALIBRATOR-PARAMETER", "--method", "percentile:200"],
        ),
        (["--keep", "some"], ["QD-USAGE-KEEP", "--keep some", "worst:N"]),
        (["--keep", "worst:0"], ["QD-USAGE-KEEP", "--keep worst:0"]),
        (["--memory-budget", "lots"], ["QD-USAGE-VALUE", "--memory-budget", "'lots'", "512M"]),
        (["--samples", "0"], ["QD-USAGE-VALUE", "--samples"]),
        (
            ["--fail-on", "cosine"],
            ["QD-METRIC-CONDITION-SYNTAX", "--fail-on", "'cosine'", "output.cosine>=0.99"],
        ),
        (
            ["--fail-on", "output.cosin>=1"],
            ["QD-METRIC-CONDITION-NAME", "--fail-on", "'output.cosine'"],
        ),
        (
            ["--fail-on", "output.cosine>=high"],
            ["QD-METRIC-CONDITION-SYNTAX", "--fail-on", "=high"],
        ),
        (
            ["--fail-on", "outptu.cosine>=1"],
            ["QD-METRIC-CONDITION-NAME", "--fail-on", "outptu", "output.cosine"],
        ),
        (["--fail-on", "metric>=0.9"], ["QD-METRIC-MISSING", "--fail-on", "--metric"]),
        (
            ["--fail-on", "output.worst_sample<=3"],
            ["QD-METRIC-CONDITION-NAME", "--fail-on", "output.worst_sample"],
        ),
        (
            ["--metric", "top7"],
            ["QD-METRIC-UNKNOWN", "--metric", "'top7'", "top1", "agreement", "metric.py:score"],
        ),
        (["--metric", "no.py:score"], ["QD-METRIC-FUNCTION", "no.py"]),
        (["--metric", "no_such_module:f"], ["QD-METRIC-FUNCTION", "--metric", "'no_such_module'"]),
        (["--metric", "math:no_such"], ["QD-METRIC-FUNCTION", "--metric", "'no_such'"]),
        (["--reference", "net.onnx"], ["QD-USAGE-REFERENCE", "--reference", "net.onnx"]),
        (["--method", "mse", "--method=minmax"], ["QD-USAGE-COMMAND-LINE", "--method"]),
        (["--precison", "int8"], ["QD-USAGE-COMMAND-LINE", "--precison", "--precision"]),
        (
            ["--json", "no/where.json"],
            ["QD-STORE-OUTPUT-PATH", "--json: no/where.json", "mkdir -p"],
        ),
        (["--json", "."], ["QD-STORE-OUTPUT-PATH", "--json: ."]),
        (
            ["--save-plan", "no/p.yaml"],
            ["QD-STORE-OUTPUT-PATH", "--save-plan: no/p.yaml", "mkdir -p"],
        ),
        (["-o", "no/run.h5"], ["QD-STORE-OUTPUT-PATH", "no/run.h5", "mkdir -p"]),
        (["surplus.onnx"], ["QD-USAGE-COMMAND-LINE", "surplus.onnx"]),
        (["--json", "run.h5"], ["QD-USAGE-SAME-FILE", "--json: run.h5", "--output"]),
        (["--json", "net.onnx"], ["QD-USAGE-SAME-FILE", "--json: net.onnx", "MODEL"]),
        (["--force", "-o", "net.onnx"], ["QD-USAGE-SAME-FILE", "--output: net.onnx", "MODEL"]),
        (
            ["--force", "--save-plan", "data.npz"],
            ["QD-USAGE-SAME-FILE", "--save-plan: data.npz", "--inputs"],
        ),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("-") else "",
)
def test_flags(desk: Any, flags: list[str], says: list[str]) -> None:
    desk.refused(*with_flags(*flags), says=says)


def test_a_target_is_checked_before_the_run(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the run was started")

    monkeypatch.setattr("qdebug.commands.compare.command.compare_pair", never)
    monkeypatch.setattr("qdebug.commands.compare.command.build_pair", never)
    desk.write("plan.yaml", "")
    desk.data("bare.npz", x=np.zeros((2, 3, 8, 8), np.float32))
    for flags, code in (
        (["--json", "no/x.json"], "QD-STORE-OUTPUT-PATH"),
        (["--save-plan", "no/x.yaml"], "QD-STORE-OUTPUT-PATH"),
        (["--save-plan", "plan.yaml"], "QD-STORE-OUTPUT-EXISTS"),
        (["--metric", "no.py:f"], "QD-METRIC-FUNCTION"),
        (["--fail-on", "nothing"], "QD-METRIC-CONDITION-SYNTAX"),
        (["--inputs", "bare.npz", "--metric", "top1"], "QD-METRIC-LABELS"),
    ):
        desk.refused(*with_flags(*flags), says=[code])


def test_missing_arguments(desk: Any) -> None:
    desk.refused("compare", says=["QD-USAGE-REQUIRED", "MODEL"])
    desk.refused("compare", "net.onnx", says=["QD-USAGE-REQUIRED", "--inputs"])
    desk.refused("compare", "--inputs", "data.npz", says=["QD-USAGE-REQUIRED", "MODEL"])
    desk.refused("calibrate", says=["QD-USAGE-REQUIRED", "MODEL"])
    desk.refused("calibrate", "net.onnx", says=["QD-USAGE-REQUIRED", "--calib-data"])
    desk.refused("frobnicate", says=["QD-USAGE-COMMAND-LINE", "frobnicate"])


@pytest.mark.parametrize("length", [300, 5000])
def test_names_too_long_for_a_file(desk: Any, length: int) -> None:
    name = "x" * length
    for flags, code in (
        (["--json", name], "QD-STORE-OUTPUT-PATH"),
        (["--save-plan", name], "QD-STORE-OUTPUT-PATH"),
        (["-o", name], "QD-STORE-OUTPUT-PATH"),
        (["--config", name], "QD-USAGE-CONFIG-FILE"),
        (["--inputs", f"{name}.npz"], "QD-SAMPLES-DAMAGED"),
        (["--plan", name], "QD-PLAN-FILE"),
        (["--calib-data", f"{name}.npz"], "QD-SAMPLES-DAMAGED"),
    ):
        desk.refused(*with_flags(*flags), says=[code, name[:50]])
    desk.refused("compare", name, "--inputs", "data.npz", says=["QD-MODEL-UNREADABLE", name[:50]])


# ---- plans and configurations


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "schema: qdebug.plan/1\nprecision: int4\n",
            ["QD-PLAN-FILE", "p.yaml:2", "precision", "int8"],
        ),
        (
            "schema: qdebug.plan/1\nlayers:\n  conv1: int8\n  conv2: int9\n",
            ["QD-PLAN-FILE", "p.yaml:4", "int9"],
        ),
        ("schema: qdebug.plan/1\ntensors:\n  nope: {amax: 1}\n", ["QD-PLAN-TENSOR", "'nope'"]),
        ("schema: qdebug.plan/1\ntensors:\n  x: {amax: -1}\n", ["QD-PLAN-FILE", "p.yaml:3", "-1"]),
        ("schema: qdebug.plan/9\n", ["QD-PLAN-FILE", "p.yaml:1", "qdebug.plan/1"]),
        ("a: [1\n", ["QD-PLAN-FILE", "p.yaml:"]),
        ("", ["QD-PLAN-FILE", "p.yaml:1"]),
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
        ("frobnicate: 1", ["QD-USAGE-CONFIG-FILE", "c.yaml:3", "frobnicate", "fail-on"]),
        (
            "precision: foo",
            [
                "QD-USAGE-CHOICE",
                "c.yaml:3",
                "precision",
                "int8, fp8, a16w8, bf16, fp16, fp32",
                "foo",
            ],
        ),
        ("backend: cuda", ["QD-USAGE-BACKEND-UNKNOWN", "backend", "'cuda'", "simulation"]),
        ("samples: -3", ["QD-USAGE-VALUE", "c.yaml:3", "samples", "-3"]),
        ("memory-budget: lots", ["QD-USAGE-VALUE", "memory-budget", "lots"]),
        ("command: bisect", ["QD-USAGE-CONFIG-FILE", "c.yaml:3", "command", "compare"]),
        ("model: other.onnx", ["QD-USAGE-CONFIG-FILE", "c.yaml:3", "'model'"]),
    ],
)
def test_bad_configuration(desk: Any, line: str, says: list[str]) -> None:
    desk.write("c.yaml", f"model: net.onnx\ninputs: data.npz\n{line}\n")
    desk.refused("compare", "--config", "c.yaml", says=says)


# ---- metrics


def test_missing_labels(desk: Any, pictures: Any) -> None:
    desk.data("bare.npz", x=pictures(3))
    says = ["QD-METRIC-LABELS", "labels"]
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
    for words in ["--metric score.py:score", *says]:
        assert words in done.err
    assert "Incomplete: metric" in done.out and "Run file: run.h5" in done.out
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
        ("def score(predictions): return 1\n", ["QD-METRIC-PARAMETERS", "'predictions'"]),
        ("def other(): return 1\n", ["QD-METRIC-FUNCTION", "'score'"]),
        ("import no_such_package\n", ["QD-METRIC-FUNCTION", "no_such_package", "line 1"]),
        ("def score(:\n", ["QD-METRIC-FUNCTION", "score.py", "line 1"]),
    ],
)
def test_metric_file_that_cannot_be_used(desk: Any, text: str, says: list[str]) -> None:
    desk.write("score.py", text)
    desk.refused(*with_flags("--metric", "score.py:score"), says=says)


def test_metric_on_outputs_of_changing_shape(desk: Any, make: Any) -> None:
    """It is computed of each sample by itself: nothing is lost."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], "find"),
        helper.make_node("Cast", ["i"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    desk.save(make(nodes, {"x": ("N", 4)}, {"y": (2, "k")}), "find.onnx")
    x = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], np.float32)
    desk.data("f.npz", x=x, labels=np.arange(1, 4))
    desk.write(
        "found.py",
        "def share(outputs, labels, reference):\n"
        "    assert outputs['y'].shape == (1, 2, labels['labels'][0])\n"
        "    return float(labels['labels'][0])\n",
    )
    done = desk.run(
        "compare", "find.onnx", "--inputs", "f.npz", "--metric", "found.py:share",
        "--allow-unquantized", "--batch-size", "1",
    )  # fmt: skip
    assert done.code == 0
    assert "2.0000 in FP32" in done.out and "Outputs differ in shape" in done.out


# ---- outputs


def test_existing_outputs_need_force(desk: Any) -> None:
    for flag, name in (("-o", "old.h5"), ("--save-plan", "old.yaml")):
        desk.write(name, "precious")
        args = ("compare", "net.onnx", "--inputs", "data.npz", flag, name)
        desk.refused(*args, says=["QD-STORE-OUTPUT-EXISTS", name, "--force"])
        assert desk.run(*args, "--force").code == 0
        assert Path(name).read_bytes()[:8] != b"precious"


def test_outputs_that_are_no_files(desk: Any) -> None:
    for flag in ("-o", "--save-plan", "--json"):
        desk.refused(
            "compare",
            "net.onnx",
            "--inputs",
            "data.npz",
            flag,
            ".",
            "--force",
            says=["QD-STORE-OUTPUT-PATH", "."],
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
        (("ranges", "data.npz"), "QD-MODEL-FORMAT"),
        (("ranges", "net.onnx"), "QD-USAGE-CALIB-DATA"),
        (("inspect", "data.npz"), "QD-USAGE-ENGINE-FILE"),
        (("export", "net.onnx", "--model", "net.onnx", "-o", "new.onnx"), "QD-PLAN-FILE"),
    ],
)
def test_a_file_of_another_kind(desk: Any, command: tuple[str, ...], code: str) -> None:
    desk.refused(*command, says=[code])


@pytest.mark.parametrize(
    ("name", "data", "step"),
    [
        ("net.pt", b"PK\x03\x04 a checkpoint", "torch.onnx.export"),
        ("net.pth", b"PK\x03\x04 a checkpoint", "torch.onnx.export"),
        ("net.safetensors", b"\x08\0\0\0\0\0\0\0{}", "torch.onnx.export"),
        ("net.tflite", b"\x1c\0\0\0TFL3", "--tflite net.tflite"),
        ("lite.bin", b"\x1c\0\0\0TFL3", "--tflite lite.bin"),
        ("net.pb", b"\x0a\x05graph", "--graphdef net.pb"),
        ("net.keras", b"PK\x03\x04", "format='onnx'"),
        ("net.pdmodel", b"\x0a\x05", "paddle2onnx"),
        ("net.engine", b"ptrt\0\0", "qdebug inspect net.engine"),
        ("net.plan", b"x", "qdebug inspect net.plan"),
        ("net.xml", b"<net/>", "ONNX model"),
        ("p.yaml", b"schema: qdebug.plan/1", "ONNX model"),
    ],
)
def test_a_model_of_another_framework(desk: Any, name: str, data: bytes, step: str) -> None:
    Path(name).write_bytes(data)
    says = ["QD-MODEL-FORMAT", name, step]
    desk.refused("compare", name, "--inputs", "data.npz", says=says)


def test_what_inspect_says_of_a_checkpoint(desk: Any) -> None:
    Path("net.pt").write_bytes(b"PK\x03\x04 a checkpoint")
    desk.refused("inspect", "net.pt", says=["QD-MODEL-FORMAT", "torch.onnx.export"])


def test_a_saved_model_is_a_folder(desk: Any) -> None:
    Path("saved").mkdir()
    Path("saved/saved_model.pb").write_bytes(b"\x0a")
    says = ["QD-MODEL-FORMAT", "--saved-model saved"]
    desk.refused("compare", "saved", "--inputs", "data.npz", says=says)


@pytest.mark.parametrize(
    "flags",
    [
        ["-o", "out.onnx"],
        ["--html", "out.json"],
        ["--json", "out.h5"],
        ["--save-plan", "out.npz"],
    ],
)
def test_an_output_that_is_named_like_another_kind_of_file(desk: Any, flags: list[str]) -> None:
    says = ["QD-USAGE-OUTPUT-SUFFIX", flags[1]]
    desk.refused("compare", "net.onnx", "--inputs", "data.npz", *flags, says=says)


def test_an_output_in_a_folder_that_takes_none(desk: Any) -> None:
    flags = ["compare", "net.onnx", "--inputs", "data.npz", "-o"]
    for path in ("/proc/run.h5", "/proc/new/run.h5"):
        desk.refused(*flags, path, says=["QD-STORE-OUTPUT-PATH", path])


def test_a_run_file_in_the_place_of_a_plan(desk: Any) -> None:
    flags = ["net.onnx", "--inputs", "data.npz"]
    assert desk.run("compare", *flags, "--effect", "none", "-o", "run.h5").code == 0
    says = ["QD-USAGE-EXPORT-SOURCE", "--save-plan", "csv"]
    desk.refused("export", "run.h5", "--to", "trtexec", says=says)
    says = ["QD-PLAN-FILE", "--plan", "--save-plan"]
    desk.refused("compare", *flags, "--plan", "run.h5", says=says)


def test_words_in_any_case(desk: Any) -> None:
    flags = ["compare", "net.onnx", "--inputs", "data.npz", "--effect", "None", "--json", "-"]
    words = ["--weights", "Per_Channel", "--method", "MinMax", "--backend", "Simulation"]
    done = desk.run(*flags, "--precision", "INT8", *words)
    assert done.code == 0 and done.json["precision"] == "int8"
    desk.write("c.yaml", "precision: FP16\neffect: none\n")
    done = desk.run(*flags[:4], "--config", "c.yaml", "--json", "-")
    assert done.code == 0 and done.json["precision"] == "fp16"


def test_a_format_that_there_is_not(desk: Any) -> None:
    flags = ["compare", "net.onnx", "--inputs", "data.npz", "--precision", "INT4"]
    done = desk.refused(
        *flags, says=["QD-USAGE-CHOICE", "INT4", "int8, fp8, a16w8, bf16, fp16, fp32"]
    )
    assert "Did you mean" not in done.err


def test_a_model_in_fp16(desk: Any, cnn: Callable[..., onnx.ModelProto]) -> None:
    """One story whatever is tried: give the FP32 model, with --precision fp16 for FP16's cost."""
    proto = cnn()
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    del proto.graph.value_info[:]
    desk.save(proto, "half.onnx")
    data = {k: v.astype(np.float16) for k, v in np.load("data.npz").items()}
    desk.data("half.npz", **data)
    for samples in ("data.npz", "half.npz"):
        says = ["QD-PLAN-NOT-FP32", "half.onnx", "--precision fp16"]
        desk.refused("compare", "half.onnx", "--inputs", samples, says=says)
        desk.refused("calibrate", "half.onnx", "--calib-data", samples, says=says)
        target = ["--target", "output.cosine>=0.9"]
        desk.refused("bisect", "half.onnx", "--inputs", samples, *target, says=says)
        more = [*target, "--reference", "net.onnx"]
        desk.refused("repair", "half.onnx", "--calib-data", samples, *more, says=says)
    for samples in ("data.npz", "half.npz"):
        flags = ["--inputs", samples, "--precision", "fp16", "--effect", "none"]
        alone = desk.run("compare", "half.onnx", *flags)
        assert alone.code == 0 and "FP32 is not known" in alone.out
        assert "against FP32" not in alone.out
        beside = desk.run("compare", "half.onnx", *flags[:2], "--reference", "net.onnx")
        assert beside.code == 0 and "FP16 simulated on ONNX Runtime against FP32" in beside.out


# ---- files


@pytest.mark.parametrize(
    ("line", "says", "code"),
    [
        ("fail-on: [foo]", "fail-on: 'foo'", "QD-METRIC-CONDITION-SYNTAX"),
        ("metric: top9", "metric: unknown", "QD-METRIC-UNKNOWN"),
        ("keep: worst:0", "keep: worst:0", "QD-USAGE-KEEP"),
        ("output: no/where.h5", "output: no/where.h5", "QD-STORE-OUTPUT-PATH"),
        ("calibration: gone.yaml", "calibration: gone.yaml", "QD-PLAN-FILE"),
    ],
)
def test_a_wrong_value_in_a_file_names_the_file(desk: Any, line: str, says: str, code: str) -> None:
    desk.write("c.yaml", f"command: compare\nmodel: net.onnx\ninputs: data.npz\n{line}\n")
    flag = "--" + line.partition(":")[0]
    done = desk.run("compare", "--config", "c.yaml")
    assert done.code == 2 and f"c.yaml:4: {says}" in done.err and code in done.err
    assert flag not in done.err
    done = desk.run("compare", "--config", "c.yaml", flag, line.partition(": ")[2].strip("[]"))
    assert done.code == 2 and flag in done.err and "c.yaml" not in done.err


def test_an_empty_file_of_ranges_is_said_to_be_empty(desk: Any) -> None:
    desk.write("empty.cache", "")
    for text in ("", "\n", "# only a comment\n"):
        desk.write("empty.cache", text)
        done = desk.run(*BASE, "--calibration", "empty.cache")
        assert done.code == 2 and "QD-PLAN-FILE" in done.err
        assert "empty.cache" in done.err and "mapping" not in done.err


def test_a_metric_whose_file_holds_a_zero_byte(desk: Any) -> None:
    desk.write("zero.py", "def f(labels, outputs):\n    return '\0'\n")
    done = desk.run(*BASE, "--metric", "zero.py:f")
    assert done.code == 2 and "QD-METRIC-FUNCTION" in done.err
    assert "zero.py" in done.err and "None" not in done.err


@pytest.mark.parametrize(
    ("command", "flag", "others"),
    [("bisect", "--reference", "compare, repair"), ("repair", "--backend", "compare")],
)
def test_a_flag_of_another_command_is_refused(
    desk: Any, command: str, flag: str, others: str
) -> None:
    words = ["QD-USAGE-COMMAND-LINE", f"{command} has no {flag}; {others}", "--help"]
    desk.refused(command, "net.onnx", flag, "x.onnx", says=words)
