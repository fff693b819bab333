"""Models that other tools have quantized: what they absorbed, integer operators, and nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

DATA = Path(__file__).parents[2] / "calib_data"
CNN, HOLDOUT = str(DATA / "digits_cnn.onnx"), str(DATA / "digits_holdout.npz")


class _Reader(CalibrationDataReader):
    def __init__(self) -> None:
        images = np.load(DATA / "digits_calib.npz")["input"][:16]
        self._feeds = iter([{"input": images[i : i + 1]} for i in range(len(images))])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("quantized")
    ways: dict[str, dict[str, Any]] = {
        "qdq": {},
        "per channel": {"per_channel": True},
        "symmetric": {
            "activation_type": QuantType.QInt8,
            "extra_options": {"ActivationSymmetric": True},
        },
        "unsigned": {"activation_type": QuantType.QUInt8},
        "qoperator": {"quant_format": QuantFormat.QOperator},
    }
    source = str(shutil.copy(CNN, folder))  # ONNX Runtime writes beside the model it reads
    files = {name: str(folder / f"{name}.onnx") for name in (*ways, "dynamic")}
    for name, settings in ways.items():
        quantize_static(source, files[name], _Reader(), **settings)
    quantize_dynamic(source, files["dynamic"])
    return files


def _compared(desk: Any, model: str, *more: str) -> Any:
    run = ("compare", model, "--inputs", HOLDOUT, "--samples", "48", "--metric", "top1")
    done = desk.run(*run, *more, "--effect", "none", "--json", "-", "--no-progress")
    assert done.code == 0, done.err
    return done.json


def _accuracy(model: str, literal: bool) -> float:
    """Straight from ONNX Runtime."""
    options = ort.SessionOptions()
    if literal:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    data = np.load(HOLDOUT)
    (found,) = session.run(None, {"input": data["input"][:48]})
    return float(np.mean(found.argmax(1) == data["labels"][:48]))


def test_absorbed_relu6_is_compared_after_clipping(desk: Any, quantized: dict[str, str]) -> None:
    found = _compared(desk, quantized["qdq"], "--reference", CNN)
    assert found["metric"]["reference"] == _accuracy(CNN, False)
    assert found["metric"]["candidate"] == _accuracy(quantized["qdq"], True)
    assert any("13 Relu6" in note for note in found["notes"]) and not found["skipped"]
    layers = {x["name"]: x for x in found["layers"]}
    # Without the activation they were at -2 to 3 dB.
    pointwise = [x["local_sqnr_db"] for n, x in layers.items() if "pointwise" in n]
    assert len(pointwise) == 6 and min(pointwise) > 30


def test_its_tensors_are_those_of_a_straightforward_run(
    desk: Any, quantized: dict[str, str]
) -> None:
    """The pre-activation, the activation and the outputs against float64 arithmetic on what ONNX
    Runtime gives for both files."""
    found = _compared(desk, quantized["qdq"], "--reference", CNN)
    errors = {x["name"]: x["sqnr_db"] for x in found["tensors"]}
    images = np.load(HOLDOUT)["input"][:48]
    plain, other = onnx.load(CNN), onnx.load(quantized["qdq"])
    clips = {n.output[0]: n.input[0] for n in plain.graph.node if n.op_type == "Clip"}
    first = list(clips)[:5]
    expected = _run(plain, images, [*first, *(clips[t] for t in first)])
    got = _run(other, images, first)
    for tensor in first:
        pairs = {clips[tensor]: got[tensor], tensor: np.clip(got[tensor], 0, 6)}
        for name, values in pairs.items():
            reference = expected[name].astype(np.float64)
            noise = np.square(reference - values.astype(np.float64)).sum()
            sqnr = 10 * np.log10(np.square(reference).sum() / noise)
            assert abs(errors[name] - sqnr) < 0.01


def _run(proto: onnx.ModelProto, images: Any, tensors: list[str]) -> dict[str, Any]:
    marked = onnx.ModelProto()
    marked.CopyFrom(proto)
    kind = onnx.TensorProto.FLOAT
    marked.graph.output.extend(helper.make_tensor_value_info(t, kind, None) for t in tensors)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(
        marked.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(tensors, session.run(tensors, {"input": images}), strict=True))


@pytest.mark.parametrize("way", ["qdq", "per channel", "unsigned", "qoperator"])
def test_without_a_reference_the_activations_are_put_back(
    desk: Any, quantized: dict[str, str], way: str
) -> None:
    found = _compared(desk, quantized[way])
    assert any("13 Relu6" in note for note in found["notes"])
    rounded = _accuracy(quantized[way], True)
    assert abs(found["metric"]["candidate"] - rounded) <= 1 / 48
    # The network with its weights rounded: nearly as good as with activations rounded too.
    assert abs(found["metric"]["reference"] - rounded) <= 2 / 48
    assert min(x["local_sqnr_db"] for x in found["layers"] if x["local_sqnr_db"]) > 15


def test_dynamic_quantization_is_no_failed_plan_on_onnx_runtime(
    desk: Any, quantized: dict[str, str]
) -> None:
    """Its integer operators run in INT8 there; what was built are their equivalents."""
    how = "--backend", "onnxruntime"
    found = _compared(desk, quantized["dynamic"], "--reference", CNN, *how)
    audit = found["engine"]["audit"]
    assert audit["passed"] and not audit["mismatches"] and audit["unknown"]
    assert any("errors are those of the file, the latency is not" in n for n in found["notes"])
    data = "--inputs", HOLDOUT, "--samples", "16", "--effect", "none", "--json", "-"
    static = desk.run("compare", quantized["qdq"], "--reference", CNN, *data, *how)
    assert "quantizes dynamically" not in static.out and static.json["engine"]["audit"]["layers"]


def test_dynamic_quantization_is_read(desk: Any, quantized: dict[str, str]) -> None:
    found = _compared(desk, quantized["dynamic"], "--reference", CNN)
    assert any("13 ConvInteger" in note for note in found["notes"])
    assert {x["precision"] for x in found["layers"] if x["op_type"] in ("Conv", "Gemm")} == {"int8"}
    assert not found["skipped"]


def test_too_few_negative_values_ask_for_the_reference(desk: Any, make: Any) -> None:
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "w"], ["g"], "fc"),
        node("QuantizeLinear", ["g", "s", "z"], ["q"], "quantize"),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], "dequantize"),
    ]
    weights = {
        "w": np.eye(4, dtype=np.float32),
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.uint8),
    }
    desk.save(make(nodes, {"x": ("N", 4)}, {"y": ("N", 4)}, weights), "rare.onnx")
    values = rng.uniform(0.2, 5, (100, 4)).astype(np.float32)
    values[0, 0] = -3  # one of 64 in the first 16 samples would be sure; one of 400 is not
    desk.data("rare.npz", x=values)
    run = ("compare", "rare.onnx", "--inputs", "rare.npz", "--batch-size", "100")
    desk.refused(*run, says=["'g'", "QD-MODEL-ABSORBED-UNKNOWN", "--reference"])


def test_a_gate_never_passes_because_nothing_was_quantized(desk: Any, make: Any) -> None:
    node = helper.make_node
    nodes = [
        node("Einsum", ["x", "x"], ["e"], "einsum", equation="ij,kj->ik"),
        node("Softmax", ["e"], ["y"], "softmax"),
    ]
    desk.save(make(nodes, {"x": (3, 4)}, {"y": (3, 3)}), "none.onnx")
    desk.data("none.npz", x=np.random.default_rng(0).normal(size=(4, 3, 4)).astype(np.float32))
    run = ("compare", "none.onnx", "--inputs", "none.npz", "--fail-on", "output.cosine>=0.9")
    desk.refused(*run, says=["Einsum, Softmax", "QD-USAGE-NOTHING-TO-QUANTIZE"])
    desk.refused("sweep", *run[1:4], says=["QD-USAGE-NOTHING-TO-QUANTIZE"])
    target = ("--target", "output.cosine>=0.9")
    desk.refused("bisect", *run[1:4], *target, says=["QD-USAGE-NOTHING-TO-PIN"])
    done = desk.run(*run, "--allow-unquantized", "--json", "-")
    assert done.code == 0 and "nothing runs in INT8" in json.loads(done.out)["notes"][0]
    assert desk.run(*run, "--precision", "fp16").code == 0  # FP16 takes them
    assert desk.run(*run, "--precision", "fp32").code == 0  # and FP32 was asked for


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_no_other_precision_is_named_where_none_runs(desk: Any, precision: str) -> None:
    """Trees and other operators of ONNX-ML: advice for one precision led to the other."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")
    ends = ([value(name, TensorProto.FLOAT, ["N", 4])] for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "ml", *ends)
    desk.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), "ml.onnx")
    desk.data("four.npz", x=np.ones((4, 4), np.float32))
    command = ("compare", "ml.onnx", "--inputs", "four.npz", "--precision", precision)
    done = desk.run(*command)
    assert "QD-USAGE-NOTHING-TO-QUANTIZE" in done.err and "--precision" not in done.err
    assert desk.run(*command, "--allow-unquantized").code == 0


