"""What every number format must do; it is compared with ONNX Runtime's operators, and with NumPy's
and ml_dtypes' casts."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from qdebug.config.shared import FallbackName, MixName, PrecisionName
from qdebug.formats.base import Format, Kind
from qdebug.formats.registry import BITS as BITS_OF
from qdebug.formats.registry import (
    CAST,
    FORMAT_OF,
    FORMATS,
    FP32,
    INT8,
    PLANNED,
    RANGED,
    WEIGHT_ONLY,
)
from qdebug.formats.registry import SCALED as SCALED_PRECISIONS
from qdebug.types import Precision

BITS = {2: np.uint16, 4: np.uint32}
each = pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
scaled = pytest.mark.parametrize(
    "form", [f for f in FORMATS if f.needs_scale], ids=lambda f: f.name
)


def all_codes(form: Format) -> Any:
    """Every finite code of a format of up to 16 bits; of FP32 a sample of them."""
    if form.kind is Kind.INTEGER:
        return np.arange(form.lowest, form.largest + 1).astype(form.dtype)
    if form.bits == 32:
        raw = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint64).astype(np.uint32)
    else:
        raw = np.arange(2**form.bits).astype(np.uint8 if form.bits <= 8 else np.uint16)
    codes = raw.view(form.dtype)
    return codes[np.isfinite(codes.astype(np.float32))]


@cache
def _session(form: Format, channels: bool) -> onnxruntime.InferenceSession:
    """Q and DQ with a scale and a zero point that are fed, or a Cast there and back."""
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, None)]
    if form.needs_scale:
        axis = {"axis": 0} if channels else {}
        shape = ["n"] if channels else []
        inputs += [value("s", TensorProto.FLOAT, shape), value("zero", TensorProto.FLOAT, shape)]
        nodes = [
            helper.make_node("Cast", ["zero"], ["z"], to=form.onnx_type),
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["c"], **axis),
            helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"], **axis),
        ]
    else:
        nodes = [
            helper.make_node("Cast", ["x"], ["c"], to=form.onnx_type),
            helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
        ]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, None)])
    opset = max(form.opset, 13)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def by_onnx_runtime(form: Format, x: Any, scale: Any, zero: Any, channels: bool = False) -> Any:
    """The round trip by ONNX Runtime; by a search among the codes where it has no such operator."""
    feeds = {"x": x}
    if form.needs_scale:
        feeds |= {"s": scale, "zero": np.asarray(zero, np.float32)}
    try:
        return _session(form, channels).run(None, feeds)[0]
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        assert not np.any(zero)
        steps = np.asarray(scale, np.float32)
        return by_search(form, x, steps.reshape(-1, 1) if channels else steps)


def by_search(form: Format, x: Any, scale: Any) -> Any:
    """The nearest of all codes, of two that are as near the even one, times the scale."""
    raw = np.arange(2 ** (form.bits - 1), dtype=np.uint8)
    numbers = raw.view(form.dtype).astype(np.float64)
    with np.errstate(over="ignore"):
        ratio = (x / scale).astype(np.float64)
    distance = np.abs(np.minimum(np.abs(ratio), form.largest)[..., None] - numbers)
    nearest = distance == distance.min(axis=-1, keepdims=True)
    best = np.argmax(nearest * (2 - raw % 2), axis=-1)
    return np.copysign(numbers[best], ratio).astype(np.float32) * scale


def assert_same(found: Any, expected: Any) -> None:
    """Bit for bit, except that one NaN is as good as another."""
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), ~number)
    np.testing.assert_array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))


def some_values(form: Format, seed: int = 0) -> Any:
    """Of every magnitude, ordinary ones, and those that are none, where the format has NaN."""
    rng = np.random.default_rng(seed)
    every = rng.integers(0, 2**32, 20_000, np.uint64).astype(np.uint32).view(np.float32)
    plain = (rng.normal(size=20_000) * np.exp(rng.uniform(-9, 9, 20_000))).astype(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    values = np.concatenate([special, every, plain])
    return values if form.bits > 4 else values[~np.isnan(values)]


@each
def test_its_limits_are_those_of_its_type(form: Format) -> None:
    assert np.dtype(form.dtype) == helper.tensor_dtype_to_np_dtype(form.onnx_type)
    if form.kind is Kind.INTEGER:
        info = ml_dtypes.iinfo(form.dtype)
        expected = (info.min, info.max, 1, 1, info.bits)
    else:
        info = ml_dtypes.finfo(form.dtype)
        limits = (info.min, info.max, info.smallest_normal, info.smallest_subnormal)
        expected = (*map(float, limits), info.bits)
        assert form.fraction_bits == info.nmant  # type: ignore[attr-defined]
    assert expected == (
        form.lowest, form.largest, form.smallest_normal, form.smallest_subnormal, form.bits,
    )  # fmt: skip


@each
def test_every_code_survives_a_round_trip(form: Format) -> None:
    codes = all_codes(form)
    scale = np.float32(0.37) if form.needs_scale else np.float32(1)
    values = form.decode(codes, scale)
    assert values.dtype == np.float32
    again = form.encode(values, scale)
    assert again.dtype == form.dtype
    np.testing.assert_array_equal(again.astype(np.float32), codes.astype(np.float32))
    np.testing.assert_array_equal(form.quantize(values, scale), values)


@each
def test_ties_go_to_the_even_code(form: Format) -> None:
    numbers = np.unique(all_codes(form).astype(np.float64))
    with np.errstate(over="ignore"):
        middle = (numbers[:-1] + numbers[1:]) / 2
        ties = middle.astype(np.float32)
    exact = ties == middle
    numbers, ties = numbers[:-1][exact] if form.bits < 32 else numbers[:0], ties[exact]
    if form.bits == 32:  # nothing lies between the numbers of float32
        return
    upper = 2 * ties.astype(np.float64) - numbers
    found = form.quantize(ties)
    assert np.all((found == numbers) | (found == upper))
    if form.kind is Kind.INTEGER:
        assert np.all(found % 2 == 0)
    else:
        raw = form.encode(ties).view(np.uint8 if form.bits <= 8 else np.uint16)
        assert np.all(raw % 2 == 0)


@each
@pytest.mark.parametrize("scale", [1.0, 0.0123, 3e-5, 700.0])
def test_it_is_onnx_runtimes_bit_for_bit(form: Format, scale: float) -> None:
    x, s = some_values(form), np.array(scale if form.needs_scale else 1.0, np.float32)
    assert_same(form.quantize(x, s), by_onnx_runtime(form, x, s, 0))
    assert_same(form.decode(form.encode(x, s), s), by_onnx_runtime(form, x, s, 0))


@scaled
def test_channels_and_zero_points_are_onnx_runtimes(form: Format) -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(6, 500)) * 30).astype(np.float32)
    scale = np.exp(rng.uniform(-4, 1, 6)).astype(np.float32)
    zero = np.zeros(6, np.int64)
    if form.kind is Kind.INTEGER:
        zero = rng.integers(int(form.lowest), int(form.largest) + 1, 6)
    expected = by_onnx_runtime(form, x, scale, zero, channels=True)
    assert_same(form.quantize(x, scale, 0, zero), expected)
    assert_same(form.decode(form.encode(x, scale, 0, zero), scale, 0, zero), expected)


@each
def test_beyond_its_limits(form: Format) -> None:
    """It saturates, or overflows to Inf as a cast does."""
    far = np.array([np.inf, -np.inf], np.float32)
    found = form.quantize(far)
    saturates = form.kind is Kind.INTEGER or form.saturates  # type: ignore[attr-defined]
    assert found.tolist() == ([form.largest, form.lowest] if saturates else far.tolist())


@each
def test_nearest_is_the_round_trip_at_scale_one(form: Format) -> None:
    x = some_values(form, 2)
    x = x[~np.isnan(x)]
    expected = form.quantize(x)
    np.testing.assert_array_equal(form.nearest(x), expected)
    out = x.copy()
    assert form.nearest(out, out=out) is out
    np.testing.assert_array_equal(out, expected)


@scaled
def test_amax_maps_to_the_largest_code(form: Format) -> None:
    amax = np.exp(np.random.default_rng(3).uniform(-60, 60, 1000))
    scale = form.scale_of(amax)
    codes = form.encode(amax.astype(np.float32), scale, 0)
    assert np.all(codes.astype(np.float64) == form.largest)
    assert form.scale_of(0.0) == 1 and form.scale_of(np.zeros(2)).tolist() == [1, 1]
    for extreme in (1e-45, 3.4e38):
        scale = form.scale_of(extreme)
        assert np.isfinite(form.quantize(np.float32([extreme, -extreme]), scale)).all()


@each
def test_the_step_is_the_distance_of_neighbours(form: Format) -> None:
    scale = np.float32(0.25) if form.needs_scale else np.float32(1)
    numbers = np.unique(all_codes(form).astype(np.float64)) * float(scale)
    if form.bits == 32:
        numbers = np.sort(np.float64([*np.float32([1, 1.5, 3e38, 1e-45])]))
        expected = np.spacing(numbers.astype(np.float32)).astype(np.float64)
        np.testing.assert_array_equal(form.step(numbers), expected)
        return
    middle = (numbers[:-1] + numbers[1:]) / 2
    np.testing.assert_array_equal(form.step(middle, scale), np.diff(numbers))
    assert form.step(0.0, scale) == form.smallest_subnormal * scale


def test_the_registry() -> None:
    assert len({f.name for f in FORMATS}) == len({f.onnx_type for f in FORMATS}) == len(FORMATS)
    assert {form for _, *forms in PLANNED for form in forms} <= set(FORMATS)
    assert {f.precision for f in FORMATS} | {Precision.A16W8, *WEIGHT_ONLY} == set(Precision)
    assert all(w.needs_scale == (p in SCALED_PRECISIONS) for p, _, w in PLANNED)
    assert all(a.needs_scale == (p in RANGED) for p, a, _ in PLANNED)
    order = [BITS_OF[p] for p, _, _ in PLANNED]
    assert order == sorted(order)
    planned = tuple(map(str, FORMAT_OF))
    assert get_args(PrecisionName) == planned  # a literal, since flags start without NumPy
    assert get_args(FallbackName) == (*CAST, Precision.FP32)
    mixed = tuple(f"{p}+{rest}" for rest in CAST for p in FORMAT_OF if p in SCALED_PRECISIONS)
    assert get_args(MixName) == (*planned, *mixed)


def test_the_cost_of_a_multiply_accumulate() -> None:
    """As in NVIDIA's data sheets, relative to INT8."""
    costs = {p: form.mac_cost_on(80) for p, form in FORMAT_OF.items()}
    expected = {"int8": 1, "fp8": 1, "a16w8": 2, "bf16": 2, "fp16": 2, "fp32": 4}
    assert costs.items() >= expected.items()
    assert [INT8.mac_cost_on(c) for c in (70, 75, 90, 120)] == [1] * 4
    assert FP32.mac_cost_on(75) == 16
