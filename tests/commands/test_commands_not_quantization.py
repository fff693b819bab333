"""The reason is not quantization: then the opening sentence blames no layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import detectors
import numpy as np
import pytest
from onnx import numpy_helper

import qdebug
from qdebug.analyse.elsewhere import of_kernels
from qdebug.display.summary import sentence
from qdebug.results.attribution import Attribution
from qdebug.results.summary import Elsewhere, Finding, Origin

DATA = Path(__file__).parents[2] / "calib_data"
HELD_OUT = dict(np.load(DATA / "digits_holdout.npz"))
CALIB = dict(np.load(DATA / "digits_calib.npz"))


def elsewhere(result: qdebug.CompareResult) -> Elsewhere | None:
    assert result.summary is not None
    assert (result.summary.finding is Finding.NOT_QUANTIZATION) == bool(result.summary.elsewhere)
    return result.summary.elsewhere


def compared(factor: float = 1.0, **more: Any) -> qdebug.CompareResult:
    data = {"input": CALIB["input"] * np.float32(factor)}
    inputs = {name: array[:64] for name, array in {**HELD_OUT, **more}.items()}
    how = {"inputs": inputs, "calib_data": data, "metric": "top1"}
    return qdebug.compare(str(DATA / "digits_cnn.onnx"), **how)


def test_samples_that_fp32_guesses_on() -> None:
    labels = np.random.default_rng(1).permutation(HELD_OUT["labels"])
    result = compared(labels=labels)
    found = elsewhere(result)
    assert found is not None and (found.origin, found.share) == (Origin.DATA, None)
    assert not any(x.name in sentence(result) for x in result.layers)


def test_ranges_of_other_samples() -> None:
    """Those of these samples give back most of the loss, as a run with them says."""
    result = compared(1 / 40)
    found = elsewhere(result)
    assert found is not None and found.origin is Origin.DATA and found.share is not None
    cure = next(c for c in result.cures if c.name == "ranges of these samples")
    lost, left = (10 ** (-x / 10) for x in (cure.before_sqnr_db, cure.sqnr_db))
    assert found.share == pytest.approx(1 - left / lost)
    text = sentence(result)
    assert "stale-calibration" in text and result.cures[0].what in text
    assert not any(f"({x.name}" in text for x in result.layers)
    assert elsewhere(compared()) is None


def _changed(amount: float) -> Callable[[detectors.Builder], str]:
    """The detector, with other weights of its neck."""

    def make(net: detectors.Builder) -> str:
        output = detectors.joined(net)
        weight = next(x for x in net.constants if x.name == "neck.w")
        noise = np.random.default_rng(5).normal(size=weight.dims).astype(np.float32)
        values = numpy_helper.to_array(weight)
        weight.CopyFrom(numpy_helper.from_array(values + amount * values.std() * noise, "neck.w"))
        return output

    return make


@pytest.mark.parametrize(("amount", "is_model"), [(0.5, True), (0.01, False), (0.0, False)])
def test_a_model_that_is_not_the_fp32_one(amount: float, is_model: bool, tmp_path: Path) -> None:
    """The same without any rounding is as far from the FP32 model."""
    net = detectors.Builder()
    fp32 = net.save(tmp_path / "reference.onnx", detectors.joined(net))
    _, int8, samples = detectors.quantized(_changed(amount), tmp_path, nodes_to_exclude=["join"])
    result = qdebug.compare(str(int8), reference=str(fp32), inputs=str(samples))
    found = elsewhere(result)
    assert (found is not None) == is_model
    assert ("not INT8" in sentence(result)) == is_model
    if found is not None:
        other = tmp_path / "fp32.onnx"
        plain = qdebug.compare(str(int8), reference=str(other), inputs=str(samples), effect="none")
        share = 1 - plain.worst_noise / result.worst_noise
        assert found.origin is Origin.MODEL
        assert found.share == pytest.approx(share, abs=0.05)
        assert "'neck'" in found.evidence


def _attributed(tensor: str, total_db: float, share: float, label: str) -> Attribution:
    return Attribution(tensor, 40.0, total_db, total_db, total_db, share, label)


def test_kernels_that_make_the_error_of_the_worst_output() -> None:
    good, bad = _attributed("a", 39.0, 0.1, "quantization"), _attributed("b", 9.0, 0.99, "kernel")
    found = of_kernels([good, bad])
    assert found is not None and (found.origin, found.share) == (Origin.KERNEL, 0.99)
    assert "9.0 dB in 'b'" in found.evidence and "40.0 dB" in found.evidence
    assert of_kernels([good]) is None and of_kernels([]) is None
    worse = _attributed("c", 3.0, 0.2, "quantization")
    assert of_kernels([good, bad, worse]) is None
    broken = _attributed("d", float("nan"), 1.0, "reference-mismatch")
    assert of_kernels([worse, broken]) is not None
