"""Grids of any integer type against ONNX Runtime's QuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.plan.quantize import Grid, dynamic_grid, grid_of

KINDS = [np.uint8, np.int8, np.uint16, np.int16]


def _model(scale: Any, zero: Any, axis: int | None) -> onnx.ModelProto:
    attributes = {} if axis is None else {"axis": axis}
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "n", **attributes)
    value = helper.make_tensor_value_info
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(zero).dtype)
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in (("s", scale), ("z", zero))]
    shape = [None, None, None]
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, shape)], [value("q", kind, shape)], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def codes_of(grid: Grid, x: Any) -> Any:
    return grid.format.encode(x, grid.scale, grid.axis, grid.zero_point).astype(np.int64)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    axis=st.sampled_from([None, 0, 1, 2]),
)
def test_codes_equal_onnx_runtime(seed: int, kind: Any, axis: int | None) -> None:
    rng = np.random.default_rng(seed)
    shape = (3, 4, 5)
    info = np.iinfo(kind)
    count = () if axis is None else (shape[axis],)
    scale = np.exp(rng.uniform(-9, 3, count)).astype(np.float32)
    zero = rng.integers(info.min, info.max + 1, count).astype(kind)
    x = (rng.normal(size=shape) * np.exp(rng.uniform(-3, 12))).astype(np.float32)
    proto = _model(scale, zero, axis)
    graph = Graph(proto)
    grid = grid_of(graph, graph.nodes[0])
    assert grid is not None
    session = SimulationBackend(1).open(proto, [])
    expected = session.run({"x": x})["q"]
    session.close()
    np.testing.assert_array_equal(codes_of(grid, x), expected.astype(np.int64))
    if axis is None:
        low, high = grid.limits
        saturated = (x < np.float32(low)) | (x > np.float32(high))
        ends = np.isin(codes_of(grid, x), (grid.format.lowest, grid.format.largest))
        assert np.all(ends[saturated])
        inside = np.abs((codes_of(grid, x) - int(zero)) * float(scale) - x)[~saturated]
        steps = 1.5 if grid.symmetric else 0.5  # of a symmetric one the lowest code counts as out
        assert np.all(inside <= steps * float(scale) * (1 + 1e-4) + 1e-6 * np.abs(x[~saturated]))


@pytest.mark.parametrize(("scales", "zeros"), [(5, 20), (5, 1), (1, 5), (0, 0)])
def test_a_zero_point_that_does_not_fit_the_scale(scales: int, zeros: int) -> None:
    graph = Graph(_model(np.ones(scales, np.float32), np.zeros(zeros, np.int8), 1))
    assert grid_of(graph, graph.nodes[0]) is None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    bound=st.floats(-100, 100, width=32),
    upper=st.booleans(),
)
def test_clipping_that_changes_no_code(seed: int, kind: Any, bound: float, upper: bool) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(kind)
    scale = np.float32(np.exp(rng.uniform(-6, 1)))
    zero = np.array(rng.choice([info.min, info.max, rng.integers(info.min, info.max)]), kind)
    graph = Graph(_model(scale, zero, None))
    grid = grid_of(graph, graph.nodes[0])
    assert grid is not None
    x = (bound + rng.normal(size=(1, 20, 20)) * 300).astype(np.float32)
    clipped = np.minimum(x, np.float32(bound)) if upper else np.maximum(x, np.float32(bound))
    same = np.array_equal(codes_of(grid, x), codes_of(grid, clipped))
    neutral = grid.clips_at(None, bound) if upper else grid.clips_at(bound, None)
    assert same or not neutral
    if not neutral:
        far = np.full((1, 1, 1), 1e9 if upper else -1e9, np.float32)
        edge = np.full((1, 1, 1), bound, np.float32)
        assert codes_of(grid, far) != codes_of(grid, edge)


@pytest.mark.parametrize("seed", range(5))
def test_dynamic_quantization(seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(4, 5)).astype(np.float32) + seed - 2
    outputs = ["q", "s", "z"]
    node = helper.make_node("DynamicQuantizeLinear", ["x"], outputs, "n")
    value = helper.make_tensor_value_info
    kinds = (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8)
    graph = helper.make_graph(
        [node],
        "g",
        [value("x", TensorProto.FLOAT, x.shape)],
        [value(n, k, None) for n, k in zip(outputs, kinds, strict=True)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = SimulationBackend(1).open(proto, [])
    found = session.run({"x": x})
    session.close()
    grid = dynamic_grid(x)
    assert float(found["s"]) == float(grid.scale) and int(found["z"]) == int(grid.zero_point)
    np.testing.assert_array_equal(codes_of(grid, x), found["q"].astype(np.int64))
