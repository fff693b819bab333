"""What holds for every calibrator: registered, defined everywhere, the same for any batches."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qdebug.calibrators
from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.mean_max import mean_max_amax
from qdebug.calibrators.registry import METHODS, NEVER_CLIPPING, parse_method
from qdebug.errors import UsageError

GAUSS = np.random.default_rng(0).normal(size=200_000).astype(np.float32)


def test_every_file_of_a_method_is_registered_and_the_reverse() -> None:
    files = set()
    for module in pkgutil.iter_modules(qdebug.calibrators.__path__):
        loaded = importlib.import_module(f"qdebug.calibrators.{module.name}")
        if hasattr(loaded, f"{module.name}_amax"):
            files.add(module.name.replace("_", "-"))
    assert files == set(METHODS)
    for name in METHODS:
        assert parse_method(name).name.split(":")[0] == name


def test_the_registry_is_read_without_numpy_and_without_the_methods() -> None:
    code = "import sys, qdebug.calibrators.registry; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "numpy" not in loaded
    assert not any(f"qdebug.calibrators.{m.replace('-', '_')}" in loaded for m in METHODS)


def test_minmax_is_the_exact_amax() -> None:
    method = parse_method("minmax")
    assert (method.name, method.amax(histogram_of(GAUSS))) == ("minmax", np.abs(GAUSS).max())


@pytest.mark.parametrize("name", NEVER_CLIPPING)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_what_never_clips_holds_every_value(name: str, scale: float) -> None:
    values = GAUSS[:1000] * np.float32(scale)
    assert parse_method(name).amax(histogram_of(values)) >= np.abs(values).max()


@pytest.mark.parametrize(
    ("text", "name", "percentile"),
    [("percentile", "percentile:99.99", 99.99), ("percentile:99.9", "percentile:99.9", 99.9),
     ("percentile:100", "percentile:100", 100), ("percentile:1e1", "percentile:10", 10),
     ("percentile:99.99999", "percentile:99.99999", 99.99999)],
)  # fmt: skip
def test_percentile(text: str, name: str, percentile: float) -> None:
    method = parse_method(text)
    assert method.name == name
    exact = np.percentile(np.abs(GAUSS), percentile)
    assert method.amax(histogram_of(GAUSS)) == pytest.approx(exact, rel=0.008)


@pytest.mark.parametrize("argument", ["0", "101", "x", "nan", "-1"])
def test_a_parameter_out_of_range(argument: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_method(f"percentile:{argument}")
    assert caught.value.code == "QD-USAGE-CALIBRATOR-PARAMETER"


@pytest.mark.parametrize(
    ("text", "close"), [("min-max", "minmax"), ("percentil", "percentile"), ("minmax:3", "minmax")]
)
def test_an_unknown_method(text: str, close: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_method(text)
    assert caught.value.code == "QD-USAGE-CALIBRATOR"
    assert f"'{close}'?" in caught.value.hint


DEGENERATE: dict[str, tuple[Any, float]] = {
    "empty": (np.zeros((0, 3)), 0.0),
    "all zero": (np.zeros(100), 0.0),
    "negative zero": (np.full(3, -0.0), 0.0),
    "only NaN": (np.full(5, np.nan), 0.0),
    "only Inf": (np.array([np.inf, -np.inf]), 0.0),
    "constant": (np.full(1000, -2.5), 2.5),
    "single": (np.array(7.0), 7.0),
    "NaN and a value": (np.array([np.nan, 3.0, np.inf]), 3.0),
    "denormal constant": (np.full(10, 2.0**-140), 2.0**-140),
    "the smallest": (np.array([2.0**-149]), 2.0**-149),
    "the largest": (np.full(4, -float(np.finfo(np.float32).max)), float(np.finfo(np.float32).max)),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name", METHODS)
def test_degenerate_tensors(name: str, case: str) -> None:
    values, expected = DEGENERATE[case]
    assert parse_method(name).amax(histogram_of(values)) == expected


@pytest.mark.parametrize("name", METHODS)
def test_denormal_tensors_have_a_range_within_their_own(name: str) -> None:
    values = (np.random.default_rng(0).normal(size=5000) * 1e-41).astype(np.float32)
    assert 0 < parse_method(name).amax(histogram_of(values)) <= np.abs(values).max()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), batch=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_ranges_do_not_depend_on_the_batches(seed: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.laplace(size=(12, 50)) * np.exp(rng.normal(size=(12, 1)))).astype(np.float32)
    parts = np.split(values, 12 // batch)
    merged = reduce(TensorHistogram.merge, [histogram_of(part, batch) for part in parts])
    whole = histogram_of(values, 12)
    for name in METHODS:
        amax = parse_method(name).amax
        assert amax(merged) == pytest.approx(amax(whole), rel=1e-12), name


def test_mean_max_is_the_mean_of_the_samples_maxima() -> None:
    values = np.random.default_rng(0).normal(size=(8, 1000)).astype(np.float32)
    expected = np.abs(values).max(axis=1).astype(np.float64).mean()
    assert mean_max_amax(histogram_of(values, 8)) == pytest.approx(expected, rel=1e-12)
    assert mean_max_amax(histogram_of(values)) == np.abs(values).max()


def test_fewer_values_than_a_method_leaves_out_do_not_all_clip() -> None:
    sparse = np.zeros(100_000, np.float32)
    sparse[:3] = [0.5, -2, 1]
    for name in METHODS:  # mse: -2 may be code -128
        assert parse_method(name).amax(histogram_of(sparse)) == pytest.approx(2, rel=0.01)
