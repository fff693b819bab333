"""What every backend promises, as a class of tests."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.base import Backend
from qdebug.backends.host import as_runtime
from qdebug.backends.registry import BackendSpec, backend_names, spec_of
from qdebug.backends.simulation import SimulationBackend
from qdebug.errors import BackendError, ModelError

X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


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
        [
            numpy_helper.from_array(W, "w"),
            numpy_helper.from_array(np.zeros((), np.float32), "zero"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def quantized(
    products: Sequence[str] = ("conv", "dense"), largest_code: int = 64
) -> onnx.ModelProto:
    """x → Conv conv → Relu → GlobalAveragePool → Flatten → Gemm dense → y, `products` in INT8.

    Codes of weights have 7 bits: x86 without VNNI adds two products of 8 bits in 16, where larger
    ones may saturate.
    """
    rng, most = np.random.default_rng(2), largest_code
    constants: dict[str, np.ndarray[Any, Any]] = {
        "zero": np.zeros((), np.int8),
        "cw": rng.integers(-most, most + 1, (16, 8, 3, 3)).astype(np.int8),
        "dw": rng.integers(-most, most + 1, (16, 10)).astype(np.int8),
        "bias": rng.normal(size=16).astype(np.float32),
    }
    scales = {"xs": 0.03, "cs": 0.004, "ps": 0.02, "ds": 0.02}
    constants |= {name: np.array(s, np.float32) for name, s in scales.items()}

    def pair(tensor: str, scale: str) -> list[onnx.NodeProto]:
        code, out = f"{tensor}_code", f"{tensor}_q"
        return [
            helper.make_node("QuantizeLinear", [tensor, scale, "zero"], [code], f"{tensor}_Q"),
            helper.make_node("DequantizeLinear", [code, scale, "zero"], [out], f"{tensor}_DQ"),
        ]

    x, f = (f"{t}_q" if p in products else t for t, p in (("x", "conv"), ("f", "dense")))
    nodes = [
        *(pair("x", "xs") if "conv" in products else []),
        helper.make_node("DequantizeLinear", ["cw", "cs", "zero"], ["cw_q"], "cw_DQ"),
        helper.make_node("Conv", [x, "cw_q", "bias"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        *(pair("f", "ps") if "dense" in products else []),
        helper.make_node("DequantizeLinear", ["dw", "ds", "zero"], ["dw_q"], "dw_DQ"),
        helper.make_node("Gemm", [f, "dw_q"], ["y"], "dense"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 8, 9, 9])],
        [value("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def broken(kind: str) -> onnx.ModelProto:
    """`network`, which no runtime can load."""
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


class BackendContract:
    """Derive a test class from it, and pytest runs what every backend must pass.

    Attributes:
        backend_name: of the backend. One of the registry is opened from there; for another,
            override `open_backend`.
        called: how its messages call it; by default its name.
        rtol, atol: tolerances of products, for `numpy.testing.assert_allclose`.
        products: those of `quantized` that the backend takes in INT8.
    """

    backend_name = ""
    called = ""
    rtol, atol = 2e-3, 1e-3
    products: tuple[str, ...] = ("conv", "dense")

    def __init_subclass__(cls) -> None:
        """A class that declares only its name is called by it."""
        cls.called = cls.called or cls.backend_name

    def open_backend(self) -> Backend:
        """The backend that is tested. May skip."""
        spec = spec_of(self.backend_name)
        if not spec.installed:
            pytest.skip(f"{spec.name} is not installed: {spec.install}")
        opened: Backend = spec.open()
        return opened

    @pytest.fixture
    def backend(self) -> Backend:
        """A fresh one for each test."""
        return self.open_backend()

    def test_it_has_a_name(self, backend: Backend) -> None:
        assert backend.name == self.backend_name

    def test_outputs_have_their_declared_types(self, backend: Backend) -> None:
        session = backend.open(network(), [])
        found = session.run({"x": X})
        assert list(session.dtypes) == list(found) == ["y", "shape"]
        assert session.skipped == ()
        assert {n: a.dtype for n, a in found.items()} == dict(session.dtypes)
        assert session.dtypes["shape"] == np.int64
        np.testing.assert_allclose(
            found["y"], -np.maximum(X @ W, 0), rtol=self.rtol, atol=self.atol
        )
        assert all(isinstance(a, np.ndarray) for a in found.values())

    def test_captured_tensors_are_returned(self, backend: Backend) -> None:
        capture = ["层:relu;0", "m", "positive"]
        session = backend.open(network(), capture)
        found = session.run({"x": X})
        assert set(session.dtypes) == set(found) == {"y", "shape", *capture}
        assert {n: a.dtype for n, a in found.items()} == dict(session.dtypes)
        assert session.dtypes["positive"] == np.bool_
        np.testing.assert_allclose(found["m"], X @ W, rtol=self.rtol, atol=self.atol)
        np.testing.assert_array_equal(found["层:relu;0"], np.maximum(found["m"], 0))
        np.testing.assert_array_equal(found["positive"], found["m"] > 0)

    def test_capturing_outputs_or_a_tensor_twice_is_harmless(self, backend: Backend) -> None:
        session = backend.open(network(), ["m", "y", "m", "y"])
        assert sorted(session.run({"x": X})) == ["m", "shape", "y"]
        assert session.skipped == ()

    @pytest.mark.parametrize("name", ["never heard of", "x", "w", ""])
    def test_what_is_not_computed_is_reported(self, backend: Backend, name: str) -> None:
        session = backend.open(network(), [name, "m"])
        assert [s.tensor for s in session.skipped] == [name]
        assert session.skipped[0].reason
        assert name not in session.dtypes and "m" in session.run({"x": X})

    def test_extra_feeds_are_ignored(self, backend: Backend) -> None:
        session = backend.open(network(), [])
        plain = session.run({"x": X})
        more = session.run({"x": X, "label": np.arange(7), "m": np.zeros(3), "w": W * 0})
        np.testing.assert_array_equal(plain["y"], more["y"])

    def test_batches_of_any_size(self, backend: Backend) -> None:
        session = backend.open(network(), [])
        for size in (1, 2, 5):
            assert session.run({"x": np.ones((size, 4), np.float32)})["y"].shape == (size, 3)

    def test_run_is_safe_from_several_threads(self, backend: Backend) -> None:
        session = backend.open(network(), ["m"])
        inputs = [X * k for k in range(24)]
        alone = [session.run({"x": x})["m"] for x in inputs]
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda x: session.run({"x": x})["m"], inputs))
        for want, got in zip(alone, found, strict=True):
            np.testing.assert_array_equal(got, want)

    def test_results_outlive_the_next_run_and_the_session(self, backend: Backend) -> None:
        session = backend.open(network(), [])
        first = session.run({"x": X})["y"]
        kept = first.copy()
        session.run({"x": X * 3})
        session.close()
        np.testing.assert_array_equal(first, kept)

    def test_feeds_are_not_modified(self, backend: Backend) -> None:
        feed = X.copy()
        backend.open(network(), []).run({"x": feed})
        np.testing.assert_array_equal(feed, X)

    def test_the_model_is_not_modified(self, backend: Backend) -> None:
        proto = network()
        before = proto.SerializeToString(deterministic=True)
        backend.open(proto, ["m", "unknown"]).run({"x": X})
        assert proto.SerializeToString(deterministic=True) == before

    def test_sessions_are_independent(self, backend: Backend) -> None:
        one, two = backend.open(network(), []), backend.open(network(), ["m"])
        one.close()
        assert "m" in two.run({"x": X})

    def test_close_twice(self, backend: Backend) -> None:
        session = backend.open(network(), [])
        session.close()
        session.close()
        with pytest.raises(BackendError, match="closed"):
            session.run({"x": X})

    @pytest.mark.parametrize(
        "kind", ["unknown operator", "unknown domain", "dangling input", "shapes", "opset"]
    )
    def test_a_bad_model(self, backend: Backend, kind: str) -> None:
        with pytest.raises(ModelError) as caught:
            backend.open(broken(kind), ["m"])
        assert self.called in caught.value.message
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
    def test_feeds_that_do_not_fit(self, backend: Backend, feeds: dict[str, Any]) -> None:
        session = backend.open(network(), [])
        with pytest.raises(BackendError) as caught:
            session.run(feeds)
        assert not isinstance(caught.value, ModelError)
        session.run({"x": X})  # the session survives

    def test_an_empty_capture_of_a_model_with_qdq(self, backend: Backend) -> None:
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
                numpy_helper.from_array(np.array(0.25, np.float32), "s"),
                numpy_helper.from_array(np.zeros((), np.int8), "z"),
            ],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        session = backend.open(proto, ["q"])
        x = np.array([[0.125, 0.375, 100, -100]], np.float32)
        found = session.run({"x": x})
        assert session.dtypes["q"] == np.int8
        np.testing.assert_array_equal(found["q"], [[0, 2, 127, -128]])  # ties to even, saturated
        np.testing.assert_array_equal(found["y"], [[0, 0.5, 31.75, -32]])

    def test_it_is_what_the_registry_says(self, backend: Backend) -> None:
        """In a network of INT8 products: it audits, profiles and writes what it claims to."""
        spec = self.registered()
        runtime = as_runtime(spec, backend).fitted((), ())
        proto, x = quantized(self.products), np.random.default_rng(3).normal(size=(1, 8, 9, 9))
        feeds = {"x": x.astype(np.float32)}
        if spec.builds:
            built = runtime.build(proto)
            assert bool(built.engine) >= ("save_engine" in spec.settings)
            assert bool(built.log) >= ("save_log" in spec.settings)
            assert (built.info is not None) == spec.audits
            if built.info is not None:
                products = [built.info.layer_of(name) for name in self.products]
                found = {p.precision for p in products if p is not None}
                assert found and found <= {*spec.precisions, "tf32"}
        observed = runtime.open(proto, ["c"])
        assert "c" in observed.run(feeds)
        observed.close()
        session = runtime.clean(proto)
        assert session.latency_ms(feeds) > 0
        times = session.layer_times(feeds)
        assert bool(times) == spec.profiles
        assert all(t.ms >= 0 and t.name for t in times)
        session.close()

    def test_what_is_profiled_is_what_is_audited(self, backend: Backend) -> None:
        """Times belong to layers by their names."""
        spec = self.registered()
        if not (spec.audits and spec.profiles and spec.builds):
            pytest.skip("it does not both audit and profile")
        runtime = as_runtime(spec, backend).fitted((), ())
        proto = quantized(self.products)
        info = runtime.build(proto).info
        session = runtime.clean(proto)
        times = session.layer_times({"x": np.ones((1, 8, 9, 9), np.float32)})
        session.close()
        assert info is not None
        named = {layer.name for layer in info.layers}
        product = info.layer_of(self.products[0])
        assert product is not None and product.name in {t.name for t in times}
        assert sum(t.name in named for t in times) >= len(times) / 2

    def test_it_computes_what_the_simulation_computes(self, backend: Backend) -> None:
        """But for the rounding of its kernels: 25 dB and more in a small network."""
        feeds = {"x": np.random.default_rng(4).normal(size=(1, 8, 9, 9)).astype(np.float32)}
        expected = SimulationBackend(1).open(quantized(self.products), []).run(feeds)["y"]
        fitted: Backend = backend.fitted((), ()) if hasattr(backend, "fitted") else backend
        found = fitted.open(quantized(self.products), []).run(feeds)["y"]
        noise = float(np.square(expected - found, dtype=np.float64).sum())
        signal = float(np.square(expected, dtype=np.float64).sum())
        assert noise <= signal * 10**-2.5

    def registered(self) -> BackendSpec:
        """What the registry says of it; skips where that cannot be tried."""
        if self.backend_name not in backend_names():
            pytest.skip("it is not in the registry")
        return spec_of(self.backend_name)