def test_the_qoperator_format_says_what_the_qdq_format_says(
    desk: Any, quantized: dict[str, str]
) -> None:
    """The same scales in both formats: every tensor and layer has nearly the same error."""
    both = [_compared(desk, quantized[way], "--reference", CNN) for way in ("qdq", "qoperator")]
    for found in both:
        assert not found["skipped"] and len(found["tensors"]) == 32
        matches = found["correspondence"]["matches"]
        assert len(matches) == 32 and all(m["proven"] and not m["reason"] for m in matches)
        assert sum(m["transformation"] == "after Relu6" for m in matches) == 13
        assert not found["correspondence"]["unmatched"]
    first, second = ({x["name"]: x for x in f["layers"]} for f in both)
    assert first.keys() == second.keys()
    for name, layer in first.items():
        if layer["local_sqnr_db"] is not None:
            assert abs(layer["local_sqnr_db"] - second[name]["local_sqnr_db"]) < 1
    how = [{m["how"] for m in f["correspondence"]["matches"]} for f in both]
    assert how == [{"name", "structure"}, {"name", "structure"}]


def test_what_does_not_correspond_is_shown(desk: Any, quantized: dict[str, str]) -> None:
    """The FP32 model has another activation than the quantizer's codes allow."""
    plain = onnx.load(CNN)
    leaky = next(n for n in plain.graph.node if n.op_type == "Clip")
    del leaky.input[1:]
    leaky.op_type = "LeakyRelu"
    desk.save(plain, "leaky.onnx")
    found = _compared(desk, quantized["qdq"], "--reference", "leaky.onnx")
    (wrong,) = found["correspondence"]["unmatched"]
    assert wrong["tensor"] == leaky.output[0]
    assert leaky.output[0] not in {t["name"] for t in found["tensors"]}
    assert leaky.output[0] in {s["tensor"] for s in found["skipped"]}
    assert leaky.output[0] not in {x["tensor"] for x in found["layers"]}
    done = desk.run(
        "compare", quantized["qdq"], "--inputs", HOLDOUT, "--samples", "8", "--reference",
        "leaky.onnx", "--effect", "none",
    )  # fmt: skip
    assert "No counterpart" in done.out and "matched" in done.out


