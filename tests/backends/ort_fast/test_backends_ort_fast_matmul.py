"""Products on INT8 kernels give what literal Q/DQ gives."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from exact_int8 import (
    SCALE,
    assembled,
    assert_same,
    bind,
    by_the_long_way,
    exact_values,
    exact_weight,
    model_of,
    operators,
)
from onnx import helper

MATMULS: dict[str, tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], int]] = {
    "matmul": ([helper.make_node("MatMul", ["x", "w"], ["y"], "m")], {"w": (6, 5)}, 1),
    "bias": (
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], "m"),
            helper.make_node("Add", ["b", "m"], ["a"], "add"),
            helper.make_node("Relu", ["a"], ["y"], "relu"),
        ],
        {"w": (6, 5), "b": (5,)},
        1,
    ),
    "gemm": (
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "m")],
        {"w": (6, 5), "b": (1, 5)},
        1,
    ),
    "gemm-turned": (
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "m", transB=1)],
        {"w": (5, 6), "b": (5,)},
        1,
    ),
    "gemm-scaled": (
        [helper.make_node("Gemm", ["x", "w"], ["y"], "m", alpha=0.5)],
        {"w": (6, 5)},
        0,
    ),
    "gemm-matrix": (
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "m")],
        {"w": (6, 5), "b": (4, 5)},
        0,
    ),
    "left": ([helper.make_node("MatMul", ["w", "x"], ["y"], "m")], {"w": (3, 4)}, 0),
    "vector": ([helper.make_node("MatMul", ["x", "w"], ["y"], "m")], {"w": (6,)}, 0),
    "square": (
        [
            helper.make_node("Transpose", ["x"], ["t"], "t"),
            helper.make_node("MatMul", ["x", "t"], ["y"], "m"),
        ],
        {},
        1,
    ),
}


@pytest.mark.parametrize("case", MATMULS)
def test_every_kind_of_product(case: str) -> None:
    nodes, shapes, kernels = MATMULS[case]
    rng = np.random.default_rng(3)
    axis = 0 if case in ("gemm-turned", "left", "vector") else 1
    weights = {"w": exact_weight(rng, shapes["w"], axis)} if shapes else {}
    if "b" in shapes:
        weights["b"] = (rng.integers(-99, 99, shapes["b"]) * SCALE).astype(np.float32)
    bound = bind(model_of(nodes, weights, ["y"], [4, 6]))
    assert operators(bound).count("MatMulIntegerToFloat") == kernels
    x = exact_values(rng, (4, 6))
    assert_same(assembled(bound, {}, x, kernels=True), by_the_long_way(bound, {}, x))


def test_scales_too_small_for_their_product_stay_literal() -> None:
    weights = {"w": np.full((6, 5), 1e-20, np.float32)}
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], "m")], weights, ["y"], [4, 6])
    bound = bind(model, amax=1e-20)
    assert "MatMulIntegerToFloat" not in operators(bound)
