"""`qdebug sweep` with real builds of TensorRT for RTX, on a machine that may have no GPU."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from patience import PATIENCE_S

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.commands.sweep.command import sweep
from qdebug.config.sweep import SweepSettings
from qdebug.types import Progress

BUNDLED = Path(__file__).parents[2] / "calib_data"
CNN = ["sweep", BUNDLED / "digits_cnn.onnx", "--inputs", BUNDLED / "digits_holdout.npz",
       "--samples", "16", "--compute-capability", "8.9"]  # fmt: skip
SMALL = ["sweep", "net.onnx", "--inputs", "data.npz", "--compute-capability", "8.9"]
needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs TensorRT for RTX"
)
simulated = pytest.mark.skipif(
    not isinstance(find_device(), str), reason="is about machines without a GPU"
)


@needs_rtx
@simulated
def test_the_bundled_network(desk: Any) -> None:
    flags = [*CNN, "--precision", "int8,fp16", "--optimization-level", "0,5", "--metric", "top1"]
    gate = ["--fail-on", "output.sqnr_db>=40", "--fail-on", "mismatch_count<=0"]
    done = desk.run(*flags, *gate, "-o", "sweep.csv")
    assert done.code == 0, done.err
    for figures in ("4 combinations", "8.9", "2 of 4", "PASSED"):
        assert figures in done.out
    lines = list(csv.DictReader(io.StringIO(Path("sweep.csv").read_text())))
    assert [line["precision"] for line in lines] == ["int8", "int8", "fp16", "fp16"]
    assert [line["passed"] for line in lines] == ["False", "False", "True", "True"]
    again = desk.run(*flags, *gate, "--json", "-").json
    assert again["schema"] == "qdebug.sweep/1" and again["best"] is None  # nothing was timed
    # What TensorRT for RTX does not look at multiplies rows, and is named.
    assert any(note.startswith("--optimization-level ") for note in again["notes"])
    assert all(row["engine"]["cached"] for row in again["combinations"])
    first, third = again["combinations"][0], again["combinations"][2]
    assert first["engine"]["values"]["int8_share"] == 1.0
    assert third["engine"]["values"]["int8_share"] == 0.0
    assert float(lines[0]["sqnr_db"]) == first["simulation"]["sqnr_db"]
    same = desk.run("compare", *CNN[1:-2], "--metric", "top1", "--json", "-").json
    # Observing every tensor keeps ONNX Runtime from a few fusions: a hundredth of a dB at most.
    assert first["simulation"]["sqnr_db"] == pytest.approx(same["outputs"][0]["sqnr_db"], abs=0.01)
    assert first["simulation"]["metric"] == same["metric"]["candidate"]


@needs_rtx
def test_a_plan_names_the_model(desk: Any, cnn: Any) -> None:
    assert desk.compare("--save-plan", "plan.yaml").code == 0
    desk.write("bare.yaml", "schema: qdebug.plan/1\nprecision: fp16\n")
    flags = ["--inputs", "data.npz", "--compute-capability", "8.9"]
    plans = ["--plan", "bare.yaml", "--plan", "plan.yaml"]
    result = desk.run("sweep", *flags, *plans, "--json", "-").json
    assert result["model"]["path"] == "net.onnx" and len(result["combinations"]) == 2
    says = ["QD-PLAN-NO-MODEL", "--plan: bare.yaml", "MODEL"]
    desk.refused("sweep", *flags, *plans[:2], says=says)
    other = cnn()
    other.graph.name = "another"
    desk.save(other, "other.onnx")
    says = ["QD-PLAN-OTHER-MODEL", "--plan: plan.yaml", "other.onnx"]
    desk.refused("sweep", "other.onnx", *flags, *plans[2:], says=says)


@needs_rtx
@simulated
def test_a_combination_that_cannot_be_built_is_a_row(desk: Any, load_json: Any) -> None:
    """Turing has no FP32 GEMM in TensorRT for RTX."""
    flags = ["sweep", BUNDLED / "digits_encoder.onnx", "--inputs", BUNDLED / "digits_holdout.npz",
             "--samples", "8", "--compute-capability", "7.5"]  # fmt: skip
    done = desk.run(*flags, "--precision", "fp32,fp16", "--json", "-")
    assert done.code == 0, done.err
    first, second = done.json["combinations"]
    assert "FP32 GEMM" in first["failure"]["message"] and second["failure"] is None
    alone = desk.run(*flags, "--precision", "fp32", "--json", "alone.json")
    assert alone.code == 3 and "#1" in alone.out
    assert "QD-BACKEND-NONE-BUILT" in alone.err and "FP32 GEMM" in alone.err
    (row,) = load_json(Path("alone.json").read_text())["combinations"]
    assert row["engine"] is None and "FP32 GEMM" in row["failure"]["message"]


@needs_rtx
@simulated
def test_what_is_not_as_planned_does_not_pass(desk: Any, make: Any) -> None:
    """TensorRT for RTX has no INT8 ConvTranspose. A plan beside a precision, and a failed gate."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 4, 3, 3), "w2": (4, 8, 2, 2)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4),
        helper.make_node("ConvTranspose", ["a", "w2"], ["y"], "up", strides=[2, 2]),
    ]
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    desk.save(make(nodes, {"x": (1, 4, 8, 8)}, {"y": (1, 8, 16, 16)}, weights), "up.onnx")
    desk.data("up.npz", x=rng.normal(size=(2, 4, 8, 8)).astype(np.float32))
    plan = desk.write("mixed.yaml", "schema: qdebug.plan/1\nlayers:\n  up: fp32\n")
    flags = ["sweep", "up.onnx", "--inputs", "up.npz", "--compute-capability", "8.9"]
    gate = ["--fail-on", "output.cosine>=0.9"]
    done = desk.run(*flags, *gate, "--precision", "int8", "--plan", plan, "--json", "-")
    assert done.code == 0, done.err
    first, second = done.json["combinations"]
    found = {"layer": "up", "requested": "int8", "built": "fp32"}
    assert found in first["engine"]["mismatches"]
    assert (first["passed"], second["passed"]) == (False, True)
    assert desk.run(*flags, *gate, "--precision", "int8").code == 1
    # The granularity of weights multiplies only what has INT8 layers.
    both = ["--precision", "int8,fp16", "--weights", "per-channel,per-tensor", "--json", "-"]
    rows = desk.run(*flags, *both).json["combinations"]
    assert [row["weights"] for row in rows] == ["per-channel", "per-tensor", ""]


