"""Everything that takes a real engine, on OpenVINO: it executes INT8 on any CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdebug.backends.openvino import OpenVINOBackend
from qdebug.backends.simulation import SimulationBackend
from qdebug.store.reader import RunReader
from qdebug.testing.contract import quantized

pytest.importorskip("openvino")

ENGINE = ["--backend", "openvino"]


@pytest.fixture(scope="module")
def saturates() -> bool:
    """Whether INT8 kernels of this processor saturate, as those of x86 without VNNI do."""
    proto = quantized(largest_code=127)
    feeds = {"x": np.random.default_rng(4).normal(size=(1, 8, 9, 9)).astype(np.float32)}
    expected = SimulationBackend(1).open(proto, []).run(feeds)["y"]
    found = OpenVINOBackend(1).open(proto, []).run(feeds)["y"]
    noise, signal = np.square(expected - found).sum(), np.square(expected).sum()
    return bool(noise > signal * 1e-4)


@pytest.fixture
def cnn_flags(digits: Path) -> list[str]:
    """Twelve samples of the bundled network."""
    return [
        *(str(digits / "digits_cnn.onnx"), "--inputs", str(digits / "digits_holdout.npz")),
        *("--calib-data", str(digits / "digits_calib.npz"), "--calib-samples", "24"),
        *("--samples", "12"),
    ]


def test_simulation_against_engine_tensor_by_tensor(
    desk: Any, cnn_flags: list[str], saturates: bool
) -> None:
    done = desk.run("compare", *cnn_flags, *ENGINE, "--json", "found.json", "-o", "run.h5")
    assert done.code == 0, done.err
    assert "OpenVINO" in done.out
    engine = json.loads(Path("found.json").read_text())["engine"]
    execution = engine["execution"]
    assert engine["executed"] and execution["capture"] == "outputs"
    assert [c["hides"] for c in execution["checks"]] == [None]
    tensors = {t["tensor"]: t for t in execution["tensors"]}
    assert len(tensors) > 25
    if saturates:
        assert tensors["logits"]["label"] == "kernel"
        assert execution["agreement"]["within"] < 0.5
    else:  # kernels round otherwise than Q/DQ does: far below the error of quantization
        for t in tensors.values():
            assert t["kernel_db"] > t["quantization_db"] + 6, t
        assert tensors["logits"]["label"] == "quantization"
        assert execution["agreement"]["within"] == 1.0
    assert execution["preflight"]["fp32_db"]["logits"] > 100
    assert execution["preflight"]["repeatable"]
    assert execution["latency_ms"] > 0 and len(execution["kernels"]) > 10
    with RunReader("run.h5") as run:
        assert run.manifest["settings"]["backend"] == "openvino"


def test_requested_and_built_precision(desk: Any, cnn_flags: list[str]) -> None:
    files = ["--save-log", "layers.json", "--save-engine", "net.blob", "--save-plan", "plan.yaml"]
    found = desk.run("compare", *cnn_flags, *ENGINE, *files, "--json", "-").json
    rows = {r["name"]: r for r in found["engine"]["audit"]["layers"]}
    products = [r for r in rows.values() if r["op_type"] in ("Conv", "Gemm")]
    assert len(products) == 14
    assert {(r["requested"], r["built"], r["verdict"]) for r in products} == {
        ("int8", "int8", "as-planned")
    }
    assert rows["/pool/GlobalAveragePool"]["built"] == "fp32"
    assert Path("net.blob").stat().st_size == found["engine"]["size_bytes"] > 10_000
    inspected = desk.run("inspect", "layers.json", "--expect", "plan.yaml", "--json", "-")
    assert inspected.code == 0, inspected.err
    assert inspected.json["audit"]["layers"] == found["engine"]["audit"]["layers"]


def test_a_search_is_verified_on_the_engine(
    desk: Any, cnn_flags: list[str], saturates: bool
) -> None:
    target = ["--target", "output.sqnr_db>=34"]
    done = desk.run("bisect", *cnn_flags, *target, *ENGINE, "--json", "-")
    assert done.code == 0, done.err
    found = done.json
    assert {x["to"] for x in found["layers"]} == {"fp32"}  # it has no FP16 kernels
    on_engine = [c for c in found["checks"] if "on the engine" in c["on"]]
    assert on_engine and all(c["passed"] for c in found["checks"])
    # What kernels lose there takes more layers than the simulation's answer has.
    assert any(c["used_in_search"] for c in on_engine) is saturates
    assert found["cost"]["unit"] == "ms"
    audited = {r["name"]: r for r in found["engine"]["audit"]["layers"]}
    assert all(audited[name]["verdict"] == "as-planned" for name in found["pinned"])


def test_a_sweep_executes_what_it_builds(desk: Any, cnn_flags: list[str], saturates: bool) -> None:
    axes = ["--weights", "per-channel,per-tensor"]
    rows = desk.run("sweep", *cnn_flags, *axes, *ENGINE, "--json", "-").json["combinations"]
    per_channel, per_tensor = (r["execution"] for r in rows)
    assert all(r["latency_ms"] > 0 for r in rows)
    if not saturates:  # then what kernels lose hides the difference
        assert per_channel["sqnr_db"] > per_tensor["sqnr_db"] + 10


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--precision", "fp16"], "QD-USAGE-BACKEND-PRECISION"),
        (["--tf32"], "QD-USAGE-BACKEND-SETTING"),
        (["--capture", "debug"], "QD-USAGE-BACKEND-SETTING"),
    ],
)
def test_what_it_does_not_have(
    desk: Any, cnn_flags: list[str], flags: list[str], code: str
) -> None:
    desk.refused("compare", *cnn_flags, *ENGINE, *flags, says=[code])


def test_what_onnx_runtime_makes_of_convolutions(desk: Any, cnn_flags: list[str]) -> None:
    """It has INT8 kernels only where the output of a convolution is quantized at once."""
    done = desk.run("compare", *cnn_flags, "--backend", "onnxruntime", "--json", "-")
    assert done.code == 1, done.err
    engine = done.json["engine"]
    rows = [r for r in engine["audit"]["layers"] if r["op_type"] in ("Conv", "Gemm")]
    assert len(rows) == 14
    assert {(r["requested"], r["built"], r["verdict"]) for r in rows} == {
        ("int8", "fp32", "mismatch")
    }
    preflight = engine["execution"]["preflight"]
    assert preflight["fp32_db"]["non_finite"] == {"logits": "inf"}  # equal, bit for bit
    labels = {c["label"] for layer in done.json["layers"] for c in layer["causes"]}
    assert "not-as-planned" in labels
