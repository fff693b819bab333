"""The quantize contract: q = clamp(round_half_to_even(x / scale), -128, 127)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from qdebug.backends.simulation import SimulationBackend, SimulationSession
from qdebug.calibrators.weights import weight_amax
from qdebug.errors import PlanError
from qdebug.formats.registry import INT8
from qdebug.plan.quantize import half_scale, scale_of

TINY = float(np.finfo(np.float32).tiny)
FLOATS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=5),
    elements=st.floats(width=32, allow_nan=False),
)
SCALES = st.floats(2.0**-149, 2.0**127, width=32)
AMAX = st.floats(0, 2.0**127, width=32)
ORDINARY = st.floats(2.0**-100, 2.0**100, width=32)


@pytest.fixture(scope="session")
def ort_pair() -> Callable[[int | None], SimulationSession]:
    """A session that computes Q and DQ of x with a scale that is fed."""
    made: dict[int | None, SimulationSession] = {}

    def session(axis: int | None) -> SimulationSession:
        if axis not in made:
            made[axis] = SimulationBackend(1).open(_pair_model(axis), [])
        return made[axis]

    return session


def _pair_model(axis: int | None) -> Any:
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **attributes),
    ]
    shape: list[Any] = [] if axis is None else ["C"]
    value = helper.make_tensor_value_info
    inputs = [
        value("x", TensorProto.FLOAT, ["A", "B", "C_"]),
        value("scale", TensorProto.FLOAT, shape),
        value("zero", TensorProto.INT8, shape),
    ]
    outputs = [value("q", TensorProto.INT8, None), value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "pair", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _assert_equal_to_ort(session: SimulationSession, x: Any, scale: Any, axis: int | None) -> None:
    found = session.run({"x": x, "scale": scale, "zero": np.zeros(scale.shape, np.int8)})
    codes = INT8.encode(x, scale, axis)
    np.testing.assert_array_equal(codes, found["q"])
    ours = INT8.decode(codes, scale, axis)
    # Bits, so that -0.0 is no 0.0.
    np.testing.assert_array_equal(ours.view(np.uint32), found["y"].view(np.uint32))
    np.testing.assert_array_equal(INT8.quantize(x, scale, axis), ours)


@settings(deadline=None, max_examples=200)
@given(x=FLOATS, scale=SCALES)
def test_per_tensor_is_onnx_runtimes_bit_for_bit(ort_pair: Any, x: Any, scale: float) -> None:
    _assert_equal_to_ort(ort_pair(None), x, np.array(scale, np.float32), None)


@settings(deadline=None, max_examples=150)
@given(x=FLOATS, axis=st.integers(0, 2), data=st.data())
def test_per_channel_is_onnx_runtimes_bit_for_bit(
    ort_pair: Any, x: Any, axis: int, data: st.DataObject
) -> None:
    scale = data.draw(hnp.arrays(np.float32, x.shape[axis], elements=SCALES))
    _assert_equal_to_ort(ort_pair(axis), x, scale, axis)


@settings(deadline=None, max_examples=150)
@given(x=FLOATS, axis=st.integers(0, 2))
def test_scales_from_the_data_never_clip_it_by_more_than_half_a_step(
    ort_pair: Any, x: Any, axis: int
) -> None:
    x = np.where(np.isfinite(x), x, np.float32(1))
    scale = scale_of(weight_amax(x, axis))
    _assert_equal_to_ort(ort_pair(axis), x, scale, axis)
    shape = [1, 1, 1]
    shape[axis] = -1
    step = scale.astype(np.float64).reshape(shape)
    error = np.abs(x.astype(np.float64) - INT8.quantize(x, scale, axis))
    assert np.all(error <= step / 2 * (1 + 1e-4))


@pytest.mark.parametrize("amax", [3e-37, 1e-44, TINY, 3.4e38])
def test_dead_and_huge_channels(ort_pair: Any, amax: float) -> None:
    x = np.array([[[amax, -amax, amax / 3, 0.0, -0.0]]], np.float32)
    scale = scale_of(np.array([amax]))
    assert np.all(scale >= TINY)
    assert np.all(np.isfinite(scale))
    _assert_equal_to_ort(ort_pair(0), x, scale, 0)
    assert np.all(np.isfinite(INT8.quantize(x, scale, 0)))


@settings(deadline=None)
@given(amax=ORDINARY, share=hnp.arrays(np.float64, 50, elements=st.floats(-1, 1)))
def test_round_trip_error_is_at_most_half_a_step_inside_the_range(amax: float, share: Any) -> None:
    scale = scale_of(amax)
    x = (share * amax).astype(np.float32)
    error = np.abs(INT8.quantize(x, scale).astype(np.float64) - x)
    # x / scale and code · scale are each rounded once to float32.
    assert np.all(error <= float(scale) * (0.5 + 127 * 2.0**-22))


def test_float16_and_float64_are_quantized_as_float32() -> None:
    x = np.array([0.1, -3.0, 1e5, 1e300], np.float64)
    scale = np.float32(0.02)
    assert INT8.encode(x, scale).tolist() == [5, -128, 127, 127]
    half = np.array([0.1, -3.0], np.float16)
    np.testing.assert_array_equal(
        INT8.encode(half, scale), INT8.encode(half.astype(np.float32), scale)
    )


def test_an_all_zero_tensor_gets_scale_one() -> None:
    assert scale_of(0.0) == 1
    assert scale_of(np.array([0.0, 127.0])).tolist() == [1, 1]
    assert scale_of(np.array([0.0, 127.0])).dtype == np.float32


@pytest.mark.parametrize("bad", [-1.0, -1e-45, float("nan"), float("inf"), 1e39])
def test_an_amax_that_is_no_range_is_refused(bad: float) -> None:
    with pytest.raises(PlanError, match=r"(?s)'x'.*QD-PLAN-AMAX"):
        scale_of(bad, "tensor 'x'")
    with pytest.raises(PlanError, match=r"\(channel 1\)") as caught:
        scale_of(np.array([1.0, bad, *[2.0] * 4000]), "weight 'w'")
    assert len(caught.value.message) < 200


@settings(deadline=None)
@given(scale=st.floats(2.0**-126, 2.0**127, width=32))
def test_half_scale_never_shrinks_the_range(scale: float) -> None:
    half = half_scale(np.array([scale], np.float32))
    if half is None:
        assert scale < 1e-5 or scale > 511
        return
    assert half.dtype == np.float32
    assert half[0] == np.float16(half[0])
    assert scale <= half[0] <= scale * 1.01
    assert np.isfinite((np.array(-128, np.float32) * half).astype(np.float16)).all()


def test_half_scale_is_none_when_one_channel_does_not_fit() -> None:
    assert half_scale(np.array([1.0, 1e-9], np.float32)) is None
    assert half_scale(np.array([1.0, 1e9], np.float32)) is None
    assert half_scale(np.array(0.5, np.float32)) == 0.5


def test_weight_amax() -> None:
    w = np.array([[1.0, -5.0], [2.0, 3.0]], np.float32)
    assert weight_amax(w, None) == 5
    assert weight_amax(w, 0).tolist() == [5, 3]
    assert weight_amax(w, -1).tolist() == [2, 5]
    assert weight_amax(np.zeros((0, 2), np.float32), None) == 0
    assert weight_amax(np.zeros((2, 0), np.float32), 0).tolist() == [0, 0]
    assert weight_amax(np.array([-60000], np.float16), None) == 60000
