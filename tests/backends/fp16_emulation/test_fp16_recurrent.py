"""Recurrent layers round at each step of each gate; written in float64 after TensorRT's network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from half_rules import half
from half_runs import Array, half_model, is_left_alone, run_node
from onnx import helper

STEPS, BATCH, SIZE, HIDDEN = 5, 3, 6, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RNG = np.random.default_rng(0)


def sigmoid(x: Array) -> Array:
    return half(1 / (1 + np.exp(-x)))


def tanh(x: Array) -> Array:
    return half(np.tanh(x))


def weights_of(op_type: str, directions: int) -> dict[str, Array]:
    rows = GATES[op_type] * HIDDEN
    return {
        "W": half(RNG.normal(size=(directions, rows, SIZE)) / 2),
        "R": half(RNG.normal(size=(directions, rows, HIDDEN)) / 2),
        "B": half(RNG.normal(size=(directions, 2 * rows)) / 4),
    }


def rnn(x: Array, h: Array, w: Array, r: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = half(half(half(x @ w.T) + half(h @ r.T)) + half(b[0] + b[1]))
    return tanh(total), c


def lstm(x: Array, h: Array, w: Array, r: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = half(half(half(x @ w.T) + half(h @ r.T)) + half(b[0] + b[1]))
    i, o, f, g = np.split(total, 4, axis=1)
    c = half(sigmoid(f) * c + half(sigmoid(i) * tanh(g)))
    return half(sigmoid(o) * tanh(c)), c


def gru(late: bool) -> Callable[..., tuple[Array, Array]]:
    def step(x: Array, h: Array, w: Array, r: Array, b: Array, c: Array) -> tuple[Array, Array]:
        k = 2 * HIDDEN
        total = half(half(x @ w[:k].T) + half(h @ r[:k].T))
        z, reset = np.split(sigmoid(half(half(total + b[0, :k]) + b[1, :k])), 2, axis=1)
        own = half(x @ w[k:].T)
        if late:
            inner = half(reset * half(half(h @ r[k:].T) + b[1, k:]))
            fresh = tanh(half(own + half(inner + b[0, k:])))
        else:
            inner = half(half(reset * h) @ r[k:].T)
            fresh = tanh(half(half(own + inner) + half(b[0, k:] + b[1, k:])))
        return half(half(1 - z) * fresh + half(z * h)), c

    return step


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op_type", "step", "given"),
    [
        ("RNN", rnn, {}),
        ("LSTM", lstm, {}),
        ("GRU", gru(late=False), {}),
        ("GRU", gru(late=True), {"linear_before_reset": 1}),
    ],
)
def test_each_step_rounds(
    op_type: str, step: Callable[..., Any], given: dict[str, int], direction: str
) -> None:
    ways = {"forward": [1], "reverse": [-1], "bidirectional": [1, -1]}[direction]
    weights = weights_of(op_type, len(ways))
    x = half(RNG.normal(size=(STEPS, BATCH, SIZE)))
    expected = np.zeros((STEPS, len(ways), BATCH, HIDDEN))
    for d, way in enumerate(ways):
        h = c = np.zeros((BATCH, HIDDEN))
        w, r, b = (weights[name][d] for name in "WRB")
        for t in list(range(STEPS))[::way]:
            h, c = step(x[t], h, w, r, b.reshape(2, -1), c)
            expected[t, d] = h
    node = helper.make_node(
        op_type, ["x", "W", "R", "B"], ["y"], hidden_size=HIDDEN, direction=direction, **given
    )
    found = run_node(node, {"x": x}, weights)
    # FP32 may fall on the other side of a middle of two FP16 values, and later steps read that.
    assert (found == expected).mean() >= 0.9
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_the_last_states_are_those_of_the_last_step() -> None:
    weights = weights_of("LSTM", 2)
    x = half(RNG.normal(size=(STEPS, BATCH, SIZE)))
    named = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    steps = helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], **named)
    last = helper.make_node("LSTM", ["x", "W", "R", "B"], ["", "y"], **named)
    every, found = (run_node(node, {"x": x}, weights) for node in (steps, last))
    np.testing.assert_array_equal(found, np.stack([every[-1, 0], every[0, 1]]))


@pytest.mark.parametrize("unusual", [{"clip": 1.0}, {"activations": ["Relu", "Tanh", "Tanh"]}])
def test_unusual_ones_are_left_alone(unusual: dict[str, Any]) -> None:
    node = helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=HIDDEN, **unusual)
    proto: onnx.ModelProto = half_model([node], {"x": [STEPS, BATCH, SIZE]}, weights_of("LSTM", 1))
    assert is_left_alone(proto)
