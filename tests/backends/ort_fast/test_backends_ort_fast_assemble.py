"""What a candidate is assembled of: codes as far as they go, raised layers, odd names."""

from __future__ import annotations

import numpy as np
import pytest
from exact_int8 import (
    FP16,
    FP32,
    INT8,
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
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.ort_fast.assemble import Assembler
from qdebug.network.prepare import Model
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Precision


def residual_net() -> Model:
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
    return model_of(nodes, weights, ["y"], [2, 3, 8, 8])


def test_a_residual_network_stays_in_codes_but_where_it_adds() -> None:
    bound = bind(residual_net())
    found = operators(bound)
    assert (found.count("QLinearConv"), found.count("NhwcMaxPool")) == (2, 1)  # stem, conv1
    assert found.count("MatMulIntegerToFloat") == 2
    assert "Conv" not in found and "MaxPool" not in found
    x = exact_values(np.random.default_rng(1), (2, 3, 8, 8))
    assert_same(assembled(bound, {}, x, kernels=True), by_the_long_way(bound, {}, x))


@pytest.mark.parametrize("raised", [FP32, FP16])
@pytest.mark.parametrize("layer", ["stem", "conv1", "conv2", "conv3", "pool"])
def test_one_raised_layer_reads_what_was_not_rounded(layer: str, raised: Precision) -> None:
    bound = bind(residual_net())
    x = exact_values(np.random.default_rng(1), (2, 3, 8, 8))
    expected = by_the_long_way(bound, {layer: raised}, x)["y"]
    found = assembled(bound, {layer: raised}, x, kernels=True)["y"]
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
    assert not np.isfinite(assembled(bound, pins, x, kernels=True)["y"]).all()
    assert np.isfinite(assembled(bound, {"second": FP32}, x, kernels=True)["y"]).all()


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
        for pins in ({}, {"conv": FP32}, {"last": FP16}, {"if": FP16}):
            expected = by_the_long_way(bound, pins, x)
            assert_same(assembled(bound, pins, x, kernels=False), expected)
            if FP16 not in pins.values():
                assert_same(assembled(bound, pins, x, kernels=True), expected)


def test_what_must_be_lowered_instead() -> None:
    bound = bind(residual_net())
    assert Assembler(bound).takes({**bound.precisions, "pool": FP16})
    mixed = bind(residual_net(), PrecisionPlan(INT8, FP16))
    assert not Assembler(mixed).takes(mixed.precisions)
    half = bind(residual_net(), PrecisionPlan(FP16, FP16))
    assert not Assembler(half).takes({**half.precisions, "conv1": INT8})
