"""The parts of an engine's error, and how well the simulation predicts it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.metrics.sums import measure
from qdebug.results.attribution import Attribution, attribute, simulation_agreement

RNG = np.random.default_rng(0)
REFERENCE = RNG.normal(size=4000).astype(np.float32)


def noisy(array: Any, level: float) -> Any:
    return (array + RNG.normal(size=array.shape) * level).astype(np.float32)


def split(simulation: Any, engine: Any, plain: Any = None) -> Attribution:
    return attribute(
        "t",
        measure(REFERENCE, simulation),
        measure(simulation, engine),
        measure(REFERENCE, engine),
        None if plain is None else measure(REFERENCE, plain),
    )


@given(st.floats(-2, -0.5), st.floats(-2, -0.5))
def test_the_larger_part_has_the_label(quantization: float, kernel: float) -> None:
    simulation = noisy(REFERENCE, 10**quantization)
    found = split(simulation, noisy(simulation, 10**kernel))
    assert found.quantization_db == pytest.approx(-20 * quantization, abs=0.6)
    assert found.kernel_db == pytest.approx(-20 * kernel, abs=0.8)
    share = 10 ** (2 * kernel) / (10 ** (2 * kernel) + 10 ** (2 * quantization))
    assert found.kernel_share == pytest.approx(share, abs=0.05)
    if abs(quantization - kernel) > 0.1:
        assert found.label == ("kernel" if kernel > quantization else "quantization")


def test_little_error_has_no_label() -> None:
    assert split(REFERENCE, noisy(REFERENCE, 1e-4)).label == ""
    assert split(REFERENCE, REFERENCE).kernel_share == 0


def test_an_unquantized_engine_that_is_as_wrong_is_the_cause() -> None:
    broken = noisy(REFERENCE, 0.1)
    assert split(REFERENCE, broken, plain=noisy(REFERENCE, 0.1)).label == "reference-mismatch"
    assert split(REFERENCE, broken, plain=noisy(REFERENCE, 0.01)).label == "kernel"


def test_where_only_the_engine_is_not_finite_its_kernels_are_to_blame() -> None:
    broken = REFERENCE.copy()
    broken[7] = np.inf
    found = split(noisy(REFERENCE, 0.1), broken)
    assert (found.label, found.kernel_share) == ("kernel", 1.0)
    assert math.isnan(found.total_db) and math.isnan(found.kernel_db)
    assert split(broken, broken).label == "quantization"
    assert split(REFERENCE, broken, plain=broken).label == "reference-mismatch"


def item(simulated: float, engine: float) -> Attribution:
    return Attribution("t", simulated, 99.0, engine, None, 0.0, "")


def test_agreement_counts_relevant_tensors_and_ranks_all() -> None:
    near = [item(10 + k, 10.5 + k) for k in range(9)]
    found = simulation_agreement([*near, item(30, 33), item(70, 90), item(math.inf, math.inf)])
    assert (found.tensors, found.within) == (10, 0.9)
    assert found.spearman == 1.0
    assert simulation_agreement([item(k, -k) for k in range(5)]).spearman == pytest.approx(-1)


def test_agreement_of_what_is_not_finite() -> None:
    nan = math.nan
    found = simulation_agreement([item(nan, nan), item(20, nan)])
    assert (found.tensors, found.within, found.spearman) == (2, 0.5, None)
    assert simulation_agreement([]).within is None
    assert simulation_agreement([item(50, 50)] * 4).spearman is None
