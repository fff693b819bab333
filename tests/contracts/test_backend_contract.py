"""What every Backend promises. A new backend joins BACKENDS."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.errors import BackendError, ModelError, QdebugError
from qdebug.run.base import Backend
from qdebug.run.simulation import SimulationBackend
from qdebug.run.tensorrt.backend import TensorRTBackend
from qdebug.run.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.run.tensorrt.execute.cuda import open_cuda
from qdebug.run.tensorrt.factory import EngineFactory
from qdebug.run.tensorrt.library import load_library
from qdebug.testing.backend import FakeBackend
from qdebug.testing.tensorrt import fake_maker

UP_TO_8 = BuildSettings(profile={"x": ShapeRange((1, 4), (2, 4), (8, 4))})


def on_gpu() -> Backend:
    """TensorRT for RTX, or a skip that says what is missing."""
    try:
        return TensorRTBackend(
            EngineFactory(load_library("tensorrt-rtx"), UP_TO_8, cuda=open_cuda())
        )
    except QdebugError as error:
        pytest.skip(f"needs a GPU and TensorRT for RTX: {error.message}")


BACKENDS: dict[str, Callable[[], Backend]] = {
    "simulation": lambda: SimulationBackend(threads=1),
    "fake": FakeBackend,
    "fake engine": lambda: TensorRTBackend(fake_maker(UP_TO_8)),
    "tensorrt-rtx": on_gpu,
}

NEAR = {"rtol": 2e-3, "atol": 1e-3}
"""TensorRT for RTX multiplies FP32 with the ten bits of TF32."""

X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> Backend:
    return BACKENDS[request.param]()


def network() -> onnx.ModelProto:
    """x → MatMul → Relu → y, with an integer and a boolean tensor beside it."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "mm"),
        helper.make_node("Relu", ["m"], ["层:relu;0"], "relu"),
        helper.make_node("Shape", ["m"], ["shape"], "shape"),
        helper.make_node("Greater", ["m", "zero"], ["positive"], "greater"),
        helper.make_node("Neg", ["层:relu;0"], ["y"], "neg"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 3]), value("shape", TensorProto.INT64, [2])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.float32(0), "zero")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_it_has_a_name(backend: Backend) -> None:
    assert backend.name in BACKENDS


def test_outputs_have_their_declared_types(backend: Backend) -> None:
    session = backend.open(network(), [])
    found = session.run({"x": X})
    assert list(session.dtypes) == list(found) == ["y", "shape"]
    assert session.skipped == ()
    assert {n: a.dtype for n, a in found.items()} == dict(session.dtypes)
    assert session.dtypes["shape"] == np.int64
    np.testing.assert_allclose(found["y"], -np.maximum(X @ W, 0), **NEAR)
    assert all(isinstance(a, np.ndarray) for a in found.values())


def test_captured_tensors_are_returned(backend: Backend) -> None:
    capture = ["层:relu;0", "m", "positive"]
    session = backend.open(network(), capture)
    found = session.run({"x": X})
    assert set(session.dtypes) == set(found) == {"y", "shape", *capture}
    assert {n: a.dtype for n, a in found.items()} == dict(session.dtypes)
    assert session.dtypes["positive"] == np.bool_
    np.testing.assert_allclose(found["m"], X @ W, **NEAR)
    np.testing.assert_array_equal(found["层:relu;0"], np.maximum(found["m"], 0))
    np.testing.assert_array_equal(found["positive"], found["m"] > 0)


def test_capturing_outputs_or_a_tensor_twice_is_harmless(backend: Backend) -> None:
    session = backend.open(network(), ["m", "y", "m", "y"])
    assert sorted(session.run({"x": X})) == ["m", "shape", "y"]
    assert session.skipped == ()


@pytest.mark.parametrize("name", ["never heard of", "x", "w", ""])
def test_what_is_not_computed_is_reported(backend: Backend, name: str) -> None:
    session = backend.open(network(), [name, "m"])
    assert [s.tensor for s in session.skipped] == [name]
    assert session.skipped[0].reason
    assert name not in session.dtypes and "m" in session.run({"x": X})


