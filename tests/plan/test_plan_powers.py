"""Tensors held times a power of two: which, and that the function stays the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from repair_networks import Builder

from qdebug.network.prepare import Model
from qdebug.plan.rewrite.powers import hold_scaled

TOKENS = {"x": ("N", 4, 8)}


def run(proto: onnx.ModelProto, x: Any) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, {"x": x}))


def number(b: Builder, value: float) -> str:
    return b.constant(np.float32(value))


def held(model: Model, tensor: str, s: int, limits: Any = None) -> Any:
    """What holding one tensor scaled makes of a model, after a check that it is the same."""
    found = hold_scaled(model.graph, {tensor: s}, limits or {tensor: (min(s, 0), max(s, 0))})
    if found is None:
        return None
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype(np.float32)
    for new, old in zip(run(found.proto, x), run(model.graph.proto, x), strict=True):
        np.testing.assert_array_equal(new, old)
    return found


def ends(b: Builder, x: str) -> Model:
    return b.model(TOKENS, b.add("MatMul", x, b.constant(b.rng.normal(size=(8, 3)))))


OPERATIONS: dict[str, Callable[[Builder, str], str]] = {
    "square": lambda b, x: b.add("Pow", x, number(b, 2)),
    "cube": lambda b, x: b.add("Pow", x, number(b, 3)),
    "product": lambda b, x: b.add("Mul", x, b.add("Relu", x)),
    "quotient": lambda b, x: b.add("Div", x, b.add("Add", b.add("Abs", x), number(b, 2))),
    "numerator": lambda b, x: b.add("Div", number(b, 3), b.add("Add", b.add("Abs", x), x)),
    "divided": lambda b, x: b.add("Div", x, b.constant(b.rng.uniform(1, 2, size=8))),
    "minus": lambda b, x: b.add("Sub", b.constant(b.rng.normal(size=8)), x),
    "clip": lambda b, x: b.add("Clip", x, number(b, -0.5), number(b, 0.5)),
    "largest": lambda b, x: b.add("Max", x, number(b, 0.1)),
    "where": lambda b, x: b.add("Where", b.constant(np.arange(8) % 2 == 0), x, number(b, -1e9)),
    "joined": lambda b, x: b.add("Concat", b.add("Slice", x, *map(b.constant, SLICE)), x, axis=1),
    "exp": lambda b, x: b.add("Exp", x),
    "sum-with-input": lambda b, x: b.add("Add", x, "x"),
    "attention": lambda b, x: b.add(
        "MatMul", b.add("MatMul", x, b.add("Transpose", x, perm=[0, 2, 1])), x
    ),
}
SLICE = np.array([0]), np.array([2]), np.array([1])


@pytest.mark.parametrize("s", [-7, 3, 6])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_function_is_the_same_to_the_bit(name: str, s: int) -> None:
    b = Builder(1, spread=0.1)
    inner = b.add("Mul", "x", number(b, 3))
    plain = OPERATIONS[name](b, b.add("Neg", inner))
    able = name != "exp"  # which gives what it gives
    assert (held(ends(b, plain), plain, s) is not None) == able
    assert held(ends(b, plain), inner, s, {inner: (s, s), plain: (-2, 2)}) is not None


def test_constants_on_both_sides_take_the_factors_in_without_a_product() -> None:
    b = Builder(2)
    first = b.add("MatMul", "x", b.constant(b.rng.normal(size=(8, 8))))
    second = b.add("Relu", b.add("Add", first, b.constant(b.rng.normal(size=8))))
    found = held(ends(b, second), second, 5)
    assert found.products == 0
    assert found.held == {first: 5, b.nodes[1].output[0]: 5, second: 5}
    assert found.stale == frozenset(found.held)


def test_an_output_keeps_its_values_and_others_read_it_as_it_is() -> None:
    b = Builder(3)
    first = b.add("Relu", b.add("Mul", "x", number(b, 3)))
    last = b.add("Neg", b.add("Sqrt", b.add("Pow", first, number(b, 2))))
    model = b.model(TOKENS, first, last)
    assert held(model, first, 4) is None
    assert held(model, b.nodes[2].output[0], 4).products > 0


def test_what_ends_in_an_operator_that_needs_the_value_is_left_alone() -> None:
    b = Builder(4)
    scores = b.add("Add", b.add("Mul", "x", number(b, 3)), b.constant(np.full((4, 8), -1e9)))
    assert held(ends(b, b.add("Softmax", scores)), scores, 5) is None
    b = Builder(4)
    cube = b.add("Pow", "x", number(b, 3))
    gate = b.add("Tanh", b.add("Mul", b.add("Add", "x", cube), number(b, 0.8)))
    assert held(ends(b, gate), cube, 5) is None


@pytest.mark.parametrize("kind", ["LayerNormalization", "InstanceNormalization"])
def test_a_normalization_takes_the_scale_of_its_input_away(kind: str) -> None:
    b = Builder(5)
    x = b.add("Mul", "x", number(b, 1e-2))
    size = 8 if kind == "LayerNormalization" else 4
    constants = [b.constant(b.rng.normal(size=size)) for _ in range(2)]
    found = held(ends(b, b.add(kind, x, *constants, epsilon=1e-4)), x, 3)
    assert found.products == 0 and found.held == {x: 3}


def test_a_subgraph_reads_the_values_as_they_are() -> None:
    b = Builder(6)
    x = b.add("Mul", "x", number(b, 3))
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", [x], ["negated"], "inner")],
        "body",
        [],
        [onnx.helper.make_tensor_value_info("negated", onnx.TensorProto.FLOAT, None)],
    )
    positive = b.add("Greater", b.add("ReduceSum", "x", keepdims=0), number(b, 0))
    chosen = b.add("If", positive, then_branch=body, else_branch=body)
    raised = b.add("Pow", x, number(b, 2))
    model = b.model(TOKENS, b.add("Add", chosen, b.add("MatMul", raised, b.constant(np.eye(8)))))
    found = held(model, raised, 5)
    assert x not in found.held and found.products > 0
