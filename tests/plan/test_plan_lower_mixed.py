"""Lowering to INT8 with FP16 in the same plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from qdebug.errors import PlanError
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Precision

HALF = PrecisionPlan(Precision.FP16)
F16, F32 = np.float16, np.float32
AMAX = {"x": 3.0, "r1": 6.0, "f": 4.0}


def _types(graph: Any) -> dict[str, str]:
    return {n: TensorProto.DataType.Name(k) for n, k in graph.types.items()}


def test_required_opset(kit: SimpleNamespace) -> None:
    assert required_opset(kit.int8()) == 13
    assert required_opset(kit.int8(fallback_precision=Precision.FP16)) == 19
    half = PrecisionPlan(Precision.FP16, fallback_precision=Precision.FP16)
    assert required_opset(half) == 13
    pinned = PrecisionPlan(Precision.FP16, Precision.FP16, {"a": Precision.INT8})
    assert required_opset(pinned) == 19


def test_int8_with_rest_fp16_needs_opset_19(kit: SimpleNamespace, residual_net: Any) -> None:
    plan = kit.int8(AMAX, fallback_precision=Precision.FP16)
    with pytest.raises(PlanError, match=r"(?s)19.*17.*QD-PLAN-OPSET"):
        kit.lowered(residual_net(17), plan)
    prepared = kit.prepare(residual_net(17), required_opset(plan))
    assert prepared.graph.opset == 19
    assert kit.lowered(prepared, plan).graph.opset == 19


@pytest.mark.parametrize("opset", [19, 21, 23, 25])
def test_int8_with_rest_fp16(
    kit: SimpleNamespace, residual_net: Any, images: Any, opset: int
) -> None:
    proto = residual_net(opset)
    low = kit.lowered(proto, kit.int8(AMAX, fallback_precision=Precision.FP16))
    kinds = _types(low.graph)
    assert all(kinds[t] == "FLOAT16" for t in ("c1", "r1", "c2", "s", "r2", "p", "f"))
    assert kinds["x"] == kinds["out"] == "FLOAT"
    # Only the QuantizeLinear of the FP32 input has an FP32 scale.
    pairs = [n for n in low.graph.nodes if "uantizeLinear" in n.op_type and n.inputs[0] != "x"]
    scales = [n.inputs[1] for n in pairs]
    assert {kinds[t] for t in scales} == {"FLOAT16"}
    found = kit.run(low.graph, {"x": images}, ["r1"])
    int8 = kit.run(kit.lowered(residual_net(), kit.int8(AMAX)).graph, {"x": images})["out"]
    step = np.abs(int8).max() / 127
    np.testing.assert_allclose(found["out"], int8, atol=3 * step)


def test_fp16_scales_are_emulated_exactly(kit: SimpleNamespace) -> None:
    w = np.random.default_rng(0).normal(size=(4, 3)).astype(F32)
    node = kit.node("MatMul", ["x", "w"], ["y"], "m")
    proto = kit.make([node], {"x": (8, 4)}, ["y"], {"w": w}, opset=19)
    low = kit.lowered(proto, kit.int8({"x": 2.0}, fallback_precision=Precision.FP16))
    x = np.random.default_rng(1).normal(size=(8, 4)).astype(F32)
    found = kit.run(low.graph, {"x": x}, ["x_DequantizeLinear_Output"])

    def up(scale: Any) -> Any:
        half = np.asarray(scale, F32).astype(F16)
        return np.where(half.astype(F32) < scale, np.nextafter(half, F16(9)), half).astype(F32)

    def pair(values: Any, scale: Any) -> Any:
        codes = np.clip(np.rint(values / scale), -128, 127)
        return (codes * scale).astype(F16).astype(F32)

    fx = pair(x, up(2.0 / 127))
    np.testing.assert_array_equal(found["x_DequantizeLinear_Output"].astype(F32), fx)
    fw = pair(w, up(np.abs(w).max(0) / 127))
    np.testing.assert_allclose(found["y"], (fx @ fw).astype(F16), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("amax", [1e-6, 1e5], ids=["tiny", "large"])
def test_scales_that_fp16_cannot_hold_stay_fp32(kit: SimpleNamespace, amax: float) -> None:
    """Both where the layer before is FP16, and where a graph input is read."""
    w = np.eye(3, dtype=F32)
    nodes = [
        kit.node("Neg", ["x"], ["n"], "neg"),
        kit.node("MatMul", ["n", "w"], ["y"], "m"),
        kit.node("MatMul", ["x", "w"], ["z"], "k"),
        kit.node("Relu", ["y"], ["yr"], "relu"),
    ]
    proto = kit.make(nodes, {"x": (1, 3)}, ["yr", "z"], {"w": w}, opset=19)
    low = kit.lowered(proto, kit.int8({"n": amax, "x": amax}, fallback_precision=Precision.FP16))
    kinds = _types(low.graph)
    assert (kinds["n_scale"], kinds["x_scale"]) == ("FLOAT", "FLOAT")
    assert kinds["n"] == "FLOAT16"
    x = np.array([[-0.4, 0.3, -1]], F32) * np.float32(min(amax, 6e4))
    found = kit.run(low.graph, {"x": x})
    half = -x.astype(F16).astype(F32)
    np.testing.assert_allclose(found["yr"], np.maximum(kit.fake(half, amax), 0), rtol=2e-2)
    np.testing.assert_allclose(found["z"], kit.fake(x, amax), rtol=2e-3)


def test_one_tiny_weight_scale_sends_its_layer_to_fp32(kit: SimpleNamespace) -> None:
    w = np.eye(3, dtype=F32)
    tiny = w * np.array([1, 1e-7, 1], F32)
    nodes = [
        kit.node("Neg", ["x"], ["n"], "neg"),
        kit.node("MatMul", ["n", "w"], ["y"], "m"),
        kit.node("MatMul", ["n", "t"], ["z"], "k"),
    ]
    proto = kit.make(nodes, {"x": (1, 3)}, ["y", "z"], {"w": w, "t": tiny}, opset=19)
    low = kit.lowered(proto, kit.int8({"n": 1.0}, fallback_precision=Precision.FP16))
    kinds = _types(low.graph)
    assert (kinds["t_scale"], kinds["w_scale_fp16"]) == ("FLOAT", "FLOAT16")
    # A Cast between pair and product would keep TensorRT from an INT8 kernel.
    reads = [low.graph.producers[t].op_type for t in low.graph.by_name["k"].inputs]
    assert reads == ["DequantizeLinear"] * 2
    x = np.array([[-0.4, 0.3, -1]], F32)
    found = kit.run(low.graph, {"x": x})
    np.testing.assert_allclose(found["y"], -x, atol=1 / 127)
    np.testing.assert_allclose(found["z"], -x * np.diag(tiny), rtol=2e-2)


def test_a_weight_shared_with_a_layer_in_fp32_keeps_its_channels(kit: SimpleNamespace) -> None:
    w = np.array([[1, -0.5, 0.25], [0.02, 0.01, 0.03]], F32)
    nodes = [
        kit.node("Gemm", ["x", "w"], ["y"], "m", transB=1),
        kit.node("Gemm", ["v", "w"], ["z"], "k", transB=1),
    ]
    proto = kit.make(nodes, {"x": (1, 3), "v": (1, 3)}, ["y", "z"], {"w": w}, opset=19)
    low = kit.lowered(proto, kit.int8({"x": 1.0, "v": 1e9}, fallback_precision=Precision.FP16))
    reads = {n: low.graph.producers[low.graph.by_name[n].inputs[1]].op_type for n in "mk"}
    assert reads == dict.fromkeys("mk", "DequantizeLinear")
    x = np.array([[-0.4, 0.3, -1]], F32)
    found = kit.run(low.graph, {"x": x, "v": x * np.float32(1e9)})
    np.testing.assert_allclose(found["z"] / 1e9, found["y"], atol=2e-2)


def test_int8_with_pins_to_fp16_while_the_rest_is_fp32(
    kit: SimpleNamespace, residual_net: Any, images: Any
) -> None:
    """Works at any opset: Q/DQ stay FP32."""
    low = kit.lowered(residual_net(13), kit.int8(AMAX, {"conv2": "fp16"}))
    kinds = _types(low.graph)
    assert (kinds["c2"], kinds["s"], kinds["r2"]) == ("FLOAT16",) * 3
    assert (kinds["c1"], kinds["p"], kinds["f_scale"]) == ("FLOAT",) * 3
    found = kit.run(low.graph, {"x": images}, ["r1", "c2", "r2", "f"])
    w3, b3 = (low.graph.constant(n) for n in ("w3_quantized", "b3"))
    scale = low.graph.constant("w3_scale")
    expected = kit.fake(found["f"], 4.0) @ (w3.astype(F32) * scale[:, None]).T + b3
    np.testing.assert_allclose(found["out"], expected, rtol=1e-5)
    reference = kit.run(residual_net(13), {"x": images}, ["r1", "c2"])
    error = np.abs(found["c2"].astype(F32) - reference["c2"]).max()
    assert 0 < error < 0.2 * np.abs(reference["c2"]).max()


def test_fp16_with_pins_to_int8(kit: SimpleNamespace, residual_net: Any, images: Any) -> None:
    for rest, opset in ((Precision.FP32, 17), (Precision.FP16, 19)):
        plan = kit.int8(AMAX, {"conv2": "int8"}, precision=Precision.FP16, fallback_precision=rest)
        assert required_opset(plan) <= opset
        low = kit.lowered(residual_net(opset), plan)
        assert kit.ops(low.graph).count("QuantizeLinear") == 1
        kinds = _types(low.graph)
        assert kinds["r1"] == "FLOAT16"
        assert kinds["c2"] == ("FLOAT" if rest is Precision.FP32 else "FLOAT16")
        reference = kit.run(residual_net(opset), {"x": images})["out"]
        found = kit.run(low.graph, {"x": images})["out"]
        np.testing.assert_allclose(found, reference, atol=0.2 * np.abs(reference).max())
