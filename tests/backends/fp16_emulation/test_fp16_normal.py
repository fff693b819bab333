"""Normalizations and activations round on the way as in TensorRT.

What ONNX Runtime computes in FP32 in between may be off by its last bit: where a value lies that
close to the middle of two of FP16, either will do.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from half_rules import UNIT, codes, half
from half_runs import half_model, is_left_alone, run_node
from hypothesis import assume, given, settings
from onnx import helper

Array = np.ndarray[Any, Any]
NEAR = 2.0**-21
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
POWERS = st.sampled_from([2, 4, 8])
"""Sizes over which FP32 has the mean exactly."""


def both(values: Array) -> list[Array]:
    """What values that FP32 holds but for its last bits may be rounded to."""
    return [half(values * (1 - NEAR)), half(values * (1 + NEAR))]


def assert_either(found: Array, expected: list[Array]) -> None:
    assert found.shape == expected[0].shape
    low, high = np.fmin(*expected), np.fmax(*expected)
    strays = found[~((low <= found) & (found <= high))]
    assert not strays.size, strays


def shares(x: Array, axis: int) -> Array:
    """Softmax: each step rounded. No exponential may lie near a middle."""
    below = half(x - x.max(axis, keepdims=True))
    low, powers = both(np.exp(below))
    assume(np.array_equal(low, powers))
    return half(powers / half(powers.sum(axis, keepdims=True)))


def logits(rng: np.random.Generator, shape: list[int]) -> Array:
    """FP16 does not have all their differences; FP32 has, and the sum of their exponentials, which
    are 0.01 at least."""
    return half(rng.integers(-(2**17), 2**17, shape) * 2.0**-16)


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.data(), st.sampled_from([13, 17, 18, 21]), st.integers(0, 999))
def test_softmax_and_its_logarithm(
    shape: list[int], data: st.DataObject, opset: int, seed: int
) -> None:
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    given = {} if axis is None else {"axis": axis}
    x = logits(np.random.default_rng(seed), shape)
    expected = shares(x, -1 if axis is None else axis)
    soft, log = (
        run_node(helper.make_node(op, ["x"], ["y"], **given), {"x": x}, opset=opset)
        for op in ("Softmax", "LogSoftmax")
    )
    np.testing.assert_array_equal(soft, expected)
    assert_either(log, both(np.log(expected)))


def test_softmax_of_many_rounds_its_sum_and_overflows() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    x = np.zeros((2, 2051))
    np.testing.assert_array_equal(run_node(node, {"x": x}), half(1 / half(2051.0)))
    many = np.zeros((1, 65520))
    np.testing.assert_array_equal(run_node(node, {"x": many}), 0)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_of_nan_and_inf(op: str) -> None:
    x = np.zeros((5, 4))
    x[0, 1], x[1, 2], x[2, 3], x[3] = np.nan, np.inf, -np.inf, -np.inf
    found = run_node(helper.make_node(op, ["x"], ["y"]), {"x": x})
    assert np.isnan(found[[0, 1, 3]]).all()
    third = half(1 / 3)
    expected = np.array([[third] * 3 + [0], [0.25] * 4])
    if op == "LogSoftmax":
        with np.errstate(divide="ignore"):
            expected = half(np.log(expected))
    np.testing.assert_array_equal(found[[2, 4]], expected)


def normalized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon))


@settings(max_examples=100, deadline=None)
@given(st.lists(POWERS, min_size=1, max_size=3), st.data(), st.booleans(), st.integers(0, 999))
def test_layer_normalization_is_rounded_before_it_is_scaled_and_shifted(
    shape: list[int], data: st.DataObject, has_bias: bool, seed: int
) -> None:
    rank = len(shape)
    axis = data.draw(st.integers(-rank, rank - 1))
    rng = np.random.default_rng(seed)
    x, scale, bias = codes(rng, shape), codes(rng, shape[axis:]), codes(rng, shape[axis:])
    weights = {"s": scale, "b": bias} if has_bias else {"s": scale}
    node = helper.make_node(
        "LayerNormalization", ["x", *weights], ["y"], axis=axis, epsilon=2.0**-10
    )
    plain = normalized(x, tuple(range(axis % rank, rank)), 2.0**-10)
    offset = bias if has_bias else 0
    expected = [half(np.float32(candidate * scale + offset)) for candidate in both(plain)]
    assert_either(run_node(node, {"x": x}, weights), expected)


def test_layer_normalization_rounds_twice() -> None:
    """1, rounded, times 1 + 2⁻¹⁰; unrounded, the last bit would be lost."""
    x = np.array([[1, -1]])
    scale, bias = np.array([1 + 2.0**-10] * 2), np.array([0, 1 + 2.0**-10])
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], epsilon=2.0**-12)
    found = run_node(node, {"x": x}, {"s": scale, "b": bias})
    np.testing.assert_array_equal(found, [[1 + 2.0**-10, 0]])


def test_layer_normalization_that_gives_its_mean_is_left_alone() -> None:
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"])
    assert is_left_alone(half_model([node], {"x": [2, 3]}, {"s": np.ones(3)}))
    node.output[1] = ""
    assert not is_left_alone(half_model([node], {"x": [2, 3]}, {"s": np.ones(3)}))


@settings(max_examples=100, deadline=None)
@given(st.lists(POWERS, min_size=1, max_size=3), st.booleans(), st.integers(0, 999))
def test_instance_normalization(sizes: list[int], known: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = codes(rng, [2, 3, *sizes])
    scale, bias = codes(rng, (3,)), codes(rng, (3,))
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"], epsilon=2.0**-10)
    plain = normalized(x, tuple(range(2, x.ndim)), 2.0**-10)
    by_channel = (-1, *(1 for _ in sizes))
    factor, offset = scale.reshape(by_channel), bias.reshape(by_channel)
    # The sum is rounded to FP32 before it is rounded to FP16.
    expected = [half(np.float32(candidate * factor + offset)) for candidate in both(plain)]
    shapes = {} if known else {"x": ["N", 3, *(None for _ in sizes)]}
    found = run_node(node, {"x": x}, {"s": scale, "b": bias}, shapes=shapes)
    assert_either(found, expected)


def test_instance_normalization_of_unknown_rank_is_left_alone() -> None:
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    weights = {"s": np.ones(3), "b": np.ones(3)}
    assert is_left_alone(half_model([node], {"x": None}, weights))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([{}, {"alpha": 1 / 6}, {"alpha": 0.3, "beta": 0.25}, {"beta": 0.7}]),
    st.integers(0, 999),
)
def test_the_slope_of_hard_sigmoid_is_rounded(given: dict[str, float], seed: int) -> None:
    x = np.append(codes(np.random.default_rng(seed), (90,), 400), [np.nan, np.inf, -np.inf])
    node = helper.make_node("HardSigmoid", ["x"], ["y"], **given)
    line = x * half(given.get("alpha", 0.2)) + np.float32(given.get("beta", 0.5))
    np.testing.assert_array_equal(run_node(node, {"x": x}), half(np.clip(line, 0, 1)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 999))
def test_hard_swish_rounds_its_gate(seed: int) -> None:
    x = np.append(codes(np.random.default_rng(seed), (90,), 400), [np.nan, np.inf, UNIT])
    gate = half(np.clip(x * half(1 / 6) + 0.5, 0, 1))
    found = run_node(helper.make_node("HardSwish", ["x"], ["y"]), {"x": x})
    np.testing.assert_array_equal(found, half(x * gate))
