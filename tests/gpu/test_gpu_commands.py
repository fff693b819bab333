"""The commands on a real GPU: compare, bisect and inspect of engines that execute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spoilt_engines import perceptron, spoilt_in_int8

from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.execute.cuda import Cuda
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import Library
from qdebug.cli.app import main
from qdebug.store.reader import RunReader

DATA = Path(__file__).parents[2] / "calib_data"
SAMPLES = ["--inputs", str(DATA / "digits_holdout.npz"), "--samples", "64"]
CALIB = ["--calib-data", str(DATA / "digits_calib.npz"), "--backend", "tensorrt-rtx"]
ENCODER = str(DATA / "digits_encoder.onnx")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: Cuda) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path))


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    ended = main([*arguments, "--json", "-"])
    shown = capsys.readouterr()
    assert ended == code, shown.err
    return json.loads(shown.out)


def test_compare(
    capsys: pytest.CaptureFixture[str], figures: dict[str, Any], tmp_path: Path
) -> None:
    flags = ["compare", ENCODER, *SAMPLES, *CALIB, "--metric", "top1"]
    gate = ["--fail-on", "metric>=0.9"]
    found = _json(capsys, *flags, *gate)
    engine, done = found["engine"], found["engine"]["execution"]
    figures["compare"] = {k: done[k] for k in ("latency_ms", "preflight", "agreement", "checks")}
    figures["compare"]["metric"] = found["metric"]
    assert engine["executed"] and engine["audit"]["passed"]
    assert done["agreement"]["within"] >= 0.95
    assert 0 < done["latency_ms"] < 2 * sum(kernel["ms"] for kernel in done["kernels"])
    together = {t["tensor"]: t["total_db"] for t in done["outputs"]}
    assert found["outputs"][0]["sqnr_db"] == pytest.approx(together["logits"])
    assert main([*flags, *gate, "-o", str(tmp_path / "run.h5"), "--keep", "all"]) == 0
    shown = capsys.readouterr().out
    figures["compare text"] = shown
    assert "on TensorRT for RTX" in shown and "Where the engine's error comes from" in shown
    assert "was not executed" not in shown
    with RunReader(tmp_path / "run.h5") as run:
        assert len(run.samples) == 64 and len(run.tensors("engine")) > 100
        engine, simulated = (run.read(role, "logits", 63) for role in ("engine", "candidate"))
    np.testing.assert_allclose(engine, simulated, rtol=0.05, atol=0.05)


def test_bisect_on_engines(capsys: pytest.CaptureFixture[str], figures: dict[str, Any]) -> None:
    target = ["--target", "output.sqnr_db>=40", "--pin-to", "fp32"]
    found = _json(capsys, "bisect", ENCODER, *SAMPLES, *CALIB, *target)
    figures["bisect"] = {k: found[k] for k in ("pinned", "evaluations", "cost", "checks", "notes")}
    assert found["passed"] and found["cost"]["unit"] == "ms"
    assert "searched samples, on the engine" in [c["on"] for c in found["checks"]]
    assert found["pinned"] and found["engine"]["audit"]["passed"]


def test_a_search_goes_on_where_the_engine_disagrees(
    capsys: pytest.CaptureFixture[str],
    figures: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Engines that get one layer wrong in INT8: the set that the simulation finds, without that
    layer, fails on them; the search goes on there, and pins it too."""

    def maker(*arguments: Any, **named: Any) -> EngineFactory:
        return EngineFactory(*arguments, **named, build=spoilt_in_int8(build_engine, "fourth"))

    monkeypatch.setattr("qdebug.backends.tensorrt.backend.EngineFactory", maker)
    net = perceptron(tmp_path)
    target = ["--inputs", str(net.samples), "--target", "output.sqnr_db>=25", "--pin-to", "fp32"]
    main(["bisect", str(net.model), *target, "--backend", "tensorrt-rtx", "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    figures["bisect that goes on"] = {
        k: found[k] for k in ("pinned", "baseline", "achieved", "evaluations", "cost", "notes")
    }
    assert found["pinned"] == ["second", "fourth"]
    assert found["achieved"] >= 25 and found["cost"]["unit"] == "ms"
    assert found["checks"][-1]["passed"]
    assert any(c["label"] == "kernel" for c in found["layers"][1]["causes"])


def test_int8_with_fp16_around_it(
    capsys: pytest.CaptureFixture[str], figures: dict[str, Any]
) -> None:
    """TensorRT for RTX 1.6.1 gives NaN there on compute capability 9.0, and the simulation does
    not: its kernels are at fault, and named where it begins."""
    flags = ["--fallback-precision", "fp16", "--json", "-"]
    main(["compare", ENCODER, *SAMPLES, *CALIB, *flags])
    found = json.loads(capsys.readouterr().out)
    finite = found["outputs"][0]["sqnr_db"] is not None
    blamed = {x["name"]: c for x in found["layers"] for c in x["causes"] if c["label"] == "kernel"}
    figures["int8 with fp16 around"] = {"finite": finite, "blamed": len(blamed)}
    if finite:
        pytest.skip("this version computes INT8 with FP16 around it right")
    born = [
        n for n, c in blamed.items() if "NaN" in c["evidence"] and "comes in" not in c["evidence"]
    ]
    figures["int8 with fp16 around"]["born in"] = born
    assert born and len(born) < len(blamed)
    assert found["engine"]["execution"]["outputs"][0]["label"] == "kernel"


def test_inspect_an_engine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Library, case: Any
) -> None:
    one = case("digits_encoder", "int8")
    built = build_engine(library, one.lowered.graph.proto, one.job.runtime.factory.settings)
    path = tmp_path / "engine.plan"
    path.write_bytes(built.engine)
    found = _json(capsys, "inspect", str(path))
    log = tmp_path / "build.log"
    log.write_text(built.log)
    logged = _json(capsys, "inspect", str(log))
    for name in ("int8_share", "layer_count"):
        assert found["values"][name] == logged["values"][name]
    assert len(found["layers"]) == len(logged["layers"])
