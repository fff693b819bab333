"""INT8 kernels give what literal Q/DQ gives."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from exact_int8 import (
    CHANNELS,
    EXACT,
    FP16,
    FP32,
    INT8,
    SCALE,
    SIZE,
    WEIGHT_SCALE,
    assert_same,
    bind,
    by_the_long_way,
    exact_values,
    exact_weight,
    model_of,
    on_kernels,
    operators,
    random_model,
    steps,
)
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.prepare import Model
from qdebug.plan.plan import Granularity, PrecisionPlan
from qdebug.types import Precision

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
    assert_same(on_kernels(chain, {}, x), by_the_long_way(chain, {}, x))
    alone = bind(model_of(nodes[:1], {n: used[n] for n in "wb"}, ["c"], ["N", 8, 6, 7]), plan)
    gathered = case not in ("auto-pad", "grouped", "depthwise")
    assert ("MatMulIntegerToFloat" in operators(alone)) == gathered
    assert_same(on_kernels(alone, {}, x), by_the_long_way(alone, {}, x))


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
    assert_same(on_kernels(bound, {}, x), by_the_long_way(bound, {}, x))


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
    assert_same(on_kernels(bound, {}, x), by_the_long_way(bound, {}, x))


def test_scales_too_small_for_their_product_stay_literal() -> None:
    weights = {"w": np.full((6, 5), 1e-20, np.float32)}
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], "m")], weights, ["y"], [4, 6])
    bound = bind(model, amax=1e-20)
    assert "MatMulIntegerToFloat" not in operators(bound)


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
    found = on_kernels(bound, pins, x)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6 if pins else 0, err_msg=name)


def residual_net(opset: int = 17) -> Model:
    """stem - relu - pool - conv1 - relu - conv2 + pool - relu - conv3."""
    rng = np.random.default_rng(0)
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w0"], ["c0"], "stem", pads=[1] * 4),
        make("Relu", ["c0"], ["r0"], "relu0"),
        make("MaxPool", ["r0"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        make("Conv", ["p", "w1"], ["c1"], "conv1", pads=[1] * 4),
        make("Relu", ["c1"], ["r1"], "relu1"),
        make("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1] * 4),
        make("Add", ["p", "c2"], ["s"], "add"),
        make("Relu", ["s"], ["r2"], "relu2"),
        make("Conv", ["r2", "w3"], ["y"], "conv3"),
    ]
    shapes = {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (8, 8, 3, 3), "w3": (4, 8, 1, 1)}
    weights = {n: exact_weight(rng, s) for n, s in shapes.items()}
    return model_of(nodes, weights, ["y"], [2, 3, 8, 8], opset)


def test_a_residual_network_stays_in_codes_but_where_it_adds() -> None:
    bound = bind(residual_net())
    found = operators(bound)
    assert (found.count("QLinearConv"), found.count("NhwcMaxPool")) == (2, 1)  # stem, conv1
    assert found.count("MatMulIntegerToFloat") == 2
    assert "Conv" not in found and "MaxPool" not in found
    x = exact_values(np.random.default_rng(1), (2, 3, 8, 8))
    assert_same(on_kernels(bound, {}, x), by_the_long_way(bound, {}, x))


@pytest.mark.parametrize("raised", [FP32, FP16])
@pytest.mark.parametrize("layer", ["stem", "conv1", "conv2", "conv3", "pool"])
def test_one_raised_layer_reads_what_was_not_rounded(layer: str, raised: Precision) -> None:
    bound = bind(residual_net())
    x = exact_values(np.random.default_rng(1), (2, 3, 8, 8))
    expected = by_the_long_way(bound, {layer: raised}, x)["y"]
    found = on_kernels(bound, {layer: raised}, x)["y"]
    error = np.abs(found - expected)
    # A value at a tie may round the other way once its sum is not exact.
    assert np.mean(error > 1e-4 * np.abs(expected).max()) < 0.05
    assert error.max() <= 40 * SCALE


def test_an_fp16_overflow_is_inf_beside_kernels_too() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first"),
        helper.make_node("Conv", ["a", "huge"], ["b"], "second"),
        helper.make_node("Conv", ["b", "small"], ["y"], "third"),
    ]
    rng = np.random.default_rng(0)
    weights = {"w1": exact_weight(rng, (8, 8, 1, 1))}
    weights["huge"] = np.full((8, 8, 1, 1), 3e4, np.float32)
    weights["small"] = np.full((2, 8, 1, 1), 1e-6, np.float32)
    bound = bind(model_of(nodes, weights, ["y"], [1, 8, 2, 2]))
    pins = {"second": FP16, "third": FP32}
    x = np.full((1, 8, 2, 2), 4.0, np.float32)
    assert not np.isfinite(on_kernels(bound, pins, x)["y"]).all()
    assert np.isfinite(on_kernels(bound, {"second": FP32}, x)["y"]).all()


def test_names_like_its_own_constants_of_nodes_and_subgraphs() -> None:
    """Whatever the model calls its tensors; constants that nodes hold, and that branches read."""
    make, info = helper.make_node, helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [make(op, ["x:q:half", "k"], ["out"], f"{name}-op")],
            name,
            [],
            [info("out", TensorProto.FLOAT, None)],
        )
        for name, op in (("then_branch", "Mul"), ("else_branch", "Sub"))
    }
    value = numpy_helper.from_array(
        np.full((1, 8, 16, 16), 2, np.float32)
    )  # handed over, not encoded
    nodes = [
        make("Constant", [], ["k"], "constant", value=value),
        make("Conv", ["x", "w"], ["x:q:half"], "conv"),
        make("ReduceSum", ["x"], ["total"], "sum", keepdims=0),
        make("Greater", ["total", "zero"], ["cond"], "greater"),
        make("If", ["cond"], ["x:q:u8_last"], "if", **branches),
        make("Conv", ["x:q:u8_last", "w"], ["x:q:1"], "last"),
        make("Add", ["x:q:1", "k"], ["y"], "add"),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": exact_weight(rng, (8, 8, 1, 1)), "zero": np.float32(0)}
    bound = bind(model_of(nodes, weights, ["y", "k", "x:q:half"], [1, 8, 16, 16]))
    for sign in (1, -1):
        x = sign * np.abs(exact_values(rng, (1, 8, 16, 16)))
        for pins in ({}, {"conv": FP32}):
            assert_same(on_kernels(bound, pins, x), by_the_long_way(bound, pins, x))


def test_layers_that_compute_in_fp16_around_pairs_stay_literal() -> None:
    mixed = bind(residual_net(opset=19), PrecisionPlan(INT8, FP16))
    assert "QLinearConv" not in operators(mixed)
