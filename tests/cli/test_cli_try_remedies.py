"""`compare --try-remedies`: what each remedy gains on each of the leading layers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import qdebug

BUNDLED = Path(__file__).parents[2] / "calib_data"


@pytest.fixture(scope="module")
def tried() -> Any:
    return qdebug.compare(
        str(BUNDLED / "digits_cnn.onnx"),
        inputs=str(BUNDLED / "digits_holdout.npz"),
        calib_data=str(BUNDLED / "digits_calib.npz"),
        calib_samples=32,
        weights="per-tensor",
        samples=64,
        batch_size=16,
        metric="top1",
        try_remedies=True,
    )


def test_the_leading_layers_have_measured_gains(tried: Any) -> None:
    leading = tried.layers[:5]
    assert tried.remedy_samples == 64
    assert tried.remedy_metric == tried.metric.candidate
    assert all(layer.remedies for layer in leading)
    assert not any(layer.remedies for layer in tried.layers[5:])
    for layer in leading:
        gains = [(one.helps, one.gain_db) for one in layer.remedies]
        assert gains == sorted(gains, reverse=True)
        names = [one.remedy for one in layer.remedies]
        assert len(set(names)) == len(names) and "bias-correction" in names
        assert all(one.metric is not None for one in layer.remedies)


def test_a_gain_is_that_of_the_remedy_alone(tried: Any) -> None:
    """The depthwise convolution that costs most: channel scales on it give what keeping it in FP32
    would give at most."""
    first = tried.layers[0]
    best = first.remedies[0]
    assert best.helps and best.gain_db > 1
    pinned = -10 * math.log10(1 - first.output_share)
    assert best.gain_db < pinned + 1.0


def test_without_calibration_samples_half_of_those_compared_judge(desk: Any) -> None:
    flags = ["net.onnx", "--inputs", "data.npz", "--try-remedies"]
    done = desk.run("compare", *flags, "--json", "-")
    assert done.code == 0, done.err
    found = done.json
    assert 0 < found["remedy_samples"] <= -(-found["samples"] // 2)
    shown = desk.run("compare", *flags).out
    assert "The best remedy for each layer" in shown
    alone = desk.run("compare", *flags, "--samples", "1")
    assert alone.code == 2 and "QD-USAGE-HOLDOUT" in alone.err


def test_a_quantized_model_is_referred_to_repair(desk: Any) -> None:
    desk.run(
        "compare", "net.onnx", "--inputs", "data.npz", "--calib-data", "calib.npz",
        "--save-plan", "plan.yaml",
    )  # fmt: skip
    desk.run("export", "plan.yaml", "--model", "net.onnx", "--to", "onnx", "-o", "given.onnx")
    done = desk.run(
        "compare", "given.onnx", "--reference", "net.onnx", "--inputs", "data.npz",
        "--try-remedies", "--json", "-",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert any("qdebug repair" in note for note in done.json["notes"])
    assert done.json["remedy_samples"] == 0