@pytest.mark.parametrize("way", ["qdq", "qoperator", "dynamic"])
def test_a_reference_is_not_quantized_itself(
    desk: Any, quantized: dict[str, str], way: str
) -> None:
    run = ("compare", quantized["per channel"], "--inputs", HOLDOUT, "--samples", "4")
    says = ["QD-USAGE-REFERENCE", "--reference", quantized[way]]
    desk.refused(*run, "--reference", quantized[way], says=says)


def test_a_reference_may_have_coded_weights_and_outputs(
    desk: Any, quantized: dict[str, str]
) -> None:
    """It computes in floating point."""
    model = onnx.load(CNN)
    graph = model.graph
    weight = next(t for t in graph.initializer if len(t.dims) == 4)
    values = onnx.numpy_helper.to_array(weight)
    step = np.float32(np.abs(values).max() / 127)
    codes = np.rint(values / step).astype(np.int8)
    constants = {"codes": codes, "step": step, "zero": np.int8(0)}
    graph.initializer.remove(weight)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()
    )
    coded = helper.make_node("DequantizeLinear", [*constants], [weight.name])
    graph.node.insert(0, coded)
    wires = [graph.output[0].name, "step", "zero"]
    graph.node.append(helper.make_node("QuantizeLinear", wires, ["rounded"]))
    graph.output.append(helper.make_tensor_value_info("rounded", onnx.TensorProto.INT8, None))
    desk.save(model, "reference.onnx")
    run = ("--inputs", HOLDOUT, "--samples", "4", "--effect", "none", "--no-progress")
    run += ("--json", "-")
    done = desk.run("compare", quantized["symmetric"], "--reference", "reference.onnx", *run)
    plain = desk.run("compare", quantized["symmetric"], "--reference", CNN, *run)
    assert done.code == plain.code == 0, done.err
    figures = [found.json["outputs"][0]["sqnr_db"] for found in (done, plain)]
    assert figures[0] == pytest.approx(figures[1], abs=1)
    itself = ("compare", "reference.onnx", "--reference", "reference.onnx", *run)
    desk.refused(*itself, says=["QD-USAGE-REFERENCE"])


def test_what_tensorrt_does_not_take(desk: Any, quantized: dict[str, str]) -> None:
    pytest.importorskip("tensorrt_rtx")
    run = ("--inputs", HOLDOUT, "--samples", "2", "--backend", "tensorrt-rtx", "--effect", "none")
    for way in ("qdq", "dynamic"):
        says = ["QD-USAGE-ASYMMETRIC", "'input'"]
        desk.refused("compare", quantized[way], "--reference", CNN, *run, says=says)
    # Symmetric: built, with its INT32 biases as FP32 constants.
    found = _built(desk, quantized["symmetric"], *run)
    assert any("14 biases" in note for note in found["notes"])
    assert found["engine"]["audit"]["passed"] and not found["engine"]["audit"]["mismatches"]


def _built(desk: Any, model: str, *run: str) -> Any:
    done = desk.run("compare", model, "--reference", CNN, *run, "--json", "-", "--no-progress")
    assert done.code == 0, done.err
    return done.json


def test_inspect_reads_integer_operators_and_counts_what_is_not_symmetric(
    desk: Any, quantized: dict[str, str]
) -> None:
    both = [desk.run("inspect", quantized[way], "--json", "-").json for way in ("qdq", "qoperator")]
    for found in both:
        products = [x for x in found["layers"] if x["type"] in ("Conv", "Gemm")]
        assert len(products) == 14
        assert any("20 of 34" in note for note in found["notes"])
    plain = desk.run("inspect", quantized["symmetric"], "--json", "-").json
    assert not any("zero point" in note for note in plain["notes"])
