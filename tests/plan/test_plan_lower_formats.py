"""Lowering to FP8, to 16-bit activations with 8-bit weights, and to BF16."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from qdebug.formats.registry import FORMAT_OF, RANGED, WEIGHT_FORMAT_OF
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.quantize import half_scale
from qdebug.types import Precision

F32 = np.float32
W = np.random.default_rng(0).normal(size=(4, 3)).astype(F32)
X = np.random.default_rng(1).normal(size=(8, 4)).astype(F32)


def _product(kit: SimpleNamespace, opset: int) -> Any:
    return kit.make(
        [kit.node("MatMul", ["x", "w"], ["y"], "m")], {"x": (8, 4)}, ["y"], {"w": W}, opset=opset
    )


def _ranges(kit: SimpleNamespace, proto: Any, images: Any) -> dict[str, float]:
    found = {**kit.run(proto, {"x": images}, ["r1", "f"]), "x": images}
    return {t: float(np.abs(found[t]).max()) for t in ("x", "r1", "f")}


@pytest.mark.parametrize("precision", sorted(RANGED & FORMAT_OF.keys()))
@pytest.mark.parametrize("rest", ["fp32", "bf16", "fp16"])
def test_a_product_reads_what_its_formats_hold(
    kit: SimpleNamespace, precision: Precision, rest: str
) -> None:
    plan = kit.int8({"x": 2.0}, precision=precision, fallback_precision=Precision(rest))
    low = kit.lowered(_product(kit, required_opset(plan)), plan)
    found = kit.run(low.graph, {"x": X})["y"]
    data, weight = FORMAT_OF[precision], WEIGHT_FORMAT_OF[precision]
    scales = data.scale_of(2.0), weight.scale_of(np.abs(W).max(axis=0))
    scales_in_half = rest == "fp16" and data.bits == 8
    if scales_in_half:
        scales = half_scale(scales[0], data), half_scale(scales[1], weight)
    expected = data.quantize(X, scales[0]) @ weight.quantize(W, scales[1], 1)
    tolerance = 2e-3 if scales_in_half else 1e-6
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    kinds = {low.graph.types[n.outputs[0]] for n in low.graph.nodes if n.op_type[0] == "Q"}
    assert kinds == {data.onnx_type}
    stored = {t.data_type for t in low.graph.proto.graph.initializer} - {TensorProto.FLOAT}
    assert stored - {TensorProto.FLOAT16} == {data.onnx_type, weight.onnx_type}
    # Values of 16 bits would lose digits in Q/DQ pairs of FP16.
    assert (TensorProto.FLOAT16 in low.graph.types.values()) == scales_in_half


def test_required_opset(kit: SimpleNamespace) -> None:
    """Of QuantizeLinear in FP8 and in INT16, and of Conv in BF16."""
    opsets = {p: required_opset(PrecisionPlan(p)) for p in FORMAT_OF}
    assert opsets == {
        "w4": 21,
        "w8": 21,
        "int8": 13,
        "fp8": 19,
        "a16w8": 21,
        "bf16": 22,
        "fp16": 13,
        "fp32": 13,
    }
    assert required_opset(kit.int8(fallback_precision=Precision.BF16)) == 22
    assert required_opset(kit.int8(layers={"a": Precision.A16W8})) == 21


@pytest.mark.parametrize("rest", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("precision", list(FORMAT_OF))
@pytest.mark.parametrize("opset", [17, 25])
def test_a_network_in_each_precision(
    kit: SimpleNamespace,
    residual_net: Any,
    images: Any,
    precision: Precision,
    rest: str,
    opset: int,
) -> None:
    """Valid ONNX, from any opset, and near the network in FP32."""
    amax = _ranges(kit, residual_net(opset), images)
    plan = kit.int8(amax, precision=precision, fallback_precision=Precision(rest))
    model = kit.prepare(residual_net(opset), required_opset(plan))
    low = kit.lowered(model, plan)
    assert low.graph.opset == max(opset, required_opset(plan))
    exact = kit.run(model.graph, {"x": images})["out"]
    found = kit.run(low.graph, {"x": images})["out"]
    noise = np.sum((exact - found) ** 2) / np.sum(exact**2)
    least = {
        "w4": 15,
        "w8": 40,
        "int8": 25,
        "fp8": 20,
        "a16w8": 30,
        "bf16": 40,
        "fp16": 55,
        "fp32": 300,
    }
    db = 300 if noise == 0 else -10 * np.log10(noise)
    assert db >= min(least[precision], 40 if rest == "bf16" else 300), db


def test_bf16_rounds_every_operator_once(kit: SimpleNamespace) -> None:
    nodes = [
        kit.node("MatMul", ["x", "w"], ["p"], "m"),
        kit.node("Add", ["p", "b"], ["s"], "a"),
        kit.node("Sigmoid", ["s"], ["y"], "n"),
    ]
    b = np.random.default_rng(2).normal(size=3).astype(F32)
    proto = kit.make(nodes, {"x": (8, 4)}, ["y"], {"w": W, "b": b}, opset=22)
    low = kit.lowered(proto, PrecisionPlan(Precision.BF16))
    found = kit.run(low.graph, {"x": X}, ["p", "s"])

    def rounded(values: Any) -> Any:
        return np.asarray(values, F32).astype(ml_dtypes.bfloat16).astype(F32)

    p = rounded(rounded(X) @ rounded(W))
    np.testing.assert_array_equal(found["p"], p)
    s = rounded(p + rounded(b))
    np.testing.assert_array_equal(found["s"], s)
    np.testing.assert_allclose(found["y"], 1 / (1 + np.exp(-s)), rtol=2**-8)
    np.testing.assert_array_equal(found["y"], rounded(found["y"]))


def test_layers_of_every_precision_in_one_plan(
    kit: SimpleNamespace, residual_net: Any, images: Any
) -> None:
    """A tensor that layers of several formats read has a pair for each."""
    first, *others = [
        n for n in kit.prepare(residual_net(22), 22).graph.nodes if n.op_type == "Conv"
    ]
    pins = {first.name: Precision.BF16, others[0].name: Precision.A16W8}
    amax = _ranges(kit, residual_net(22), images)
    plan = kit.int8(amax, layers=pins, precision=Precision.FP8, fallback_precision=Precision.FP16)
    low = kit.lowered(kit.prepare(residual_net(22), required_opset(plan)), plan)
    kinds = set(low.graph.types.values())
    assert {TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.INT16} <= kinds
    assert TensorProto.FLOAT8E4M3FN in kinds
    exact = kit.run(residual_net(22), {"x": images})["out"]
    found = kit.run(low.graph, {"x": images})["out"]
    assert np.sum((exact - found) ** 2) < 0.01 * np.sum(exact**2)


def test_a_mask_stays_finite_in_bf16(kit: SimpleNamespace) -> None:
    """The largest number of FP32 would round to Inf; Inf itself stays."""
    ends = np.float32([-3.4028235e38, 3.4028235e38, np.inf, 1.0])
    proto = kit.make([kit.node("Add", ["x", "c"], ["y"], "a")], {"x": (4,)}, ["y"], {"c": ends})
    low = kit.lowered(kit.prepare(proto, 22), PrecisionPlan(Precision.BF16))
    found = kit.run(low.graph, {"x": np.zeros(4, F32)})["y"]
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    np.testing.assert_array_equal(found, F32([-largest, largest, np.inf, 1.0]))
