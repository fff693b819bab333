"""Convolutions on INT8 kernels give what literal Q/DQ gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exact_int8 import (
    INT8,
    SCALE,
    WEIGHT_SCALE,
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

from qdebug.plan.plan import Granularity, PrecisionPlan

# attributes, weight shape, what is computed between the convolution and the one that reads it
CONVS: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "3x3": ({"pads": [1] * 4}, (8, 8, 3, 3), ""),
    "1x1": ({}, (8, 8, 1, 1), ""),
    "strided": ({"pads": [1, 0, 1, 2], "strides": [2, 1]}, (8, 8, 3, 3), "Relu"),
    "dilated": ({"pads": [2] * 4, "dilations": [2, 2]}, (8, 8, 3, 3), "Clip"),
    "1x1-strided": ({"strides": [2, 2]}, (8, 8, 1, 1), ""),
    "auto-pad": ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (8, 8, 2, 2), ""),
    "grouped": ({"group": 2}, (8, 4, 2, 2), "Relu"),
    "depthwise": ({"group": 8, "pads": [1] * 4}, (8, 1, 3, 3), "Clip"),
}


@pytest.mark.parametrize("granularity", list(Granularity))
@pytest.mark.parametrize("case", CONVS)
def test_every_kind_of_convolution(case: str, granularity: Granularity) -> None:
    """Alone, and before a 1×1 convolution; both with a bias."""
    attributes, shape, between = CONVS[case]
    rng = np.random.default_rng(3)
    axis = 0 if granularity is Granularity.PER_CHANNEL else None
    weights = {
        "w": exact_weight(rng, shape, axis),
        "v": exact_weight(rng, (3, 8, 1, 1), axis),
        "b": (rng.integers(-999, 999, shape[0]) * SCALE * WEIGHT_SCALE).astype(np.float32),
        "low": np.float32(-3),
        "high": np.float32(4.5),
    }
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", **attributes)]
    if between:
        inputs = ["c", "low", "high"] if between == "Clip" else ["c"]
        nodes.append(helper.make_node(between, inputs, ["r"], "act"))
    nodes.append(helper.make_node("Conv", [nodes[-1].output[0], "v"], ["y"], "next"))
    plan = PrecisionPlan(INT8, weights=granularity)
    x = exact_values(rng, (2, 8, 6, 7))
    used = {n: a for n, a in weights.items() if between == "Clip" or n not in ("low", "high")}
    chain = bind(model_of(nodes, used, ["y"], ["N", 8, 6, 7]), plan)
    assert operators(chain).count("QLinearConv") == 1
    assert_same(assembled(chain, {}, x, kernels=True), by_the_long_way(chain, {}, x))
    alone = bind(model_of(nodes[:1], {n: used[n] for n in "wb"}, ["c"], ["N", 8, 6, 7]), plan)
    gathered = case not in ("auto-pad", "grouped", "depthwise")
    assert ("MatMulIntegerToFloat" in operators(alone)) == gathered
    assert_same(assembled(alone, {}, x, kernels=True), by_the_long_way(alone, {}, x))


@pytest.mark.parametrize("bias", [1e12, np.inf])
def test_a_bias_that_int32_cannot_hold_stays_out_of_it(bias: float) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": exact_weight(rng, (8, 8, 1, 1)), "v": exact_weight(rng, (8, 8, 1, 1))}
    weights["b"] = np.full(8, bias, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Conv", ["c", "v"], ["y"], "next"),
    ]
    bound = bind(model_of(nodes, weights, ["y"], [1, 8, 2, 2]))
    assert "QLinearConv" not in operators(bound)
    x = exact_values(rng, (1, 8, 2, 2))
    assert_same(assembled(bound, {}, x, kernels=True), by_the_long_way(bound, {}, x))
