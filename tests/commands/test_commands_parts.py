"""What the layers' errors consist of, against float64 arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from producers import TOOLS, parts, quantized_by_onnx_runtime

import qdebug
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.lower import lower
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Precision

ROOT = Path(__file__).parents[2]
MADE = ROOT / "tests" / "producers"
CNN = ROOT / "calib_data" / "digits_cnn.onnx"
IMAGES = np.load(ROOT / "calib_data" / "digits_holdout.npz")["input"][:8]
CALIBRATION = np.load(ROOT / "calib_data" / "digits_calib.npz")["input"][:32]
INT8_LAYERS = {**dict.fromkeys(TOOLS, 5), "modelopt": 2, "torch_pt2e": 4}
NAMES = ("total", "inherited", "weights", "clipping", "rounding", "interaction", "unexplained")


def _agree(found: dict[str, Any], expected: dict[str, dict[str, float]]) -> int:
    """Check every layer that has parts; how many there are that are not in FP32."""
    own = 0
    for layer in found["layers"]:
        powers, truth = layer["error_parts"], expected.get(layer["name"])
        if powers is None:
            continue
        assert truth is not None
        near = {"rel": 0.01, "abs": 1e-3 * truth["total"] + 1e-12}
        assert powers["total"] == pytest.approx(truth["total"], **near)
        if layer["precision"] == "fp32":
            assert powers["inherited"] == powers["total"]
            assert powers["total"] == pytest.approx(truth["inherited"], **near)
            assert {powers[n] for n in NAMES[2:]} == {None}
            continue
        own += 1
        for name in NAMES[1:]:
            if powers[name] is not None:
                assert powers[name] == pytest.approx(truth[name], **near), (layer["name"], name)
            else:
                assert name == "clipping" and truth[name] < near["abs"]
        known = [powers[n] for n in NAMES[1:] if powers[n] is not None]
        assert sum(known) == pytest.approx(powers["total"], rel=1e-9)
    return own


def _lowered(model: Any, plan: PrecisionPlan) -> Any:
    prepared = prepare_model(model)
    return lower(bind_plan(plan, prepared, find_layers(prepared.graph))).graph.proto


def _ranges(model: Any, data: Any, method: str) -> Any:
    return dict(qdebug.calibrate(model, calib_data=data, method=method).chosen.ranges)


@pytest.mark.parametrize("method", ["minmax", "percentile:99"])
def test_convolutions_residuals_and_gemm(method: str) -> None:
    ranges = _ranges(str(CNN), {"input": CALIBRATION}, method)
    plan = PrecisionPlan(Precision.INT8, tensors=ranges)
    result = qdebug.compare(str(CNN), inputs={"input": IMAGES}, plan=plan, effect="none")
    found = result.to_dict()
    file = read_model(str(CNN))
    proto = _lowered(file, plan)
    assert _agree(found, parts(prepare_model(file).graph.proto, proto, IMAGES, found)) == 14


@pytest.mark.parametrize("tool", TOOLS)
def test_models_of_other_tools(tool: str) -> None:
    reference, quantized = MADE / "fp32.onnx", MADE / f"{tool}.onnx"
    result = qdebug.compare(
        str(quantized), inputs={"input": IMAGES}, reference=str(reference), effect="none"
    )
    found = result.to_dict()
    expected = parts(onnx.load(reference), onnx.load(quantized), IMAGES, found)
    assert _agree(found, expected) == INT8_LAYERS[tool]


@pytest.mark.parametrize("way", ["default", "unsigned", "per channel"])
def test_models_of_onnx_runtime(tmp_path: Path, way: str) -> None:
    quantized = quantized_by_onnx_runtime(way, CNN, tmp_path)
    result = qdebug.compare(
        str(quantized), inputs={"input": IMAGES}, reference=str(CNN), effect="none"
    )
    found = result.to_dict()
    expected = parts(onnx.load(CNN), onnx.load(quantized), IMAGES, found)
    assert _agree(found, expected) == 19


def test_dynamic_ranges_clip_nothing(tmp_path: Path) -> None:
    quantized = quantized_by_onnx_runtime("dynamic", CNN, tmp_path)
    result = qdebug.compare(
        str(quantized), inputs={"input": IMAGES}, reference=str(CNN), effect="none"
    )
    found = [x.error_parts for x in result.layers if x.precision is Precision.INT8]
    assert len(found) == 14
    for shares in found:
        assert shares.clipping is None and shares.unexplained == 0 < shares.rounding


def _network(nodes: Any, shape: Any, constants: Any, outputs: Any = ("y",)) -> Any:
    """A model that reads `input`."""
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input", kind, shape)],
        [helper.make_tensor_value_info(t, kind, None) for t in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def _attention(rng: Any) -> Any:
    """Queries times keys times values."""
    weights = {n: rng.normal(size=(16, 16)).astype(np.float32) / 4 for n in ("wq", "wk", "wv")}
    nodes = [
        *(helper.make_node("MatMul", ["input", f"w{x}"], [x], f"make_{x}") for x in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], "score"),
        helper.make_node("MatMul", ["scores", "v"], ["y"], "mix"),
    ]
    return _network(nodes, ("N", 6, 16), weights)


def test_products_of_two_activations(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    model, data = _attention(rng), rng.normal(size=(8, 6, 16)).astype(np.float32)
    plan = PrecisionPlan(Precision.INT8, tensors=_ranges(model, {"input": data}, "percentile:99.5"))
    result = qdebug.compare(model, inputs={"input": data}, plan=plan, effect="none")
    found = result.to_dict()
    onnx.save(model, tmp_path / "model.onnx")
    lowered = _lowered(read_model(str(tmp_path / "model.onnx")), plan)
    expected = parts(model, lowered, data, found)
    assert _agree(found, expected) == 5
    mix = next(x for x in result.layers if x.name == "mix").error_parts
    assert mix.weights < 1e-12 < mix.clipping


def test_fp16() -> None:
    rng = np.random.default_rng(6)
    x, first, second = (
        rng.normal(size=s).astype(np.float32) for s in ((32, 64), (64, 48), (48, 16))
    )
    nodes = [
        helper.make_node("MatMul", ["input", "first"], ["hidden"], "one"),
        helper.make_node("MatMul", ["hidden", "second"], ["y"], "two"),
    ]
    model = _network(nodes, ("N", 64), {"first": first, "second": second})
    result = qdebug.compare(
        model, inputs={"input": x}, precision="fp16", fp16_kernels="exact", effect="none"
    )

    def half(values: Any) -> Any:
        return values.astype(np.float16).astype(np.float64)

    def power(values: Any, signal: Any) -> float:
        return float(np.square(values).sum() / np.square(signal).sum())

    hidden = x.astype(np.float64) @ first
    planned = half(half(x) @ half(first))
    y = hidden @ second
    one, two = (next(p.error_parts for p in result.layers if p.name == n) for n in ("one", "two"))
    assert one.inherited == one.unexplained == two.unexplained == 0
    assert one.clipping is None
    assert one.weights == pytest.approx(power(x @ half(first) - hidden, hidden), rel=1e-3)
    assert one.rounding == pytest.approx(power(planned - x @ half(first), hidden), rel=1e-2)
    assert two.weights == pytest.approx(power(hidden @ half(second) - y, y), rel=1e-3)
    assert two.inherited == pytest.approx(power((planned - hidden) @ half(second), y), rel=1e-2)
    exact = planned @ half(second)
    assert two.rounding == pytest.approx(power(half(exact) - exact, y), rel=1e-2)


def test_what_is_not_finite_has_no_parts() -> None:
    x = np.full((4, 8), 300, np.float32)
    nodes = [
        helper.make_node("Mul", ["input", "input"], ["square"], "square"),
        helper.make_node("Relu", ["input"], ["y"], "keep"),
    ]
    model = _network(nodes, ("N", 8), {}, ("square", "y"))
    result = qdebug.compare(model, inputs={"input": x}, precision="fp16", effect="none")
    found = {layer.name: layer.error_parts for layer in result.layers}
    assert found["square"] is None
    assert found["keep"].total == 0


# --- planted, where the answer is known -----------------------------------------------------------


def _planned(tensors: Any, **how: Any) -> dict[str, Any]:
    plan = PrecisionPlan(Precision.INT8, tensors=tensors, **how)
    result = qdebug.compare(str(CNN), inputs={"input": IMAGES}, plan=plan, effect="none")
    return {layer.name: layer for layer in result.layers}


@pytest.mark.parametrize(("factor", "part"), [(1 / 8, "clipping"), (8, "rounding")])
def test_a_wrong_range(factor: float, part: str) -> None:
    ranges = _ranges(str(CNN), {"input": CALIBRATION}, "minmax")
    planted = "/blocks/blocks.2/pointwise/act/Clip_output_0"
    reads = find_layers(prepare_model(read_model(str(CNN))).graph)
    readers = [x.name for x in reads if planted in x.quantized_inputs]
    amax = float(ranges[planted].amax) * factor
    found = _planned({**ranges, planted: TensorRange(amax)})
    assert readers
    for name in readers:
        shares = found[name].error_parts
        assert max(NAMES[1:], key=lambda n: shares.share(n) or 0) == part
        assert shares.share(part) > 0.8


def test_one_scale_for_a_weight_of_unequal_channels() -> None:
    found = _planned(_ranges(str(CNN), {"input": CALIBRATION}, "minmax"), weights="per-tensor")
    depthwise = [x.error_parts for x in found.values() if "depthwise" in x.name]
    assert len(depthwise) == 6
    for shares in depthwise:
        assert shares.weights > 5 * (shares.rounding + shares.clipping)


def test_a_weight_with_one_wide_channel_and_what_reads_it() -> None:
    """The channel is scaled back behind the layer, so nothing changes in FP32."""
    rng = np.random.default_rng(7)
    first, second = (rng.normal(size=(16, 16)).astype(np.float32) / 4 for _ in range(2))
    back = np.ones(16, np.float32)
    first[:, 3] *= 64
    back[3] /= 64
    nodes = [
        helper.make_node("MatMul", ["input", "first"], ["wide"], "wide"),
        helper.make_node("Mul", ["wide", "back"], ["even"], "scale"),
        helper.make_node("MatMul", ["even", "second"], ["y"], "next"),
    ]
    constants = {"first": first, "back": back, "second": second}
    model = _network(nodes, ("N", 16), constants)
    data = rng.normal(size=(64, 16)).astype(np.float32)
    result = qdebug.compare(
        model, inputs={"input": data}, weights="per-tensor", effect="none", cache=False
    )
    found = {layer.name: layer.error_parts for layer in result.layers}
    assert found["next"].share("inherited") > 0.8
    assert found["scale"].share("inherited") == 1.0
    assert found["next"].total > 10 * found["wide"].weights
