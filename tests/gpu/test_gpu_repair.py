"""A repaired network on a real GPU: the engine gives what the simulation promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from outliers import with_outlier_channels

import qdebug

DATA = Path(__file__).parents[2] / "calib_data"
INPUTS = str(DATA / "digits_holdout.npz")


def on_engine(model: str, reference: str) -> Any:
    return qdebug.compare(
        model, reference=reference, inputs=INPUTS, samples=64, backend="tensorrt-rtx",
        metric="top1", effect="none",
    )  # fmt: skip


def test_a_repaired_transformer(
    tmp_path: Path, figures: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cuda: Any
) -> None:
    """The bundled encoder with outlier channels, which INT8 ruins: the remedies are smoothing,
    which leaves products behind some tensors, and what corrects weights and biases."""
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "cache"))
    model = str(tmp_path / "outliers.onnx")
    bundled = onnx.load(DATA / "digits_encoder.onnx")
    onnx.save(with_outlier_channels(bundled, (3, 17, 40), 60.0), model)
    given = {"calib_data": str(DATA / "digits_calib.npz"), "inputs": INPUTS, "metric": "top1"}
    found: dict[str, Any] = {}
    for name, only in (
        ("as it is", "channel-scales"),
        ("smoothed", "smoothing"),
        ("repaired", "smoothing,ranges,least-squares,bias-correction"),
    ):
        repaired = qdebug.repair(model, only=only, pin=False, cache=False, **given)
        file = tmp_path / f"{name.replace(' ', '_')}.onnx"
        repaired.save(file)
        seen = on_engine(str(file), model)
        assert seen.engine is not None and seen.engine.execution is not None, name
        assert seen.engine.audit is not None and seen.engine.audit.passed, name
        run = seen.engine.execution
        found[name] = {
            "kept": repaired.accepted,
            "simulated dB": repaired.proof.repaired.sqnr_db,
            "engine dB": seen.outputs[0].metrics.sqnr_db,
            "engine against simulation dB": run.outputs[0].kernel_db,
            "top1": [seen.metric.reference, seen.metric.candidate] if seen.metric else None,
            "latency_ms": run.latency_ms,
            "kernels": seen.engine.layers,
            "within 1 dB": run.agreement.within,
        }
    figures["repair"] = found
    before, after = found["as it is"], found["repaired"]
    assert after["simulated dB"] > before["simulated dB"] + 10
    for one in found.values():
        assert one["engine dB"] == pytest.approx(one["simulated dB"], abs=1.5)
    assert after["kernels"] <= before["kernels"] + 6
