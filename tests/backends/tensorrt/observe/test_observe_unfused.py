"""Which tensor of the model an engine reported."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, shape_inference

from qdebug.backends.tensorrt.execute.observe.unfused import (
    Place,
    candidates,
    not_observed,
    place_tensors,
)
from qdebug.engine_info.layers import EngineLayer
from qdebug.engine_info.tensors import EngineTensor
from qdebug.network.graph import Graph

RNG = np.random.default_rng(0)


def noise(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def chain() -> Graph:
    """x → a → b → c → d → y, and b is read again by d."""
    value = helper.make_tensor_value_info
    steps = [("x", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "y")]
    nodes = [helper.make_node("Relu", [i], [o], f"to_{o}") for i, o in steps]
    nodes[3] = helper.make_node("Add", ["c", "b"], ["d"], "to_d")
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [2, 3])],
        [value("y", TensorProto.FLOAT, [2, 3])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    return Graph(shape_inference.infer_shapes(proto))


def kernel(output: str, *nodes: str) -> EngineLayer:
    return EngineLayer(output, outputs=(EngineTensor(output),), onnx_nodes=nodes)


def test_a_kernel_writes_what_others_read_of_the_nodes_it_completes() -> None:
    layers = [
        kernel("k1", "to_a", "to_b"),
        kernel("k2", "to_c", "to_d"),  # stops within to_d
        kernel("y", "to_d", "to_y"),
    ]
    assert candidates(layers, chain()) == {"k1": ("b",), "k2": ("c",)}


def test_kernels_without_metadata_and_unknown_nodes_tell_nothing() -> None:
    assert candidates([kernel("k1"), kernel("k2", "nobody")], chain()) == {}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms())
def test_a_tensor_is_restored_from_any_order_of_its_axes(shape: list[int], random: Any) -> None:
    array = noise(*shape)
    order = list(range(len(shape)))
    random.shuffle(order)
    stored = array.transpose(order).reshape(-1)
    np.testing.assert_array_equal(Place("t", tuple(order)).restore(stored, shape), array)


def test_a_tensor_is_recognised_in_another_order_of_its_axes() -> None:
    array = noise(2, 5, 3)
    stored = array.transpose(1, 0, 2).reshape(10, 3) * (1 + 1e-5)
    places = place_tensors({"inner": ("t", "u")}, {"inner": stored}, {"t": array, "u": noise(30)})
    assert list(places) == ["inner"] and places["inner"].tensor == "t"
    restored = places["inner"].restore(stored, array.shape)
    np.testing.assert_allclose(restored, array, rtol=1e-4)


def test_what_resembles_none_or_two_is_not_placed() -> None:
    array = noise(4, 16)
    centred = array - array.mean(axis=1, keepdims=True)
    broken = np.full_like(array, np.nan)
    cases = {"centred": centred, "unscaled": array * 117, "broken": broken, "half": noise(4, 8)}
    options = dict.fromkeys(cases, ("t",))
    assert place_tensors(options, cases, {"t": array}) == {}
    two = {"t": array * 1.001, "u": array * 0.999}
    assert place_tensors({"near": ("t", "u")}, {"near": array}, two) == {}


def test_a_tensor_is_placed_once_and_twins_do_not_matter() -> None:
    array = noise(3, 4)
    found = {"one": array, "two": array.copy()}
    simulated = {"t": array, "flat": array.reshape(12)}
    places = place_tensors(dict.fromkeys(found, ("t", "flat")), found, simulated)
    assert [(n, p.tensor) for n, p in places.items()] == [("one", "t")]
    assert [s.tensor for s in not_observed(["t", "u"], places)] == ["u"]