@needs_rtx
@simulated
def test_a_sweep_that_was_ended_goes_on(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SweepSettings("net.onnx", "data.npz", precision=("int8", "fp16"),
                             compute_capability=("8.6", "8.9"))  # fmt: skip

    def stop(step: Progress) -> None:
        if step.stage == "sweep" and step.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(settings, stop)

    def never(*_: object) -> None:
        raise AssertionError("it was simulated again")

    monkeypatch.setattr("qdebug.run.runner._Sessions.run", never)
    found = sweep(settings)
    assert [row.engine.cached for row in found.combinations if row.engine] == [
        True,
        True,
        True,
        False,
    ]
    whole = sweep(settings)
    assert whole.combinations[:3] == found.combinations[:3] and whole.kept == 4


@needs_rtx
@simulated
def test_engines_are_kept_where_asked(desk: Any) -> None:
    flags = [*SMALL, "--precision", "int8,fp16", "--save-engines", "out/engines", "--json", "-"]
    rows = desk.run(*flags).json["combinations"]
    for row in rows:
        stem = Path("out/engines") / str(row["number"])
        assert stem.with_suffix(".engine").stat().st_size == row["engine"]["size_bytes"]
        values = desk.run("inspect", stem.with_suffix(".log"), "--json", "-").json["values"]
        assert values["int8_share"] == row["engine"]["values"]["int8_share"]
    desk.refused(
        *flags, says=["QD-STORE-OUTPUT-EXISTS", "--save-engines: out/engines/1.engine", "--force"]
    )
    Path("out/engines/1.engine").unlink()
    assert desk.run(*flags, "--force").code == 0  # built earlier, written again
    assert Path("out/engines/1.engine").exists()
    said = desk.run(*flags[:-2], "--force").out
    assert "out/engines" in said
    desk.refused(
        *SMALL,
        "--save-engines",
        "net.onnx/x",
        says=["QD-STORE-OUTPUT-PATH", "--save-engines", "net.onnx"],
    )


@needs_rtx
@simulated
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c(desk: Any, tmp_path: Path) -> None:
    kept = Path(os.environ["QDEBUG_CACHE_DIR"]) / "memo"
    until = time.monotonic() + PATIENCE_S
    axes = ["--optimization-level", "0,1,2,3,4,5", "--precision", "int8,fp16,int8+fp16"]
    with desk.started(*CNN, *axes, "--weights", "per-channel,per-tensor") as process:
        while not list(kept.glob("*")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


@needs_rtx
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--precision", "int8,int4"], ["QD-USAGE-CHOICE", "--precision", "'int4'", "int8+fp16"]),
        (["--precision", ","], ["QD-USAGE-VALUE", "--precision"]),
        (["--optimization-level", "0,9"], ["QD-USAGE-CHOICE", "--optimization-level", "'9'"]),
        (["--sparsity", "yes"], ["QD-USAGE-CHOICE", "--sparsity", "'yes'", "off, on"]),
        (
            ["--typing", "strong,implicit"],
            ["QD-USAGE-BACKEND-SETTING", "--typing", "--backend tensorrt"],
        ),
        (
            ["--tactic-source", "default,CUDNN"],
            ["QD-USAGE-TACTIC-SOURCE", "CUDNN", "JIT_CONVOLUTIONS"],
        ),
        (["--compute-capability", "8.9,5.0"], ["QD-USAGE-COMPUTE-CAPABILITY", "5.0", "8.9"]),
        (
            ["--backend", "simulation"],
            ["QD-USAGE-BACKEND-CAPABILITY", "--backend simulation", "tensorrt-rtx"],
        ),
        (["--fail-on", "layer.sqnr_db>=20"], ["QD-METRIC-SCOPE", "layer.sqnr_db", "outputs"]),
        (["--fail-on", "int9_share>=1"], ["QD-METRIC-CONDITION-NAME", "int9_share", "int8_share"]),
        (["--fail-on", "metric>=1"], ["QD-METRIC-MISSING", "--metric"]),
        (["--reference", "run.h5"], ["QD-USAGE-REFERENCE", "--reference: run.h5"]),
        (["-o", "data.npz"], ["QD-USAGE-SAME-FILE", "--output", "--inputs"]),
        (["-o", "net.csv/x.csv"], ["QD-STORE-OUTPUT-PATH", "net.csv"]),
    ],
)
def test_bad_input_costs_nothing(desk: Any, flags: list[str], says: list[str]) -> None:
    desk.refused(*SMALL, *flags, says=says)


