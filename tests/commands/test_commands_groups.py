"""Groups of samples: planted shifts of the digits, of which the calibration holds next to none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import qdebug
from qdebug.display.groups import worst_group
from qdebug.errors import MetricError, SampleError
from qdebug.metrics.tensor import sqnr_db
from qdebug.results.compare import CompareResult

MODEL = "calib_data/digits_cnn.onnx"
HELD_OUT = dict(np.load("calib_data/digits_holdout.npz"))
CALIBRATION = np.load("calib_data/digits_calib.npz")["input"]
SHIFTS = {
    "dark": lambda x: 0.3 * x,
    "inverted": lambda x: 1 - x,
    "bright": lambda x: 3 * x,
}


def mixed(kind: str, share: float, count: int = 120) -> dict[str, Any]:
    """Digits, of which a share is shifted, spread evenly."""
    shifted = np.arange(count) % round(1 / share) == 0
    x = HELD_OUT["input"][:count].copy()
    x[shifted] = SHIFTS[kind](x[shifted])
    light = np.where(shifted, kind, "usual")
    return {"input": x, "labels": HELD_OUT["labels"][:count], "light": light}


def _always_right(outputs: Any) -> float:
    return float(len(outputs) > 0)


_always_right.higher_is_better = True  # type: ignore[attr-defined]


def compared(inputs: Any, **more: Any) -> CompareResult:
    how: dict[str, Any] = {"group": "light", "metric": "top1", "effect": "none", "cache": False}
    return qdebug.compare(MODEL, inputs=inputs, **{**how, **more})


@pytest.mark.parametrize("kind", list(SHIFTS))
def test_the_group_that_the_calibration_lacks(kind: str) -> None:
    """By noise."""
    data = mixed(kind, 1 / 4)
    calibration = {"input": CALIBRATION[:40], "light": np.array([kind] + ["usual"] * 39)}
    result = compared(data, calib_data=calibration, metric=None)
    found = result.groups
    assert found is not None and found.worst == kind and found.calibration_samples == 40
    assert [(g.name, g.samples, g.calibration_samples) for g in found.each] == [
        (kind, 30, 1),
        ("usual", 90, 39),
    ]
    noises = [g.noise or 0.0 for g in found.each]
    assert found.others is not None and found.others.noise == pytest.approx(noises[1])
    weights = [signal_of(data, g.name) for g in found.each]
    whole = np.average(noises, weights=weights)
    assert sqnr_db(1.0, whole) == pytest.approx(result.outputs[0].metrics.sqnr_db, abs=1e-3)
    for group in found.each:
        low, high = group.noise_interval or (0.0, 0.0)
        assert low < (group.noise or 0.0) < high


def signal_of(data: dict[str, Any], group: str) -> float:
    session = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    logits = session.run(None, {"input": data["input"][data["light"] == group]})[0]
    return float(np.square(logits.astype(np.float64)).sum())


@pytest.fixture(scope="module")
def calibrated_in_the_dark() -> CompareResult:
    """Ranges of dark digits, on which bright ones are clipped."""
    data = mixed("dark", 1 / 2)
    calibration = {"input": SHIFTS["dark"](CALIBRATION[:40]), "light": np.array(["dark"] * 40)}
    return compared(data, calib_data=calibration)


def test_the_group_that_loses_most_of_the_score(calibrated_in_the_dark: CompareResult) -> None:
    found = calibrated_in_the_dark.groups
    assert found is not None and found.worst == "usual" and found.others is not None
    worst, other = found.each
    assert worst.score and other.score and worst.score.uncertainty
    assert worst.score.candidate < worst.score.reference
    metric = calibrated_in_the_dark.metric
    assert metric is not None
    for of in ("reference", "candidate"):
        parts = [getattr(g.score, of) * g.samples for g in found.each]
        assert sum(parts) / 120 == pytest.approx(getattr(metric, of))
    assert worst.calibration_samples == 0


def test_the_sentence_and_the_table(calibrated_in_the_dark: CompareResult) -> None:
    text = calibrated_in_the_dark._repr_html_()
    assert "Samples by light" in text
    said = worst_group(calibrated_in_the_dark)
    assert "'usual' (light)" in said and "0 (0) of the calibration samples" in said


def test_noise_where_the_metric_tells_no_group() -> None:
    """A metric that nothing changes."""
    data = mixed("dark", 1 / 2)
    calibration = {"input": SHIFTS["dark"](CALIBRATION[:40]), "light": np.array(["dark"] * 40)}
    result = compared(data, calib_data=calibration, metric=_always_right)
    found, said = result.groups, worst_group(result)
    assert found is not None and found.by_noise and found.worst == found.each[0].name == "usual"
    assert (found.each[0].noise or 0) > (found.each[1].noise or 0)
    assert "most noise" in said and "no group loses more beyond chance" in said


def test_no_group_is_blamed_for_chance() -> None:
    """Groups that differ in nothing."""
    data = mixed("dark", 1 / 2)
    data |= {"input": HELD_OUT["input"][:120], "side": np.arange(120) % 2}
    found = compared(data, group="side", calib_data={"input": CALIBRATION[:40]})
    assert found.groups is not None and found.groups.worst is None
    assert found.groups.calibration_samples is None  # they have no such array
    assert sum("calib_data" in note and "side" in note for note in found.notes) == 1


DARK: dict[str, Any] = {
    "calib_data": {"input": SHIFTS["dark"](CALIBRATION[:40]), "light": np.array(["dark"] * 40)},
    "metric": "top1",
    "cache": False,
}


def rarely_bright(start: int) -> dict[str, Any]:
    """Dark digits, of which every eighth is bright."""
    rows, rare = slice(start, start + 80), np.arange(80) % 8 == 1
    x = HELD_OUT["input"][rows].copy()
    x[~rare] = SHIFTS["dark"](x[~rare])
    light = np.where(rare, "usual", "dark")
    return {"input": x, "labels": HELD_OUT["labels"][rows], "light": light}


def test_a_search_for_the_worst_group() -> None:
    """On average so little is lost that nothing is pinned; the rare group loses much."""
    data = {"inputs": rarely_bright(0), "holdout": rarely_bright(80)}
    how: dict[str, Any] = {**DARK, **data, "max_drop": 0.15, "max_evaluations": 8}
    plain = qdebug.bisect(MODEL, **how)
    strict = qdebug.bisect(MODEL, **how, worst_group="light")
    assert plain.passed and not plain.pinned
    assert strict.pinned and strict.baseline < plain.baseline
    assert strict.search.baseline and strict.search.baseline.worst_group == "usual"
    assert strict.verified_on and strict.verified_on.baseline.worst_group == "usual"
    assert ", the worst group)" in strict._repr_html_()
    sizes = "Of the 80 samples that judge, by 'light': usual 10, dark 70."
    assert [n.startswith(sizes) for n in strict.notes].count(True) == 1
    assert not any("that judge" in note for note in plain.notes)


def test_a_worst_group_that_there_is_not() -> None:
    data = rarely_bright(0)
    with pytest.raises(MetricError) as caught:
        qdebug.bisect(MODEL, inputs=data, target="output.sqnr_db>=20", worst_group="light")
    assert caught.value.code == "QD-METRIC-MISSING"
    with pytest.raises(SampleError) as refused:
        qdebug.repair(
            MODEL, inputs=data, calib_data=rarely_bright(80), metric="top1", worst_group="lihgt"
        )
    assert refused.value.code == "QD-SAMPLES-GROUP"


@pytest.mark.parametrize(
    ("command", "words"),
    [("bisect", "searched is of 'dusk'"), ("repair", "that prove is of 'fog'")],
)
def test_samples_that_lack_a_group(command: str, words: str) -> None:
    """Nothing would be searched, or verified, of it."""
    data, held_out = rarely_bright(0), rarely_bright(80)
    held_out["light"] = np.where(held_out["light"] == "dark", "dark", "dusk")
    if command == "repair":  # one sample cannot be in both halves
        held_out["light"][5] = "fog"
    how: dict[str, Any] = {"worst_group": "light", "metric": "top1", "max_drop": 0.01}
    with pytest.raises(SampleError, match=words) as caught:
        if command == "bisect":
            qdebug.bisect(MODEL, inputs=data, holdout=held_out, **how)
        else:
            qdebug.repair(MODEL, inputs=held_out, calib_data=data, **how)
    assert caught.value.code == "QD-SAMPLES-GROUP"


def test_by_folder_of_nothing_but_arrays() -> None:
    with pytest.raises(SampleError) as caught:
        compared(HELD_OUT, group="folder")
    assert caught.value.code == "QD-SAMPLES-GROUP"
