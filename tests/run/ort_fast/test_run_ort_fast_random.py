"""Random networks, assembled: literally against the lowered plan, on kernels against literally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
from exact_int8 import (
    FP16,
    FP32,
    INT8,
    SCALE,
    WEIGHT_SCALE,
    Pins,
    assembled,
    assert_same,
    bind,
    by_the_long_way,
    exact_values,
    exact_weight,
    model_of,
)
from hypothesis import given, settings
from onnx import helper

from qdebug.model.prepare import Model
from qdebug.plan.plan import BoundPlan, PrecisionPlan
from qdebug.run.ort_fast.assemble import Assembler
from qdebug.types import Precision

CHANNELS, SIZE = 8, 5
EXACT = [
    "Conv3",
    "Conv1",
    "Depthwise",
    "Relu",
    "Clip",
    "MaxPool",
    "Neg",
    "Bias",
    "Add",
    "MatMul",
    "MatMul2",
]
INEXACT = ["Sigmoid", "HardSwish", "Softmax", "Mul"]


def random_model(plan: list[tuple[str, int, int, bool]], seed: int) -> Model:
    """Each step reads one or two of the latest tensors; a flag makes its result an output."""
    rng = np.random.default_rng(seed)
    tensors, outputs, nodes = ["x"], [], []
    weights = {
        "w3": exact_weight(rng, (CHANNELS, CHANNELS, 3, 3)),
        "w1": exact_weight(rng, (CHANNELS, CHANNELS, 1, 1)),
        "wd": exact_weight(rng, (CHANNELS, 1, 3, 3)),
        "b": (rng.integers(-99, 99, CHANNELS) * SCALE * WEIGHT_SCALE).astype(np.float32),
        "m": exact_weight(rng, (SIZE, SIZE), 1),
        "k": np.full((CHANNELS, 1, 1), SCALE, np.float32),
        "low": np.float32(-1.5),
        "high": np.float32(3.25),
    }
    for i, (op, first, second, is_output) in enumerate(plan):
        a, b = (tensors[-1 - min(k, len(tensors) - 1)] for k in (first, second))
        inputs, attributes = {
            "Conv3": ([a, "w3", "b"], {"pads": [1] * 4}),
            "Conv1": ([a, "w1"], {}),
            "Depthwise": ([a, "wd"], {"pads": [1] * 4, "group": CHANNELS}),
            "MaxPool": ([a], {"kernel_shape": [3, 3], "pads": [1] * 4}),
            "Clip": ([a, "low", "high"], {}),
            "MatMul": ([a, "m"], {}),
            "MatMul2": ([a, b], {}),
            "Bias": ([a, "k"], {}),
            "Add": ([a, b], {}),
            "Mul": ([a, b], {}),
        }.get(op, ([a], {}))
        kind = {"Conv3": "Conv", "Conv1": "Conv", "Depthwise": "Conv", "Bias": "Add"}.get(op, op)
        kind = "MatMul" if op == "MatMul2" else kind
        nodes.append(helper.make_node(kind, inputs, [f"t{i}"], f"n{i}", **attributes))
        tensors.append(f"t{i}")
        if is_output:
            outputs.append(f"t{i}")
    return model_of(nodes, weights, outputs or [tensors[-1]], [2, CHANNELS, SIZE, SIZE])


def steps(names: list[str]) -> Any:
    step = st.tuples(st.sampled_from(names), st.integers(0, 3), st.integers(0, 3), st.booleans())
    return st.lists(step, min_size=1, max_size=9)


def pins_for(bound: BoundPlan, choices: Sequence[Precision], rng: np.random.Generator) -> Pins:
    chosen = {x.name: choices[int(rng.integers(len(choices)))] for x in bound.layers}
    return {n: p for n, p in chosen.items() if p is not INT8}


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