@needs_rtx
def test_a_plan_that_does_not_fit_is_found_before_anything_is_built(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was built")

    monkeypatch.setattr("qdebug.backends.tensorrt.process.IsolatedRuntime.build", never)
    plan = desk.write("bad.yaml", "schema: qdebug.plan/1\nlayers:\n  conv9: fp32\n")
    desk.refused(
        *SMALL,
        "--precision",
        "fp16",
        "--plan",
        plan,
        says=["QD-PLAN-LAYER", "bad.yaml", "conv9", "conv"],
    )


@needs_rtx
@simulated
def test_a_configuration_file(desk: Any) -> None:
    text = (
        "command: sweep\nmodel: net.onnx\ninputs: data.npz\nprecision: [fp16]\n"
        "tf32: [off, on]\noptimization-level: 0,3\ncompute-capability: 8.9\n"
    )
    rows = desk.run("sweep", "--config", desk.write("s.yaml", text), "--json", "-").json
    assert rows["axes"]["tf32"] == ["off", "on"] and len(rows["combinations"]) == 4
    bad = desk.write("bad.yaml", text.replace("fp16]", "fp17]"))
    desk.refused("sweep", "--config", bad, says=["QD-USAGE-CHOICE", "bad.yaml:4", "fp17"])
    flags = desk.run("sweep", "--config", "s.yaml", "--tf32", "on", "--json", "-").json
    assert flags["axes"]["tf32"] == ["on"]


@needs_rtx
def test_labels_are_asked_for_before_anything_is_built(desk: Any) -> None:
    desk.data(x=np.zeros((4, 3, 8, 8), np.float32))
    desk.refused(*SMALL, "--metric", "top1", says=["QD-METRIC-LABELS"])


@needs_rtx
@simulated
def test_what_was_kept_of_an_engine_is_as_it_was_measured(desk: Any) -> None:
    first, second = (desk.run(*SMALL, "--precision", "int8", "--json", "-").json for _ in range(2))
    values = [repr(d["combinations"][0]["engine"]["values"]) for d in (first, second)]
    assert second["combinations"][0]["engine"]["cached"]
    assert values[0] == values[1]
