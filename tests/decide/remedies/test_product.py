"""An anchor as a product of matrices, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.decide.remedies.product import Product, channel_axis, product_of
from qdebug.errors import QdebugError
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.types import Array

PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
CONV = st.fixed_dictionaries({
    "rank": st.integers(1, 2), "group": st.integers(1, 3), "cin": st.integers(1, 2),
    "cout": st.integers(1, 2), "kernel": PAIR, "strides": PAIR, "dilations": PAIR,
    "pads": st.tuples(*[st.integers(0, 2)] * 4), "size": st.tuples(*[st.integers(3, 7)] * 2),
    "auto_pad": st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]),
})  # fmt: skip


def _graph(op_type: str, x: Array, w: Array, left: bool, **attributes: Any) -> Graph:
    operands = ["w", "x"] if left else ["x", "w"]
    node = helper.make_node(op_type, operands, ["y"], "anchor", **attributes)
    shape = helper.make_tensor_value_info
    made = helper.make_graph(
        [node], "one", [shape("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    made.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return Graph(onnx.shape_inference.infer_shapes(model))


def _check(graph: Graph, x: Array, w: Array) -> Product:
    """The product equals the output, also at some positions; the weight comes back."""
    layer = find_layers(graph).by_name["anchor"]
    product = product_of(graph, layer)
    assert product is not None
    session = SimulationBackend(1).open(graph.proto, ())
    y = session.run({"x": x})["y"]
    found = product.rows(x) @ product.matrix(w)
    np.testing.assert_allclose(found, product.columns(y), rtol=1e-4, atol=1e-4)
    assert product.matrix(w).shape == product.matrix_shape
    np.testing.assert_array_equal(product.weight(product.matrix(w)), w)
    at = np.arange(0, found.shape[1], 2)
    np.testing.assert_array_equal(product.rows(x, at), product.rows(x)[:, at])
    np.testing.assert_array_equal(product.columns(y, at), product.columns(y)[:, at])
    axis = channel_axis(graph, layer)
    others = tuple(i for i in range(y.ndim) if axis is not None and i != axis % y.ndim)
    means = y.mean() if axis is None else y.mean(axis=others)
    flat = product.columns(y).mean(axis=1).reshape(-1)
    np.testing.assert_allclose(flat, np.atleast_1d(means), rtol=1e-4, atol=1e-4)
    return product


@settings(max_examples=60, deadline=None)
@given(CONV, st.booleans(), st.integers(0, 99))
def test_a_convolution_is_a_product(case: Any, transposed: bool, seed: int) -> None:
    rng, rank, group = np.random.default_rng(seed), case["rank"], case["group"]
    kernel = case["kernel"][:rank]
    cin, cout = case["cin"] * group, case["cout"] * group
    x = rng.normal(size=(2, cin, *case["size"][:rank])).astype(np.float32)
    first = (cin, case["cout"]) if transposed else (cout, case["cin"])
    w = rng.normal(size=(*first, *kernel)).astype(np.float32)
    attributes: dict[str, Any] = {"group": group, "auto_pad": case["auto_pad"]}
    attributes |= {k: case[k][:rank] for k in ("strides", "dilations")}
    if case["auto_pad"] == "NOTSET":
        attributes["pads"] = [*case["pads"][:rank], *case["pads"][2 : 2 + rank]]
    elif case["auto_pad"] != "VALID":
        attributes.pop("dilations")  # ONNX Runtime refuses some of these together
    try:
        graph = _graph("ConvTranspose" if transposed else "Conv", x, w, False, **attributes)
        _check(graph, x, w)
    except (QdebugError, onnx.shape_inference.InferenceError):
        assume(False)  # an output without values


@pytest.mark.parametrize("more", [{"output_padding": [1, 0]}, {"output_shape": [8, 9]}])
def test_a_transposed_convolution_of_a_chosen_size(more: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 4, 4)).astype(np.float32)
    w = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    graph = _graph("ConvTranspose", x, w, False, strides=[2, 2], group=2, **more)
    assert _check(graph, x, w).groups == 2


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("trans_x", [0, 1])
@pytest.mark.parametrize("trans_w", [0, 1])
def test_a_gemm_is_a_product(left: bool, trans_x: int, trans_w: int) -> None:
    rng = np.random.default_rng(1)
    x_shape, w_shape = ((5, 4), (3, 5)) if left else ((4, 5), (5, 3))
    x = rng.normal(size=x_shape[::-1] if trans_x else x_shape).astype(np.float32)
    w = rng.normal(size=w_shape[::-1] if trans_w else w_shape).astype(np.float32)
    flags = (
        {"transA": trans_w, "transB": trans_x} if left else {"transA": trans_x, "transB": trans_w}
    )
    _check(_graph("Gemm", x, w, left, alpha=0.5, **flags), x, w)


@pytest.mark.parametrize("x", [(5,), (4, 5), (2, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("w", [(5,), (5, 3)])
@pytest.mark.parametrize("left", [False, True])
def test_a_matmul_is_a_product(x: tuple[int, ...], w: tuple[int, ...], left: bool) -> None:
    rng = np.random.default_rng(2)
    if left:
        x, w = (*x[:-2], *x[-2:][::-1]), w[::-1]
    values = rng.normal(size=x).astype(np.float32)
    weight = rng.normal(size=w).astype(np.float32)
    _check(_graph("MatMul", values, weight, left), values, weight)


def test_a_stack_of_weights_is_none() -> None:
    x, w = np.zeros((2, 4, 5), np.float32), np.zeros((2, 5, 3), np.float32)
    graph = _graph("MatMul", x, w, False)
    assert product_of(graph, find_layers(graph).by_name["anchor"]) is None
