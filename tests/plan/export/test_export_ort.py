"""Arguments for ONNX Runtime's quantizer, and the quantizer run with them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdebug.backends.onnxruntime import OnnxRuntimeBackend
from qdebug.errors import PlanError
from qdebug.network.graph import Graph
from qdebug.plan.lower import lower
from qdebug.plan.plan import Granularity, TensorRange

PINS = {"/stem/conv/Conv": "fp32", "/blocks/blocks.2/pointwise/conv/Conv": "fp32"}


@pytest.fixture
def quantized(write: Any, script: Any, tmp_path: Path) -> Any:
    """The model that the exported script makes."""

    def run(source: Any, *flags: object) -> onnx.ModelProto:
        write(source, "ort")
        done = script(tmp_path / "precision_ort.py", tmp_path / "out.onnx", *flags, cwd="/")
        assert done.returncode == 0, done.stderr
        return onnx.load(tmp_path / "out.onnx")

    return run


def reads(proto: onnx.ModelProto) -> dict[str, dict[str, Any]]:
    """Node name -> quantized tensor it reads -> scale."""
    graph = Graph(proto)
    found: dict[str, dict[str, Any]] = {}
    for node in graph.nodes:
        found[node.name] = {}
        for tensor in node.inputs:
            dequantize = graph.producers.get(tensor)
            if dequantize is None or dequantize.op_type != "DequantizeLinear":
                continue
            quantize = graph.producers.get(dequantize.inputs[0])
            origin = quantize.inputs[0] if quantize else dequantize.inputs[0]
            found[node.name][origin] = graph.constant(dequantize.inputs[1])
    return found


def test_pinned_nodes_are_float_and_the_others_have_the_plans_scales(
    cnn: Path, plan_for: Any, quantized: Any
) -> None:
    source = plan_for(cnn, PINS)
    found = reads(quantized(source))
    for layer in source.bound.layers:
        if not layer.quantizable:
            continue
        scales = found[layer.name]
        if layer.name in PINS:
            assert scales == {}
            continue
        data = layer.quantized_inputs[0]
        assert scales.pop(data) == np.float32(4 / 127)
        (weight,) = scales.values()
        channels = source.bound.layers.graph.constant(layer.weight).shape[0]
        assert weight.shape == (channels,)


@pytest.mark.parametrize("granularity", list(Granularity))
def test_it_computes_what_the_lowered_plan_computes(
    kit: SimpleNamespace,
    residual_net: Any,
    images: Any,
    plan_for: Any,
    quantized: Any,
    tmp_path: Path,
    granularity: Granularity,
) -> None:
    """The other branch of the Add is rounded, and what the classifier reads as well is not for the
    second output."""
    net = residual_net()
    net.graph.node.append(kit.node("Neg", ["f"], ["second"], "neg"))
    net.graph.output.append(onnx.helper.make_tensor_value_info("second", 1, None))
    onnx.save(net, tmp_path / "net.onnx")
    # Ranges of weights that the plan gives go before those of their values.
    amax: Any = (0.5, 1.0, 1.5, 2.0, 0.75) if granularity is Granularity.PER_CHANNEL else 0.75
    ranges = {"w3": TensorRange(amax)}
    source = plan_for(tmp_path / "net.onnx", {"conv1": "fp32"}, weights=granularity, tensors=ranges)
    expected = kit.run(lower(source.bound).graph, {"x": images})
    found = kit.run(quantized(source), {"x": images})
    for name in ("out", "second"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)


def test_what_an_activation_follows_runs_in_int8_and_is_as_planned(
    cnn: Path, plan_for: Any, quantized: Any, kit: SimpleNamespace
) -> None:
    """Seven of the 13 convolutions: the others end in an Add, or in what is not quantized."""
    source = plan_for(cnn)
    found = quantized(source)
    images = np.random.default_rng(0).normal(size=(2, 1, 8, 8)).astype(np.float32)
    expected = kit.run(lower(source.bound).graph, {"input": images})
    np.testing.assert_allclose(kit.run(found, {"input": images})["logits"], expected["logits"])
    info = OnnxRuntimeBackend().open(found, []).engine_info()
    assert [layer.layer_type for layer in info.layers].count("QLinearConv") == 7


def test_nodes_without_a_name_of_their_own(
    odd_net: Path, plan_for: Any, quantized: Any, tmp_path: Path
) -> None:
    source = plan_for(odd_net, {"Conv_c1": "fp32"})  # has no name; "dup" is a Relu and a Conv
    found = quantized(source)
    names = json.loads((tmp_path / "precision_ort.json").read_text("utf-8"))["node_names"]
    assert names == {"0": "Conv_c1", "1": "dup_1", "2": "dup_2"}
    scales = reads(found)
    assert scales["Conv_c1"] == {} and "r1" in scales["dup_2"] and "r2" in scales["x*y"]


def test_an_old_opset(
    kit: SimpleNamespace,
    residual_net: Any,
    images: Any,
    plan_for: Any,
    quantized: Any,
    tmp_path: Path,
) -> None:
    net = residual_net(opset=11)
    net.graph.node[0].name = ""
    onnx.save(net, tmp_path / "net.onnx")
    source = plan_for(tmp_path / "net.onnx", {"conv2": "fp32"})
    found = quantized(source)
    onnx.checker.check_model(found, full_check=True)
    expected = kit.run(lower(source.bound).graph, {"x": images})["out"]
    np.testing.assert_allclose(kit.run(found, {"x": images})["out"], expected, rtol=1e-5, atol=1e-6)


def test_weights_in_constant_nodes_are_weights(
    kit: SimpleNamespace, plan_for: Any, quantized: Any, tmp_path: Path
) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
    constant = kit.node("Constant", [], ["w"], value=numpy_helper.from_array(weight))
    nodes = [constant, kit.node("MatMul", ["x", "w"], ["y"], "mm")]
    onnx.save(kit.make(nodes, {"x": (2, 4)}, ["y"]), tmp_path / "net.onnx")
    scales = reads(quantized(plan_for(tmp_path / "net.onnx")))["mm"]
    np.testing.assert_allclose(scales["w_quantized"], weight.max(0) / 127, rtol=1e-6)


def test_outputs_too(cnn: Path, plan_for: Any, quantized: Any, tmp_path: Path) -> None:
    samples = np.load(cnn.parent / "digits_calib.npz")["input"][:4]
    np.savez(tmp_path / "calib.npz", input=samples)
    flags = ("--quantize-outputs", "--calib", tmp_path / "calib.npz")
    found = quantized(plan_for(cnn, PINS), *flags)
    ops = [n.op_type for n in found.graph.node]
    assert ops.count("QuantizeLinear") > 20
    assert reads(found)["/stem/act/Clip"] == {}


def test_what_it_cannot_express_is_said(
    kit: SimpleNamespace, residual_net: Any, plan_for: Any, write: Any, tmp_path: Path
) -> None:
    onnx.save(residual_net(), tmp_path / "net.onnx")
    rendered = write(plan_for(tmp_path / "net.onnx", {"conv1": "fp16"}), "ort")
    notes = json.loads(rendered.files[tmp_path / "precision_ort.json"])["notes"]
    assert notes == list(rendered.notes)
    assert any("FP16: 1 layer" in note and "'conv1'" in note for note in notes)
    plan = plan_for(tmp_path / "net.onnx", precision="fp16")
    with pytest.raises(PlanError, match="QD-PLAN-NOTHING-TO-QUANTIZE"):
        write(plan, "ort")


def test_16_bit_activations(
    kit: SimpleNamespace,
    residual_net: Any,
    images: Any,
    plan_for: Any,
    quantized: Any,
    tmp_path: Path,
) -> None:
    net = residual_net(21)
    onnx.save(net, tmp_path / "net.onnx")
    source = plan_for(tmp_path / "net.onnx", {"conv1": "fp32"}, precision="a16w8", opset=21)
    expected = kit.run(lower(source.bound).graph, {"x": images})["out"]
    proto = quantized(source)
    stored = {t.data_type for t in proto.graph.initializer}
    assert {onnx.TensorProto.INT16, onnx.TensorProto.INT8} <= stored
    found = kit.run(proto, {"x": images})["out"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_quantized_layers_have_one_precision(cnn: Path, plan_for: Any, write: Any) -> None:
    source = plan_for(cnn, {"/stem/conv/Conv": "a16w8"}, opset=21)
    with pytest.raises(PlanError, match="A16W8 and in INT8") as caught:
        write(source, "ort")
    assert caught.value.code == "QD-PLAN-EXPORT-FORMAT"
