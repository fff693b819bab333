"""The registry of metrics: complete, readable without numpy, the same as what is computed."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from qdebug.metrics.sums import MeasureOptions, measure
from qdebug.metrics.tensor import GATED, LAYER_METRICS, METRICS, gate_usage, metrics_of
from qdebug.result import json_schema
from qdebug.results.compare import CompareResult
from qdebug.types import Array

REFERENCE = np.random.default_rng(0).normal(size=(4, 3, 50)).astype(np.float32)
UNITS = {"dB": "_db", "share": ("_fraction", "_share"), "count": "_count"}


def _metrics(candidate: Array) -> dict[str, float]:
    options = MeasureOptions((-2.0, 2.0), channel_axis=1)
    return asdict(metrics_of(measure(REFERENCE, candidate, samples=4, options=options)))


def test_the_registry_is_read_without_numpy() -> None:
    code = "import sys, qdebug.metrics.tensor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numpy" not in done.stdout.split()


def test_the_values_are_those_that_the_formulas_say() -> None:
    candidate = REFERENCE + np.random.default_rng(1).normal(size=REFERENCE.shape) / 50
    candidate[2, 1] += 0.3
    found = _metrics(candidate)
    ref, cand = REFERENCE.astype(np.float64), candidate.astype(np.float64)
    error = ref - cand
    ratios = 10 * np.log10((ref**2).sum(axis=(1, 2)) / (error**2).sum(axis=(1, 2)))
    of_channels = 10 * np.log10((ref**2).sum(axis=(0, 2)) / (error**2).sum(axis=(0, 2)))
    expected = {
        "max_abs_err": np.abs(error).max(),
        "mean_abs_err": np.abs(error).mean(),
        "rmse": math.sqrt((error**2).mean()),
        "sqnr_db": 10 * math.log10((ref**2).sum() / (error**2).sum()),
        "cosine": (ref * cand).sum() / math.sqrt((ref**2).sum() * (cand**2).sum()),
        "ref_amax": np.abs(ref).max(),
        "cand_amax": np.abs(cand).max(),
        "clipped_fraction": (np.abs(cand) > 2).mean(),
        "nan_count": 0,
        "inf_count": 0,
        "worst_sample": 2,
        "worst_sample_sqnr_db": ratios.min(),
        "worst_channel": 1,
        "worst_channel_sqnr_db": of_channels.min(),
        "worst_part_sqnr_db": 10 * math.log10((ref**2).sum() / (error**2).sum()),
    }
    assert found == pytest.approx(expected, rel=1e-6)
    assert list(found) == [metric.name for metric in METRICS]


def test_lower_and_higher_are_as_stated() -> None:
    """A larger error moves each metric of a quality to the side that is called worse."""
    noise = np.random.default_rng(1).normal(size=REFERENCE.shape).astype(np.float32)
    good, bad = _metrics(REFERENCE + noise / 100), _metrics(REFERENCE + noise)
    for metric in METRICS:
        if metric.better and metric.unit != "count":
            worse = bad[metric.name] < good[metric.name]
            assert worse is (metric.better == "higher"), metric.name


def test_what_is_not_finite_makes_the_metrics_of_the_error_nan() -> None:
    candidate = REFERENCE.copy()
    candidate[0, 0, :2] = np.nan, np.inf
    found = _metrics(candidate)
    broken = {name for name, value in found.items() if value is not None and math.isnan(value)}
    of_the_error = {m.name for m in METRICS if m.better and m.unit not in ("count", "share")}
    assert broken == of_the_error - {"worst_channel_sqnr_db"}
    assert found["worst_channel_sqnr_db"] is None
    assert (found["nan_count"], found["inf_count"]) == (1, 1)


def test_every_entry_is_whole() -> None:
    for metric in LAYER_METRICS:
        assert metric.meaning
        assert metric.formula
        assert metric.better in ("higher", "lower", "")
        assert metric.unit in ("", "index", "ratio", *UNITS)
        if metric.unit in UNITS:
            assert metric.name.endswith(UNITS[metric.unit]), metric.name
    columns = [metric.column for metric in LAYER_METRICS if metric.column]
    assert columns[:3] == ["gain dB", "alone dB", "local dB"] and len(set(columns)) == len(columns)


def test_the_schema_of_the_json_says_what_each_metric_is() -> None:
    records = json_schema(CompareResult)["$defs"]
    for name in ("LayerResult", "TensorResult"):
        for metric in METRICS:
            told = records[name]["properties"][metric.name]["description"]
            assert told == f"{metric.meaning}: {metric.formula}"


def test_gates_take_every_metric_that_has_an_order() -> None:
    assert not {"worst_sample", "worst_channel"} & {n for names in GATED.values() for n in names}
    assert set(GATED["layer"]) - set(GATED["output"]) == {
        *("local_sqnr_db", "input_clipped_fraction"),
        *("gain_db", "output_share", "alone_sqnr_db"),
    }
    for name in GATED["layer"]:
        assert name in gate_usage()