def test_extra_feeds_are_ignored(backend: Backend) -> None:
    session = backend.open(network(), [])
    plain = session.run({"x": X})
    more = session.run({"x": X, "label": np.arange(7), "m": np.zeros(3), "w": W * 0})
    np.testing.assert_array_equal(plain["y"], more["y"])


def test_batches_of_any_size(backend: Backend) -> None:
    session = backend.open(network(), [])
    for size in (1, 2, 5):
        assert session.run({"x": np.ones((size, 4), np.float32)})["y"].shape == (size, 3)


def test_run_is_safe_from_several_threads(backend: Backend) -> None:
    session = backend.open(network(), ["m"])
    inputs = [X * k for k in range(24)]
    alone = [session.run({"x": x})["m"] for x in inputs]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda x: session.run({"x": x})["m"], inputs))
    for want, got in zip(alone, found, strict=True):
        np.testing.assert_array_equal(got, want)


def test_results_outlive_the_next_run_and_the_session(backend: Backend) -> None:
    session = backend.open(network(), [])
    first = session.run({"x": X})["y"]
    kept = first.copy()
    session.run({"x": X * 3})
    session.close()
    np.testing.assert_array_equal(first, kept)


def test_feeds_are_not_modified(backend: Backend) -> None:
    feed = X.copy()
    backend.open(network(), []).run({"x": feed})
    np.testing.assert_array_equal(feed, X)


def test_the_model_is_not_modified(backend: Backend) -> None:
    proto = network()
    before = proto.SerializeToString(deterministic=True)
    backend.open(proto, ["m", "unknown"]).run({"x": X})
    assert proto.SerializeToString(deterministic=True) == before


def test_sessions_are_independent(backend: Backend) -> None:
    one, two = backend.open(network(), []), backend.open(network(), ["m"])
    one.close()
    assert "m" in two.run({"x": X})


def test_close_twice(backend: Backend) -> None:
    session = backend.open(network(), [])
    session.close()
    session.close()
    with pytest.raises(BackendError, match="closed"):
        session.run({"x": X})


def broken(kind: str) -> onnx.ModelProto:
    proto = network()
    node = proto.graph.node[1]
    if kind == "unknown operator":
        node.op_type = "Nope"
    elif kind == "unknown domain":
        node.domain = "nobody.knows"
    elif kind == "dangling input":
        node.input[0] = "nowhere"
    elif kind == "shapes":
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((5, 3), "f"), "w"))
    elif kind == "opset":
        proto.opset_import[0].version = 10_000
    return proto


@pytest.mark.parametrize(
    "kind", ["unknown operator", "unknown domain", "dangling input", "shapes", "opset"]
)
def test_a_bad_model(backend: Backend, kind: str) -> None:
    with pytest.raises(ModelError) as caught:
        backend.open(broken(kind), ["m"])
    message = caught.value.message.lower().replace("onnx runtime", "simulation")
    assert backend.name in message.replace("tensorrt for rtx", "tensorrt-rtx")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "feeds",
    [
        {},
        {"other": X},
        {"x": np.ones((2, 5), np.float32)},
        {"x": np.ones((2, 2, 2, 2, 3), np.float32)},
    ],
    ids=["none", "another", "width", "rank"],
)
def test_feeds_that_do_not_fit(backend: Backend, feeds: dict[str, Any]) -> None:
    session = backend.open(network(), [])
    with pytest.raises(BackendError) as caught:
        session.run(feeds)
    assert not isinstance(caught.value, ModelError)
    session.run({"x": X})  # the session survives


def test_an_empty_capture_of_a_model_with_qdq(backend: Backend) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dq"),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [
            numpy_helper.from_array(np.float32(0.25), "s"),
            numpy_helper.from_array(np.int8(0), "z"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = backend.open(proto, ["q"])
    x = np.array([[0.125, 0.375, 100, -100]], np.float32)
    found = session.run({"x": x})
    assert session.dtypes["q"] == np.int8
    np.testing.assert_array_equal(found["q"], [[0, 2, 127, -128]])  # ties to even, saturated
    np.testing.assert_array_equal(found["y"], [[0, 0.5, 31.75, -32]])
