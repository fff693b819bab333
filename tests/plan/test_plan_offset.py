"""Constants subtracted from what layers read, and given back behind them: the same function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import checker
from repair_networks import IMAGES, TOKENS, Builder

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.plan.rewrite.offset import offset_inputs, pads, takes_offset


def run(proto: Any) -> Any:
    rng = np.random.default_rng(0)
    feeds = {
        spec.name: rng.normal(size=[4 if not isinstance(d, int) else d for d in spec.shape]).astype(
            np.float32
        )
        for spec in Graph(proto).inputs
    }
    session = SimulationBackend(1).open(proto, ())
    (found,) = session.run(feeds).values()
    session.close()
    return found


def assert_same(model: Model, maps: int) -> None:
    """With offsets for the only product of a network, from -8 to 8."""
    graph = model.graph
    (node,) = (n for n in graph.nodes if takes_offset(graph, n))
    rng = np.random.default_rng(1)
    count = graph.initializers[node.inputs[1]].dims[1 if node.op_type == "Conv" else 0]
    if node.op_type == "Conv":
        count *= graph.attributes(node).get("group", 1)
    elif node.op_type == "Gemm" and graph.attributes(node).get("transB", 0):
        count = graph.initializers[node.inputs[1]].dims[1]
    found = offset_inputs(graph, {node.name: rng.uniform(-8, 8, int(count))})
    checker.check_model(found.proto, full_check=True)
    assert found.maps == maps
    assert set(found.shifted) == {node.inputs[0]}
    exact = run(graph.proto)
    np.testing.assert_allclose(run(found.proto), exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@given(
    padding=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    size=st.integers(1, 3),
    groups=st.sampled_from([1, 3]),
    bias=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_convolutions(
    padding: list[int], stride: int, dilation: int, size: int, groups: int, bias: bool
) -> None:
    made = Builder(spread=0.0)
    weight = made.constant(made.rng.normal(size=(6, 3 // groups, size, size)))
    operands = [weight, made.constant(made.rng.normal(size=6))] if bias else [weight]
    last = made.add(
        "Conv", "x", *operands, group=groups, pads=padding,
        strides=[stride] * 2, dilations=[dilation] * 2,
    )  # fmt: skip
    assert_same(made.model(IMAGES, last), maps=int(any(padding)))


@pytest.mark.parametrize("bias", [True, False])
def test_matrix_products(bias: bool) -> None:
    made = Builder(spread=0.0)
    weight = made.constant(made.rng.normal(size=(8, 5)))
    last = made.add("MatMul", "x", weight)
    last = made.add("Add", last, made.constant(np.ones(5))) if bias else last
    assert_same(made.model(TOKENS, last), maps=0)


@pytest.mark.parametrize("attributes", [{}, {"transB": 1, "alpha": 0.5}])
def test_gemm(attributes: dict[str, Any]) -> None:
    made = Builder(spread=0.0)
    flat = made.add("Flatten", "x")
    count = 3 * 8 * 8
    shape = (5, count) if attributes else (count, 5)
    last = made.add("Gemm", flat, made.constant(made.rng.normal(size=shape)), **attributes)
    assert_same(made.model(IMAGES, last), maps=0)


def test_where_sizes_depend_on_the_samples_convolutions_that_pad_are_left_alone() -> None:
    made = Builder()
    padded = made.conv("x", 3, 4, size=3)
    last = made.conv(padded, 4, 2, size=1)
    model = made.model(IMAGES, last)
    proto = model.graph.proto
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, name in ((2, "height"), (3, "width")):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    del proto.graph.value_info[:]
    graph = Graph.inferred(proto)
    first, second = graph.nodes
    assert pads(graph, first) and not takes_offset(graph, first)
    assert takes_offset(graph, second)


def test_a_computed_weight_or_bias_takes_none() -> None:
    made = Builder()
    weight = made.constant(made.rng.normal(size=(3, 3, 1, 1)))
    bias = made.add("ReduceMax", made.add("Abs", "x"), axes=[0, 2, 3], keepdims=0)
    last = made.add("Conv", "x", weight, bias)
    graph = made.model(IMAGES, last).graph
    assert not any(takes_offset(graph, node) for node in graph.nodes)
