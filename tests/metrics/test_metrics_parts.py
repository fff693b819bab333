"""The parts of a layer's error sum to the total, over any batches."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.metrics.parts import ErrorParts, PartEnergies

PARTS = ("inherited", "weights", "clipping", "rounding", "unexplained")


def energies(seed: int, count: int) -> list[tuple[PartEnergies, Any]]:
    """Those of batches of differences that are drawn, and the differences."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        steps = rng.normal(size=(5, 8)) * 10.0 ** rng.integers(-4, 2, size=(5, 1))
        signal = rng.normal(size=8)
        squares = [float(np.square(step).sum()) for step in steps]
        total = float(np.square(steps.sum(axis=0)).sum())
        named = dict(zip(PARTS, squares, strict=True))
        parts = PartEnergies(2, float(np.square(signal).sum()), total, named)
        found.append((parts, (steps, signal)))
    return found


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_parts_are_energies_that_sum_to_the_total(seed: int, count: int) -> None:
    batches = energies(seed, count)
    found = reduce(PartEnergies.merge, (e for e, _ in batches)).noise()
    assert found is not None and found.samples == 2 * count
    steps = np.concatenate([s for _, (s, _) in batches], axis=1)
    power = np.square(np.concatenate([r for _, (_, r) in batches])).sum()
    for name, values in zip(PARTS, steps, strict=True):
        assert getattr(found, name) == pytest.approx(np.square(values).sum() / power)
    assert found.total == pytest.approx(np.square(steps.sum(axis=0)).sum() / power)
    products = 2 * sum(steps[a] @ steps[b] for a in range(5) for b in range(a))
    scale = sum(getattr(found, name) for name in PARTS)
    assert found.interaction == pytest.approx(products / power, abs=1e-9 * scale)
    together = sum(getattr(found, name) for name in (*PARTS, "interaction"))
    assert together == pytest.approx(found.total, abs=1e-9 * scale)


def test_what_was_not_measured_is_none_and_not_0() -> None:
    inherited = PartEnergies(1, 4.0, 2.0).noise()
    assert inherited == ErrorParts(1, 0.5, 0.5)
    assert inherited.share("weights") is None and inherited.share("inherited") == 1.0
    known = {"inherited": 1.0, "weights": 0.5, "rounding": 0.5, "unexplained": 0.0}
    half = PartEnergies(1, 4.0, 2.0, known).noise()
    assert half is not None and half.clipping is None and half.interaction == 0
    assert PartEnergies(1, 4.0, math.nan, known).noise() is None
    assert PartEnergies(1, 4.0, 2.0, known | {"weights": math.inf}).noise() is None
    assert PartEnergies(1, 0.0, 2.0, {"inherited": 1.0}).noise() is None


def test_without_an_error_there_are_no_shares() -> None:
    exact = PartEnergies(1, 4.0, 0.0, dict.fromkeys(PARTS, 0.0)).noise()
    assert exact is not None and exact.total == 0 and exact.share("rounding") is None
