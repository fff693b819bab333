"""Random networks, assembled: literally against the lowered plan, on kernels against literally."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from exact_int8 import (
    CHANNELS,
    EXACT,
    FP16,
    FP32,
    INEXACT,
    INT8,
    SIZE,
    assembled,
    assert_same,
    bind,
    by_the_long_way,
    exact_values,
    pins_for,
    random_model,
    steps,
)
from hypothesis import given, settings

from qdebug.backends.ort_fast.assemble import Assembler
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Precision


@settings(max_examples=60, deadline=None)
@given(steps(EXACT + INEXACT), st.integers(0, 10_000), st.sampled_from([INT8, FP16, FP32]))
def test_literal_assembly_equals_the_lowered_plan_bit_for_bit(
    plan: list[tuple[str, int, int, bool]], seed: int, base: Precision
) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(plan, seed)
    rest = FP16 if base is FP16 else FP32
    bound = bind(model, PrecisionPlan(base, rest))
    choices = {INT8: [INT8, INT8, FP16, FP32], FP16: [FP16, FP32], FP32: [FP32, FP16]}[base]
    pins = pins_for(bound, choices, rng)
    x = rng.normal(size=(2, CHANNELS, SIZE, SIZE)).astype(np.float32) * 3
    assert Assembler(bound).takes({**bound.precisions, **pins})
    with np.errstate(all="ignore"):
        found = assembled(bound, pins, x, kernels=False)
    assert_same(found, by_the_long_way(bound, pins, x))


@settings(max_examples=60, deadline=None)
@given(steps(EXACT), st.integers(0, 10_000))
def test_kernels_equal_literal_qdq_where_sums_are_exact(
    plan: list[tuple[str, int, int, bool]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    bound = bind(random_model(plan, seed))
    quantized = [x.name for x in bound.layers if x.quantizable]
    # A layer in FP32 reads unrounded values, whose products FP32 cannot hold: only the last one.
    pins = {quantized[-1]: FP32} if quantized and seed % 3 == 0 else {}
    x = exact_values(rng, (2, CHANNELS, SIZE, SIZE))
    expected = by_the_long_way(bound, pins, x)
    found = assembled(bound, pins, x, kernels=True)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6 if pins else 0, err_msg=name)
