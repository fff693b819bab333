"""The worst samples by the layer where their error starts: shifts of the digits that nobody
names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import qdebug
from qdebug.display.groups import alike
from qdebug.results.compare import CompareResult

DIGITS = dict(np.load("calib_data/digits_holdout.npz"))
CALIBRATION = np.load("calib_data/digits_calib.npz")["input"][:40]


def compared(factor: float, **how: Any) -> CompareResult:
    """80 digits, every second of them `factor` times as bright."""
    x = DIGITS["input"][:80].copy()
    x[1::2] *= factor
    given = {"calib_data": {"input": CALIBRATION}, "metric": "top1", "effect": "none"}
    return qdebug.compare(
        "calib_data/digits_cnn.onnx",
        inputs={"input": x, "labels": DIGITS["labels"][:80]},
        **{**given, "cache": False, **how},
    )


def test_bright_samples_where_dark_ones_calibrated() -> None:
    """They are clipped from the first layer on, and lose most by the metric."""
    result = compared(0.3, calib_data={"input": 0.3 * CALIBRATION})
    found = result.clusters
    assert found is not None and not found.by_noise and found.silhouette > 0.8
    (cluster,) = found.each
    assert cluster.samples == tuple(range(0, 80, 2)) and cluster.layer == "/stem/conv/Conv"
    assert cluster.of_worst == found.worst == 16 and cluster.p_value < 1e-4
    assert cluster.sqnr_db < 10 < 40 < cluster.others_sqnr_db
    assert result.metric is not None and result.metric.lost
    assert {loss.sample for loss in result.metric.worst} <= set(cluster.samples)
    assert "All 16 samples that lose most" in alike(result)
    assert " is 5.1 dB; that of the others is 53.0 dB (medians)" in alike(result)
    none_lost = replace(result, metric=replace(result.metric, lost=0))
    assert "All 16 samples whose loss rises most (by top1 none is lost)" in alike(none_lost)
    assert alike(result) in result.VIEWS.summary(CompareResult.from_dict(result.to_dict()))


def test_by_noise_where_the_metric_tells_nothing() -> None:
    found = compared(3.0, metric=None).clusters
    assert found is not None and found.by_noise
    assert [c.samples for c in found.each] == [tuple(range(1, 80, 2))]


def test_where_nothing_is_planted_none_are_said() -> None:
    result = compared(1.0)
    assert result.clusters is None and alike(result) == ""


def test_they_must_be_divided_strongly() -> None:
    """Whoever is noisier loses more, in any network."""
    data = {name: array[:24] for name, array in DIGITS.items()}
    how: dict[str, Any] = {"weights": "per-tensor", "effect": "none", "metric": "top1"}
    assert qdebug.compare("calib_data/digits_cnn.onnx", inputs=data, **how).clusters is None
