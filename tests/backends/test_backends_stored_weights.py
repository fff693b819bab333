"""Weights of sessions that are mapped and dequantized once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qdebug.backends.stored_weights as stored_weights
from qdebug.backends import simulation
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.stored_weights import dequantized, mapped_values
from qdebug.network.weights import external_bytes, tensor_of
from qdebug.types import Array

_X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512])


def _model(codes: Array, scale: Array, zero: Array | None, axis: int | None) -> onnx.ModelProto:
    """y = x @ DequantizeLinear(codes)."""
    constants = [tensor_of(codes, "codes"), tensor_of(scale, "scale")]
    inputs = ["codes", "scale"]
    if zero is not None:
        constants.append(tensor_of(zero, "zero"))
        inputs.append("zero")
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("DequantizeLinear", inputs, ["w"], "dq", **attributes),
        helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [_X], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    has_zero=st.booleans(),
    axis=st.sampled_from([None, 0, 1, -1]),
    per_channel=st.booleans(),
)
def test_dequantized_weights_are_those_of_the_runtime(
    seed: int, has_zero: bool, axis: int | None, per_channel: bool
) -> None:
    rng = np.random.default_rng(seed)
    shape = (512, 513)
    codes = rng.integers(-128, 128, shape).astype(np.int8)
    count = shape[1 if axis is None else axis] if per_channel else ()
    scale = (10 ** rng.uniform(-6, 2, count)).astype(np.float32)
    zero = np.zeros(count, np.int8) if has_zero else None
    model = _model(codes, np.asarray(scale), zero, axis)
    plain = dequantized(model, ())
    assert [n.op_type for n in plain.graph.node] == ["MatMul"]
    assert [n.op_type for n in model.graph.node] == ["DequantizeLinear", "MatMul"]
    feeds = {"x": np.eye(3, 512, seed % 500, dtype=np.float32)}
    as_written, once = (SimulationBackend(1).open(m, ()).run(feeds)["y"] for m in (model, plain))
    assert np.array_equal(as_written, once)


def test_scales_and_zero_points_that_lie_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of very wide layers do."""
    monkeypatch.setattr("qdebug.network.weights.LARGE_BYTES", 256)
    scale = np.full(513, 0.5, np.float32)
    model = _model(np.ones((512, 513), np.int8), scale, np.zeros(513, np.int8), None)
    assert all(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer)
    assert [n.op_type for n in dequantized(model, ()).graph.node] == ["MatMul"]


def test_what_is_asked_for_or_takes_too_much_stays_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes = np.ones((512, 512), np.int8)
    model = _model(codes, np.asarray(np.float32(0.5)), None, None)
    assert dequantized(model, ["w"]) is model
    monkeypatch.setattr(stored_weights, "DEQUANTIZED_BYTES", 4 * codes.size - 1)
    assert dequantized(model, ()) is model
    monkeypatch.undo()
    asymmetric = _model(codes, np.asarray(np.float32(0.5)), np.asarray(np.int8(3)), None)
    assert dequantized(asymmetric, ()) is asymmetric
    small = _model(np.ones((512, 5), np.int8), np.asarray(np.float32(0.5)), None, None)
    assert dequantized(small, ()) is small  # the runtime folds what the model holds itself


def test_sessions_share_what_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "MAPPED_ONLY_BYTES", 1)
    rng = np.random.default_rng(1)
    codes = rng.integers(-127, 128, (512, 600)).astype(np.int8)
    model = _model(codes, np.asarray(np.float32(0.01)), None, None)
    assert external_bytes(model)
    one, other = (SimulationBackend(1).open(model, ()) for _ in range(2))
    values = [list(session._shared.values()) for session in (one, other)]
    assert values[0]
    assert all(a is b for a, b in zip(*values, strict=True))
    held = [weakref.ref(value) for value in values[0]]
    feeds = {"x": rng.standard_normal((2, 512)).astype(np.float32)}
    before = other.run(feeds)["y"]
    one.close()
    assert np.array_equal(other.run(feeds)["y"], before)
    other.close()
    del values
    gc.collect()
    assert [value() for value in held] == [None] * len(held)


def test_only_what_lies_in_files_is_mapped() -> None:
    large = tensor_of(np.arange(1 << 17, dtype=np.float32), "large")
    small = tensor_of(np.arange(4, dtype=np.float32), "small")
    found = mapped_values([large, small])
    assert [*found] == ["large"]
    assert np.array_equal(found["large"].numpy(), np.arange(1 << 17, dtype=np.float32))
