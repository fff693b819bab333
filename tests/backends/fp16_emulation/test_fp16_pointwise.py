"""Activations and sums round on the way as in TensorRT; see test_fp16_normal for the method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from half_rules import half
from half_runs import Array, run_node
from onnx import helper

from qdebug.backends.fp16_emulation.functions import truncated

RNG = np.random.default_rng(0)
X = half(RNG.normal(size=(40, 50)) * 3)
A, G = (float(truncated(v)) for v in (1.6732632423543772, 1.0507009873554805))
RULES: dict[str, tuple[dict[str, Any], Callable[[Array], Array]]] = {
    "Elu": ({}, lambda x: np.where(x > 0, x, 1.0009765625 * half(half(np.exp(x)) - 1))),
    "Selu": ({}, lambda x: G * np.where(x > 0, x, half(A * half(np.exp(x)) - A))),
    "LeakyRelu": ({"alpha": 0.3}, lambda x: np.where(x > 0, x, 0.2998046875 * x)),
    "Softplus": ({}, lambda x: np.log1p(half(np.exp(x)))),
    "Mish": ({}, lambda x: x * half(np.tanh(half(np.log1p(half(np.exp(x))))))),
    "Softsign": ({}, lambda x: x / half(1 + np.abs(x))),
    "ReduceSumSquare": ({"keepdims": 0}, lambda x: half(x * x).sum()),
    "ReduceLogSumExp": ({"keepdims": 0}, lambda x: np.log(half(half(np.exp(x)).sum()))),
}


@pytest.mark.parametrize("name", RULES)
def test_activations(name: str) -> None:
    given, rule = RULES[name]
    found = run_node(helper.make_node(name, ["x"], ["y"], **given), {"x": X}, opset=18)
    assert (found == half(rule(X))).mean() >= 0.999  # see the note of the module named above


def test_parameters_are_rounded_towards_zero() -> None:
    assert [float(truncated(v)) for v in (0.3, -0.3, 0.25)] == [0.2998046875, -0.2998046875, 0.25]


def test_softplus_of_large_values_is_the_value() -> None:
    x = half(np.array([12.0, 300.0, -20.0]))
    found = run_node(helper.make_node("Softplus", ["x"], ["y"]), {"x": x})
    np.testing.assert_array_equal(found, [12.0, 300.0, 0.0])


def test_a_sum_rounds_with_each_term() -> None:
    terms = {f"x{i}": half(RNG.normal(size=(30, 30))) for i in range(4)}
    found = run_node(helper.make_node("Sum", list(terms), ["y"]), terms)
    a, b, c, d = terms.values()
    np.testing.assert_array_equal(found, half(half(half(a + b) + c) + d))


def test_a_normalization_by_batch_has_its_factor_in_fp16() -> None:
    x, rows = half(RNG.normal(size=(2, 5, 4, 4))), (5, 1, 1)
    names = ("scale", "bias", "mean", "var")
    weights = {n: half(np.abs(RNG.normal(size=5)) + 0.1) for n in names}
    node = helper.make_node("BatchNormalization", ["x", *names], ["y"])
    scale, bias, mean, var = weights.values()
    factor = half(scale / np.sqrt(var + 1e-5))
    offset = half(bias - mean * factor)
    expected = half(x * factor.reshape(rows) + offset.reshape(rows))
    assert (run_node(node, {"x": x}, weights) == expected).mean() >= 0.999
