"""The codes and biases that a quantized model has of its own, read next to its FP32 model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from repair_networks import NETWORKS, Builder

from qdebug.backends.simulation import SimulationBackend
from qdebug.decide.remedies.quantized import Quantized, quantized
from qdebug.formats.registry import INT8
from qdebug.network.layers import find_layers
from qdebug.network.load import ModelFile, read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.plan.given import OwnConstants, own_constants
from qdebug.plan.pair import quantized_pair
from qdebug.plan.plan import Correction, Granularity, PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Precision

F32 = np.float32


def start_of(model: Model, weights: str = "per-channel") -> Quantized:
    """Every layer in INT8, with ranges that fit random inputs about."""
    plan = PrecisionPlan(Precision.INT8, weights=Granularity(weights))
    start = quantized(model, bind_plan(plan, model, find_layers(model.graph)))
    return start.with_ranges({t: TensorRange(6.0) for t in start.bound.missing_ranges()})


def adapted(start: Quantized, seed: int = 0) -> Quantized:
    """With some codes a step off, as adapted rounding chooses them, and other biases."""
    rng = np.random.default_rng(seed)
    found = {}
    ranges = {}
    for layer in start.weighted():
        how = start.quantized(layer.name).weight
        own = start.graph.constant(layer.weight or "")
        assert how is not None and own is not None
        shape = [1] * own.ndim
        if how.axis is not None:
            shape[how.axis] = -1
        step = np.broadcast_to(how.scale.reshape(shape), own.shape)
        codes = np.clip(np.rint(own / step) + rng.integers(-1, 2, own.shape), -127, 127)
        axis = start.axis(layer)
        channels = 1 if axis is None else own.shape[axis]
        found[layer.name] = Correction(
            (codes * step).astype(F32), rng.normal(size=channels).astype(F32)
        )
        amax = how.scale.astype(np.float64) * 127
        ranges[layer.weight or ""] = TensorRange(tuple(amax.tolist()) if amax.ndim else float(amax))
    return start.with_corrections(found).with_ranges(ranges)


def model_of(proto: onnx.ModelProto) -> Model:
    return prepare_model(ModelFile(Path("given.onnx"), proto, "sha", "digest"))


def read(proto: onnx.ModelProto, reference: Model) -> OwnConstants:
    return own_constants(quantized_pair(model_of(proto), reference.graph, "fp32.onnx"))


def run(proto: onnx.ModelProto, model: Model) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    feeds = {
        spec.name: rng.normal(size=[4 if not isinstance(d, int) else d for d in spec.shape]).astype(
            F32
        )
        for spec in model.graph.inputs
    }
    return dict(SimulationBackend(1).open(proto, ()).run(feeds))


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_was_written_is_read_back(network: str, weights: str) -> None:
    model = NETWORKS[network]()
    start = start_of(model, weights)
    given = adapted(start).proto()
    found = read(given, model)
    again = start.with_ranges(found.ranges).with_corrections(found.corrections)
    expected, seen, plain = run(given, model), run(again.proto(), model), run(start.proto(), model)
    for tensor, values in expected.items():
        size = np.abs(values).max()
        np.testing.assert_allclose(seen[tensor], values, rtol=0, atol=2e-6 * size)
    assert any(np.abs(plain[t] - v).max() > 1e-3 * np.abs(v).max() for t, v in expected.items())


def test_the_weights_of_fp32_are_never_far() -> None:
    model = NETWORKS["residual"]()
    start = start_of(model)
    found = read(adapted(start).proto(), model)
    given = start.with_ranges(found.ranges).with_corrections(found.corrections)
    own = given.with_own_weights()
    assert not own.bound.corrections
    assert own.bound.plan.tensors == start.bound.plan.tensors


def test_nearest_codes_are_no_correction() -> None:
    model = NETWORKS["residual"]()
    start = start_of(model)
    found = read(start.proto(), model)
    assert not found.corrections
    assert set(found.ranges) == {layer.weight for layer in start.weighted()}


@pytest.mark.parametrize(
    ("producer", "weights", "biases"),
    [("modelopt", 0, 0), ("aimet", 0, 0), ("nncf", 0, 2), ("torch_pt2e", 3, 0)],
)
def test_what_other_tools_changed_is_found(producer: str, weights: int, biases: int) -> None:
    folder = Path(__file__).parents[1] / "producers"
    reference = prepare_model(read_model(folder / "fp32.onnx"))
    given = prepare_model(read_model(folder / f"{producer}.onnx"))
    found = own_constants(quantized_pair(given, reference.graph, "fp32.onnx"))
    known = list(found.corrections.values())
    assert sum(one.weight is not None for one in known) == weights
    assert sum(one.bias is not None for one in known) == biases
    assert found.ranges


def test_a_weight_that_two_layers_read_is_left_out() -> None:
    model = NETWORKS["shared-weight"]()
    found = read(adapted(start_of(model)).proto(), model)
    assert len(found.corrections) == len(found.ranges) == 1


def test_scales_of_a_quantizer_are_kept_where_they_are_others() -> None:
    model = NETWORKS["residual"]()
    start = start_of(model)
    (first, *_) = start.weighted()
    how = start.quantized(first.name).weight
    assert how is not None
    amax = tuple((0.6 * 127 * how.scale.astype(np.float64)).tolist())
    given = start.with_ranges({first.weight or "": TensorRange(amax)})
    found = read(given.proto(), model)
    assert not found.corrections
    np.testing.assert_allclose(found.ranges[first.weight or ""].amax, amax, rtol=1e-6)


def _given_conv(kit: SimpleNamespace, codes: Any, scale: Any, zero: Any, axis: int) -> Any:
    """A quantized convolution with a BatchNormalization behind it, as PyTorch exports it."""
    node = kit.node
    rng = np.random.default_rng(3)
    bn = {
        "gamma": rng.uniform(0.5, 2, 4).astype(F32),
        "beta": rng.normal(size=4).astype(F32),
        "mean": rng.normal(size=4).astype(F32),
        "var": rng.uniform(0.5, 2, 4).astype(F32),
    }
    constants = {
        **bn, "codes": codes, "scale": scale, "zero": zero,
        "s": np.array(0.05, F32), "z": np.array(0, np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "d"),
        node("DequantizeLinear", ["codes", "scale", "zero"], ["w"], "dw", axis=axis),
        node("Conv", ["xd", "w"], ["c"], "conv"),
        node(
            "BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["y"], "bn", epsilon=1e-3
        ),
    ]
    return kit.make(nodes, {"x": (1, 3, 6, 6)}, ["y"], constants), bn


def test_a_normalization_behind_a_quantized_weight_counts(kit: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, 4).astype(F32)
    given, bn = _given_conv(kit, codes, scale, np.zeros(4, np.int8), 0)
    weight = codes * scale.reshape(-1, 1, 1, 1)
    factor = bn["gamma"] / np.sqrt(bn["var"] + F32(1e-3))
    folded = weight * factor.reshape(-1, 1, 1, 1)
    bias = bn["beta"] - bn["mean"] * factor
    reference = kit.model_of(
        kit.make(
            [kit.node("Conv", ["x", "w", "b"], ["y"], "conv")],
            {"x": (1, 3, 6, 6)},
            ["y"],
            {"w": (folded + 0.3 * scale.reshape(-1, 1, 1, 1)).astype(F32), "b": bias - F32(0.5)},
        )
    )
    found = read(given, reference)
    np.testing.assert_allclose(found.ranges["w"].amax, 127 * scale * np.abs(factor), rtol=1e-6)
    correction = found.corrections["conv"]
    assert correction.bias is not None
    np.testing.assert_allclose(correction.bias, np.full(4, 0.5), atol=1e-5)
    start = start_of(reference).with_ranges(found.ranges).with_corrections(found.corrections)
    start = start.with_ranges({"x": TensorRange(0.05 * 127)})
    expected = run(given, reference)["y"]
    np.testing.assert_allclose(run(start.proto(), reference)["y"], expected, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize(("off", "count"), [(0.45, 0), (0.6, 1)])
def test_a_bias_rounded_to_int32_is_no_correction(
    kit: SimpleNamespace, channels: int, off: float, count: int
) -> None:
    codes = np.array([3, -40, 900, 0], np.int32)
    scale = np.full(channels, 0.01, F32).reshape(() if channels == 1 else -1)
    weight = np.random.default_rng(0).integers(-127, 128, (5, 4)).astype(np.int8)
    constants = {
        "codes": codes, "scale": scale, "weight": weight, "ws": np.array(0.02, F32),
        "s": np.array(0.5, F32), "z": np.array(0, np.int8),
    }  # fmt: skip
    nodes = [
        kit.node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        kit.node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "d"),
        kit.node("DequantizeLinear", ["weight", "ws", "z"], ["w"], "dw"),
        kit.node("DequantizeLinear", ["codes", "scale"], ["b"], "db", axis=0),
        kit.node("Gemm", ["xd", "w", "b"], ["y"], "product"),
    ]
    fp32 = {"w": weight * F32(0.02), "b": ((codes + off) * 0.01).astype(F32)}
    product = [kit.node("Gemm", ["x", "w", "b"], ["y"], "product")]
    reference = kit.model_of(kit.make(product, {"x": (1, 5)}, ["y"], fp32))
    found = read(kit.make(nodes, {"x": (1, 5)}, ["y"], constants), reference)
    assert len(found.corrections) == count


def test_codes_around_another_zero_point_get_a_range_that_holds_them(kit: SimpleNamespace) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (6, 5)).astype(np.uint8)
    zero, scale = np.array(40, np.uint8), np.array(0.01, F32)
    constants = {
        "codes": codes, "scale": scale, "zero": zero,
        "s": np.array(0.05, F32), "z": np.array(0, np.int8),
    }  # fmt: skip
    nodes = [
        kit.node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        kit.node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "d"),
        kit.node("DequantizeLinear", ["codes", "scale", "zero"], ["w"], "dw"),
        kit.node("MatMul", ["xd", "w"], ["y"], "product"),
    ]
    weight = ((codes.astype(F32) - 40) * scale).astype(F32)
    reference = kit.model_of(
        kit.make(
            [kit.node("MatMul", ["x", "w"], ["y"], "product")], {"x": (1, 6)}, ["y"], {"w": weight}
        )
    )
    found = read(kit.make(nodes, {"x": (1, 6)}, ["y"], constants), reference)
    assert found.ranges["w"].amax == pytest.approx(float(np.abs(weight).max()))


def test_a_matrix_that_the_quantizer_transposed_is_turned_back() -> None:
    b = Builder(2)
    model = b.model({"x": ("N", 6)}, b.gemm("x", 6, 6))
    start = adapted(start_of(model))
    proto = start.proto()
    (gemm,) = [n for n in proto.graph.node if n.op_type == "Gemm"]
    dequantize = next(n for n in proto.graph.node if n.output[0] == gemm.input[1])
    values = {t.name: t for t in proto.graph.initializer}
    codes = numpy_helper.to_array(values[dequantize.input[0]]).T.copy()
    values[dequantize.input[0]].CopyFrom(numpy_helper.from_array(codes, dequantize.input[0]))
    dequantize.attribute[0].i = 1
    del gemm.attribute[:]
    found = read(proto, model)
    (layer,) = start.weighted()
    expected = start.bound.corrections[layer.name].weight
    how = start.quantized(layer.name).weight
    assert how is not None and expected is not None
    seen = found.corrections[layer.name].weight
    assert seen is not None
    np.testing.assert_allclose(seen, INT8.quantize(expected, how.scale, how.axis), rtol=1e-6)
