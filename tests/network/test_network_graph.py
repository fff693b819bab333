"""The view of a graph: who writes, who reads, what is constant, of which type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph, opset_of


@pytest.fixture
def graph(net: Any, prepared: Any) -> Graph:
    n = (
        net()
        .conv("x", "c", name="conv")
        .add("Relu", "c", "r", "relu")
        .add("Mul", "r,r", "m", "mul")
    )
    n.add("Shape", "r", "s", "shape").add("Add", "m,c", "y", "add")
    proto = n.model("y")
    proto.graph.output.append(helper.make_tensor_value_info("s", TensorProto.INT64, [4]))
    return prepared(proto).graph


def test_producers_and_consumers(graph: Graph) -> None:
    assert [n.name for n in graph.nodes] == ["conv", "relu", "mul", "shape", "add"]
    assert {t: n.name for t, n in graph.producers.items()} == {
        "c": "conv",
        "r": "relu",
        "m": "mul",
        "s": "shape",
        "y": "add",
    }
    assert [n.name for n in graph.consumers["c"]] == ["relu", "add"]
    assert [n.name for n in graph.consumers["r"]] == ["mul", "shape"]  # mul reads it twice
    assert "y" not in graph.consumers


def test_types_shapes_and_activations(graph: Graph) -> None:
    assert list(graph.activations()) == ["c", "r", "m", "y"]
    assert graph.types["s"] == TensorProto.INT64 and not graph.is_float("s")
    assert graph.is_float("never heard of")
    assert graph.shapes["c"] == (1, 4, 8, 8) and graph.shapes["w"] == (4, 3, 3, 3)
    assert graph.outputs == ("y", "s")
    assert graph.opset == opset_of(graph.proto) == 13


def test_inputs_leave_out_weights(net: Any) -> None:
    proto = net(9, ir_version=3).conv("x", "y").model()
    assert len(proto.graph.input) == 2
    assert [s.name for s in Graph(proto).inputs] == ["x"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value": numpy_helper.from_array(np.arange(3))}, np.arange(3)),
        ({"value_float": 0.5}, np.float32(0.5)),
        ({"value_floats": [0.5, 2.0]}, np.array([0.5, 2], np.float32)),
        ({"value_int": 7}, np.int64(7)),
        ({"value_ints": [1, -1]}, np.array([1, -1])),
        ({"value_string": "text"}, None),
    ],
)
def test_constant_nodes(net: Any, attributes: dict[str, Any], expected: Any) -> None:
    graph = Graph(net().add("Constant", "", "k", **attributes).add("Relu", "x", "y").model())
    found = graph.constant("k")
    if expected is None:
        assert found is None
    else:
        assert found is not None and found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        assert graph.shapes["k"] == expected.shape
    assert list(graph.activations()) == ["y"]


def test_qdq_scales_in_constant_nodes_are_seen(net: Any, prepared: Any) -> None:
    """Models with Q/DQ are not folded, so their Constant nodes stay."""
    n = net().add("Constant", "", "s", value_float=0.1).const("z", np.int8(0))
    n.add("QuantizeLinear", "x,s,z", "q").add("DequantizeLinear", "q,s,z", "y")
    model = prepared(n.model())
    assert model.quantized and model.graph.constant("s") == np.float32(0.1)


def test_a_computed_tensor_is_no_constant(graph: Graph) -> None:
    assert graph.constant("c") is None
    assert graph.constant("x") is None


def test_shapes_with_symbols_zero_and_negative(net: Any) -> None:
    proto = net().add("Relu", "x", "y").model(shape=("N", 0, -1, 5))
    assert Graph(proto).inputs[0].shape == ("N", None, None, 5)
