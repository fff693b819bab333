"""FP16 on the CPU rounds after every operator, as an FP16 engine does."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import TensorProto, checker, helper, numpy_helper

from qdebug.backends.fp16_emulation.rounding import keep_fp16_rounding
from qdebug.backends.simulation import SimulationBackend

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
Array = np.ndarray[Any, Any]


def half_model(
    nodes: list[onnx.NodeProto], weights: dict[str, Any], shape: list[int], last: str
) -> onnx.ModelProto:
    """FP32 in and out, FP16 between."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["h"], "to_half", to=HALF),
            *nodes,
            helper.make_node("Cast", [last], ["y"], "to_float", to=FLOAT),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(np.asarray(a, np.float16), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def overflowing() -> onnx.ModelProto:
    """Conv × 300 → Relu → Conv × 0.001: 480 in FP32, Inf in FP16."""
    nodes = [
        helper.make_node("Conv", ["h", "w1"], ["c1"], "conv1"),
        helper.make_node("Relu", ["c1"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2"], ["c2"], "conv2"),
    ]
    weights = {"w1": np.full((1, 1, 1, 1), 300), "w2": np.full((1, 1, 1, 1), 0.001)}
    return half_model(nodes, weights, [1, 1, 2, 2], "c2")


@pytest.mark.parametrize("capture", [[], ["c1"], ["r"], ["c2"], ["c1", "r", "c2", "h"]])
def test_overflow_between_layers_is_seen(capture: list[str]) -> None:
    session = SimulationBackend(1).open(overflowing(), capture)
    found = session.run({"x": np.full((1, 1, 2, 2), 1600, np.float32)})
    assert np.all(np.isposinf(found["y"]))
    for name in capture:
        assert session.dtypes[name] == np.float16 == found[name].dtype
        assert np.all(np.isposinf(found[name])) == (name != "h")


def test_nothing_overflows_in_range() -> None:
    found = (
        SimulationBackend(1).open(overflowing(), []).run({"x": np.ones((1, 1, 2, 2), np.float32)})
    )
    np.testing.assert_allclose(found["y"], 0.3, rtol=2e-3)


CHAIN = {
    "Relu": lambda a: np.maximum(a, np.float16(0)),
    "Neg": np.negative,
    "Abs": np.abs,
    "AddK": lambda a: a + np.float16(1.001),
    "MulK": lambda a: a * np.float16(3.3),
    "MulBig": lambda a: a * np.float16(300),
    "MulSmall": lambda a: a * np.float16(1e-3),
    "Sub": lambda a: a - np.float16(0.1),
    "Square": lambda a: a * a,
    "Clip": lambda a: np.clip(a, np.float16(-0.7), np.float16(1.3)),
    "Max": lambda a: np.maximum(a, np.float16(-0.7)),
    "Min": lambda a: np.minimum(np.float16(1.3), a),
}


def chain_nodes(chain: list[str]) -> tuple[list[onnx.NodeProto], dict[str, float]]:
    constants = {"AddK": 1.001, "MulK": 3.3, "MulBig": 300, "MulSmall": 1e-3, "Sub": 0.1}
    constants |= {"Max": -0.7, "Min": 1.3, "low": -0.7, "high": 1.3}
    nodes, tensor = [], "h"
    for i, op in enumerate(chain):
        second = {"Square": [tensor], "Clip": ["low", "high"]}.get(
            op, [op] if op in constants else []
        )
        kind = {"AddK": "Add", "MulK": "Mul", "MulBig": "Mul", "MulSmall": "Mul", "Square": "Mul"}
        nodes.append(helper.make_node(kind.get(op, op), [tensor, *second], [f"t{i}"], f"n{i}"))
        tensor = f"t{i}"
    used = {name for node in nodes for name in node.input}
    return nodes, {k: v for k, v in constants.items() if k in used}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(CHAIN)), min_size=1, max_size=6), st.booleans())
def test_elementwise_chains_equal_numpys_float16(chain: list[str], watched: bool) -> None:
    nodes, weights = chain_nodes(chain)
    x = np.random.default_rng(0).normal(size=64).astype(np.float32) * 8
    x[:3] = np.nan, np.inf, -np.inf
    names = [f"t{i}" for i in range(len(chain))]
    proto = half_model(nodes, weights, [64], names[-1])
    found = SimulationBackend(1).open(proto, names if watched else []).run({"x": x})
    expected = x.astype(np.float16)
    with np.errstate(all="ignore"):
        for name, op in zip(names, chain, strict=True):
            expected = CHAIN[op](expected)
            if watched:
                np.testing.assert_array_equal(found[name], expected)
    np.testing.assert_array_equal(found["y"], expected.astype(np.float32))


def test_a_model_without_fp16_is_not_touched() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2])],
        [helper.make_tensor_value_info("y", FLOAT, [2])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    assert keep_fp16_rounding(proto) is proto


def test_the_barriers_are_valid_and_the_original_is_kept() -> None:
    proto = overflowing()
    before = proto.SerializeToString(deterministic=True)
    barred = keep_fp16_rounding(proto)
    checker.check_model(barred, full_check=True)
    assert proto.SerializeToString(deterministic=True) == before
    assert [n.op_type for n in barred.graph.node].count("Identity") == 8  # h, c1, r, c2


@pytest.mark.parametrize("taken", ["t0:unrounded", "t0:rounded"])
def test_names_that_the_barriers_would_take(taken: str) -> None:
    nodes = [
        helper.make_node("Neg", ["h"], [taken], "n0"),
        helper.make_node("Mul", ["h", "k"], ["t0"], "n1"),
        helper.make_node("Add", ["t0", taken], ["t1"], "n2"),
    ]
    proto = half_model(nodes, {"k": 3}, [2], "t1")
    found = SimulationBackend(1).open(proto, [taken, "t0"]).run({"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(found["y"], [2, 4])
    np.testing.assert_array_equal(found[taken], [-1, -2])
    np.testing.assert_array_equal(found["t0"], [3, 6])


@pytest.mark.parametrize("where", ["initializer", "Constant"])
def test_fp16_that_only_a_scale_brings_in(where: str) -> None:
    """Q/DQ of opset 19 with FP16 scales: no Cast, no FP16 input. 200 · 200 · 1e-3 must be Inf."""
    scale = numpy_helper.from_array(np.array(2, np.float16), "s")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s"], ["d"], "dq"),
        helper.make_node("Mul", ["d", "d"], ["m"], "mul"),
        helper.make_node("Mul", ["m", "d"], ["n"], "mul2"),
        helper.make_node("QuantizeLinear", ["n", "s"], ["q"], "q", output_dtype=TensorProto.INT8),
        helper.make_node("Div", ["n", "m"], ["y"], "div"),
    ]
    if where == "Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["s"], value=scale))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT8, [1])],
        [helper.make_tensor_value_info("y", HALF, [1])],
        [scale] if where == "initializer" else [],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert keep_fp16_rounding(proto) is not proto
    found = SimulationBackend(1).open(proto, []).run({"x": np.array([100], np.int8)})
    assert np.isposinf(found["y"][0])
