"""Runtimes that compile in this process, as engines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from qdebug.backends.engine import noise
from qdebug.backends.host import culprits, median_ms
from qdebug.types import TensorSpec

TENSORS = [f"t{k}" for k in range(40)]


@pytest.mark.parametrize("guilty", [(), (0,), (17, 18), (3, 11, 39)])
def test_culprits_are_found_in_few_trials(guilty: tuple[int, ...]) -> None:
    trials: list[Sequence[str]] = []
    bad = {TENSORS[k] for k in guilty}

    def harms(tensors: Sequence[str]) -> bool:
        trials.append(tensors)
        return bool(bad.intersection(tensors))

    assert set(culprits(TENSORS, harms)) == bad
    assert len(trials) <= 1 + 12 * len(bad)


def test_tensors_that_do_harm_together_only() -> None:
    """One of each pair stays out, and the rest are harmless together."""

    def harms(tensors: Sequence[str]) -> bool:
        return {"t3", "t30"} <= set(tensors) or {"t8", "t9"} <= set(tensors)

    found = culprits(TENSORS, harms)
    assert len(found) == 2 and not harms([t for t in TENSORS if t not in found])


def test_the_search_for_culprits_ends() -> None:
    many = [f"t{k}" for k in range(1000)]
    trials = []

    def harms(tensors: Sequence[str]) -> bool:
        trials.append(tensors)
        return True

    found = culprits(many, harms)
    assert set(found) == set(many) and len(trials) == 200
    assert len(set(found.values())) == 2  # tried alone, and not tried


def test_noise_of_any_type() -> None:
    inputs = [
        TensorSpec("x", ("N", 3), np.dtype(np.float32)),
        TensorSpec("ids", (2, "T"), np.dtype(np.int64)),
    ]
    found = noise(inputs, {"x": (5, 3)})
    assert found["x"].shape == (5, 3) and found["x"].dtype == np.float32
    assert found["ids"].shape == (2, 1) and found["ids"].dtype == np.int64
    assert set(np.unique(found["ids"])) <= {0, 1}
    np.testing.assert_array_equal(found["x"], noise(inputs, {"x": (5, 3)})["x"])


def test_timing_counts_no_first_call() -> None:
    calls: list[None] = []
    assert median_ms(lambda: calls.append(None)) >= 0
    assert len(calls) == 51
