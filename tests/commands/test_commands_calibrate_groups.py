"""Groups of samples in a calibration: which are thin, and ranges that balance them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import onnx
import pytest
from half_networks import Builder

import qdebug
from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.commands.calibrate.command import repeated, unchanged_note
from qdebug.errors import SampleError, UsageError
from qdebug.results.calibrate import CalibrateResult, GroupShare

MODEL = "calib_data/digits_cnn.onnx"
DATA = dict(np.load("calib_data/digits_holdout.npz"))


def digits(start: int, count: int, every: int) -> dict[str, Any]:
    """Dark digits, of which some are bright."""
    rows, bright = slice(start, start + count), np.arange(count) % every == 1
    x = DATA["input"][rows].copy()
    x[~bright] *= 0.35
    light = np.where(bright, "bright", "dark")
    return {"input": x, "labels": DATA["labels"][rows], "light": light}


@pytest.fixture(scope="module")
def calibrated() -> CalibrateResult:
    return qdebug.calibrate(
        MODEL,
        calib_data=digits(0, 100, 20),
        holdout=digits(100, 60, 2),
        method=("minmax", "percentile:99.9"),
        metric="top1",
        group="light",
        balance=True,
        cache=False,
    )


def test_a_group_that_is_thin(calibrated: CalibrateResult) -> None:
    found = {g.name: (g.calibration_samples, g.held_out_samples) for g in calibrated.groups}
    assert found == {"bright": (5, 30), "dark": (95, 30)}
    assert calibrated.thin_groups == ("bright",) and calibrated.grouped_by == "light"
    assert calibrated.to_dict()["thin_groups"] == ["bright"]
    assert "Thin in the calibration: bright: add such samples." in calibrated._repr_html_()
    plain = replace(calibrated, balanced=False)
    assert "balance" in plain._repr_html_() and calibrated.balanced


def test_balanced_ranges_serve_the_rare_group(calibrated: CalibrateResult) -> None:
    """The largest magnitude is that of all samples in any case, so that it is not tried twice."""
    plain, balanced = "percentile:99.9", "percentile:99.9 balanced"
    assert set(calibrated.methods) == {"minmax", plain, balanced}
    bright = {n: m.trial.groups["bright"].sqnr_db for n, m in calibrated.methods.items()}
    assert bright[balanced] > bright[plain] + 3
    reference = [g.reference for g in calibrated.groups]
    assert calibrated.metric and np.mean(reference) == pytest.approx(calibrated.metric.reference)
    for method in calibrated.methods.values():
        scores = [method.trial.groups[g].metric for g in ("bright", "dark")]
        assert np.mean(scores) == pytest.approx(method.trial.metric)  # as many of each are held out


def test_what_is_seen_several_times() -> None:
    random = np.random.default_rng(0)
    once = histogram_of(random.normal(size=(4, 50)).astype(np.float32), 4)
    three, merged = repeated(once, 3), reduce(TensorHistogram.merge, [once] * 3)
    assert np.array_equal(three.table, merged.table)
    for name in ("low", "high", "count", "zeros", "samples", "top", "first"):
        assert getattr(three, name) == getattr(merged, name)
    assert three.total_sq == pytest.approx(merged.total_sq)


def fixed() -> onnx.ModelProto:
    b = Builder(3)
    return b.model({"x": [4, 8]}, [b.linear("x", 8, 6)])


def test_ranges_that_balancing_leaves_as_they_are() -> None:
    found = qdebug.calibrate(
        MODEL, calib_data=digits(0, 40, 2), method="percentile:99.9", group="light", balance=True
    )
    (note,) = [note for note in found.notes if "balance" in note]
    assert "of about one size already (" in note
    unlike = [GroupShare("dark", 9, 1), GroupShare("bright", 1, 1), GroupShare("dim", 0, 1)]
    assert "those of all samples" in unchanged_note(unlike)


def test_what_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        qdebug.calibrate(MODEL, calib_data=DATA, balance=True)
    assert caught.value.code == "QD-USAGE-REQUIRED"
    with pytest.raises(SampleError) as missing:
        qdebug.calibrate(MODEL, calib_data=DATA, group="light")
    assert missing.value.code == "QD-SAMPLES-GROUP"
    x = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    with pytest.raises(UsageError) as mixed:
        qdebug.calibrate(
            fixed(),
            calib_data={"x": x, "light": np.arange(32) % 2},
            group="light",
            balance=True,
            cache=False,
        )
    assert mixed.value.code == "QD-USAGE-BALANCE"
