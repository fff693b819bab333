"""Whether observing an engine changed it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qdebug.results.observation import CaptureSums, Preflight

RNG = np.random.default_rng(0)
REFERENCE = RNG.normal(size=(8, 100)).astype(np.float32)
ERROR = RNG.normal(size=(8, 100)).astype(np.float32)


def at(db: float) -> Any:
    return REFERENCE + ERROR * np.float32(10 ** (-db / 20))


def check(clean: Any, observed: Any, tensors: int = 5) -> Any:
    sums = CaptureSums()
    for row in range(8):
        sums.add({"y": REFERENCE[row]}, {"y": clean[row]}, {"y": observed[row], "inner": ERROR})
    return sums.check("outputs", tensors)


def test_an_engine_that_stays_the_same_hides_nothing() -> None:
    found = check(at(30), at(30))
    assert (found.way, found.observed, found.hides) == ("outputs", 5, "")
    (output,) = found.outputs
    assert output.difference_db == math.inf
    assert output.clean_db == output.observed_db == pytest.approx(30, abs=0.5)


@pytest.mark.parametrize(("clean", "observed"), [(30, 30.5), (70, 120), (65, 61)])
def test_small_changes_hide_nothing(clean: float, observed: float) -> None:
    assert check(at(clean), at(observed)).hides == ""


@pytest.mark.parametrize(("clean", "observed"), [(30, 33), (33, 30), (50, 100), (100, 50)])
def test_an_error_that_changes_is_hidden(clean: float, observed: float) -> None:
    hides = check(at(clean), at(observed)).hides
    assert "'y'" in hides and "dB in the clean engine" in hides


def test_an_engine_that_breaks_only_when_it_is_clean() -> None:
    broken = at(30).copy()
    broken[3, 3] = np.nan
    assert "not finite in the clean engine" in check(broken, at(30)).hides
    assert "not finite in the observed engine" in check(at(30), broken).hides
    assert check(broken, broken).hides == ""


def test_nothing_observed_explains_nothing() -> None:
    assert "no tensor" in check(at(30), at(30), tensors=0).hides


def test_preflight() -> None:
    found = Preflight({"a": 118.0, "b": 31.0, "c": math.nan}, {"a": math.inf})
    assert found.reference_mismatch == ("b", "c") and found.repeatable
    assert not Preflight({}, {"a": 90.0}).repeatable
