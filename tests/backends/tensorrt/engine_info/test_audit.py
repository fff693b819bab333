"""Requested vs. built precision, on real builds and on layers written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.display.engine import doubt
from qdebug.engine_info.audit import AuditVerdict, audit
from qdebug.engine_info.files.build_log import read_build_log
from qdebug.engine_info.flow import left_high, product_edges
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, OnnxNode
from qdebug.engine_info.summary import gate_values, summarize
from qdebug.engine_info.tensors import EngineTensor
from qdebug.network.graph import Graph
from qdebug.network.layers import QUANTIZABLE_OPS, find_layers
from qdebug.plan.rewrite.qdq import QuantizedLayer, WeightQuantization, insert_qdq
from qdebug.types import Precision

Builds = Callable[[str, str], Any]
INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


@pytest.mark.parametrize("network", ["digits_cnn", "digits_encoder"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "mixed"])
def test_real_builds_run_as_planned(inspected: Builds, network: str, precision: str) -> None:
    build = inspected(network, precision)
    result = audit(build.bound.precisions, build.info)
    assert result.passed and not result.unknown
    assert [row.name for row in result.layers] == [layer.name for layer in build.bound.layers]
    products = [row for row in result.layers if row.op_type in QUANTIZABLE_OPS]
    assert {row.verdict for row in products} == {AuditVerdict.SAME}
    gone = {row.op_type for row in result.layers if row.verdict is AuditVerdict.GONE}
    assert gone <= {"Flatten", "Reshape", "Transpose", "Mul"}


def test_a_plan_that_another_engine_was_built_from_is_found_out(inspected: Builds) -> None:
    asked = inspected("digits_cnn", "int8").bound.precisions
    result = audit(asked, inspected("digits_cnn", "fp16").info)
    int8 = [name for name, precision in asked.items() if precision is INT8]
    assert {row.name for row in result.mismatched} >= set(int8)
    assert {row.built for row in result.mismatched} == {"fp16"}


def _upsampler() -> onnx.ModelProto:
    """conv - relu - ConvTranspose - conv, all to be INT8."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("ConvTranspose", ["b", "w2"], ["c"], "up", strides=[2, 2], group=4),
        helper.make_node("Conv", ["c", "w3"], ["y"], "last"),
    ]
    shapes = {"w1": (8, 4, 3, 3), "w2": (8, 2, 2, 2), "w3": (4, 8, 1, 1)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n)
            for n, s in shapes.items()
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto)


def test_an_int8_layer_that_tensorrt_cannot_quantize_is_found(
    build_log: Callable[[onnx.ModelProto], str],
) -> None:
    graph = Graph(_upsampler())
    layers = find_layers(graph)
    scale = np.float32(0.05)
    items = [
        QuantizedLayer(
            layer, dict.fromkeys(layer.quantized_inputs, scale), WeightQuantization(scale, None)
        )
        for layer in layers
    ]
    info = read_build_log(build_log(insert_qdq(graph, items)), "build.log")
    result = audit({layer.name: INT8 for layer in layers}, info)
    assert [(r.name, r.verdict, r.built) for r in result.layers] == [
        ("first", AuditVerdict.SAME, "int8"),
        ("up", AuditVerdict.MISMATCH, "fp32"),
        ("last", AuditVerdict.SAME, "int8"),
    ]
    summary = summarize(info)
    # Between two INT8 convolutions it costs two changes, and its Q/DQ pairs only cost.
    assert [layer.onnx_nodes for layer in summary.left_high] == [("up",)]
    assert len(summary.changes) == 2
    assert set(summary.unread) == {"b_DequantizeLinear", "w2_DequantizeLinear"}
    values = gate_values(summary, result)
    assert values["int8_share"] == pytest.approx(2 / 3)
    macs = 8 * 64 * 36, 8 * 64 * 8, 4 * 256 * 8
    assert values["int8_mac_share"] == pytest.approx(1 - macs[1] / sum(macs))
    assert (values["mismatch_count"], values["unread_qdq"], values["left_high"]) == (1, 2, 1)


def test_a_product_in_one_kernel_with_its_cast_is_no_mismatch(
    build_log: Callable[[onnx.ModelProto], str],
) -> None:
    rng = np.random.default_rng(0)
    half = int(TensorProto.FLOAT16)
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[1], keepdims=0),
        helper.make_node("Cast", ["m"], ["mh"], "m_to_fp16", to=half),
        helper.make_node("Gemm", ["mh", "w"], ["yh"], "fc"),
        helper.make_node("Cast", ["yh"], ["y"], "y_to_fp32", to=int(TensorProto.FLOAT)),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(rng.normal(size=(64, 10)).astype(np.float16), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = audit({"mean": FP32, "fc": FP16}, read_build_log(build_log(proto), "build.log"))
    assert result.passed and not result.unknown


def _info(*layers: EngineLayer, ops: str = "") -> EngineInfo:
    nodes = tuple(OnnxNode(*pair.split(":")) for pair in ops.split())
    return EngineInfo(layers, InfoSource.LAYER_INFO, nodes=nodes)


def _layer(name: str, kind: str, reads: str, writes: str, nodes: str = "", **rest: Any) -> Any:
    def tensors(text: str) -> tuple[EngineTensor, ...]:
        return tuple(EngineTensor(*part.split(":")) for part in text.split())

    constants = tensors(rest.pop("constants", ""))
    names = tuple((nodes or name).split())
    return EngineLayer(name, kind, tensors(reads), tensors(writes), constants, "", names, **rest)


CONV = _layer("conv", "CaskConvolution", "a:int8", "b:int8", "conv relu", constants="w:int8")
CASTING = "__myl_CastReshMulSum_myl0_46"


@pytest.mark.parametrize(
    ("layer", "op_type", "asked", "verdict"),
    [
        (CONV, "Conv", INT8, AuditVerdict.SAME),
        (CONV, "Conv", FP16, AuditVerdict.MISMATCH),
        (_layer("n", "gemm", "a:fp16", "b:fp16", constants="w:int8"), "Gemm", INT8,
         AuditVerdict.MISMATCH),
        (_layer("n", "gemm", "a:fp16", "b:fp16"), "MatMul", FP32, AuditVerdict.MISMATCH),
        (_layer("n", "kgen", "a:fp16", "b:fp16"), "Softmax", FP32, AuditVerdict.MISMATCH),
        (_layer("n", "kgen", "a:fp32", "b:fp16"), "Softmax", FP16, AuditVerdict.FUSED),
        (_layer(CASTING, "kgen", "a:fp32", "b:fp16", "n", constants="w:fp16"), "Gemm", FP16,
         AuditVerdict.FUSED),
        (_layer(CASTING, "kgen", "a:fp32", "b:fp16", "n"), "MatMul", FP16, AuditVerdict.FUSED),
        (_layer(CASTING, "kgen", "a:fp32", "b:fp16", "n", constants="w:fp32"), "Gemm", FP16,
         AuditVerdict.UNKNOWN),
        (_layer(CASTING, "kgen", "a:fp32", "b:fp32", "n"), "MatMul", INT8, AuditVerdict.UNKNOWN),
        (_layer("n", "CaskPooling", "a:int8", "b:int8"), "MaxPool", FP32, AuditVerdict.FUSED),
        (_layer("n", "CaskPooling", "a:int8", "b:int8"), "AveragePool", FP32,
         AuditVerdict.MISMATCH),
        (_layer("n", "kgen", "a:int64", "b:int64"), "Mul", FP32, AuditVerdict.UNKNOWN),
        (_layer("n", "kgen", "a", "b"), "Mul", FP32, AuditVerdict.UNKNOWN),
    ],
)  # fmt: skip
def test_verdicts(
    layer: EngineLayer, op_type: str, asked: Precision, verdict: AuditVerdict
) -> None:
    name = layer.onnx_nodes[0]
    (row,) = audit({name: asked}, _info(layer, ops=f"{name}:{op_type}")).layers
    assert row.verdict is verdict


STORING = _layer("__myl_ReplMulCast", "kgen", "", "c:fp16", "", constants="w:int4 s:fp16")


@pytest.mark.parametrize(
    ("stored", "asked", "verdict"),
    [
        (STORING, Precision.W4, AuditVerdict.SAME),
        (STORING, Precision.W8, AuditVerdict.MISMATCH),
        (replace(STORING, constants=(EngineTensor("w", "fp16"),)), Precision.W4,
         AuditVerdict.MISMATCH),
        (replace(STORING, outputs=(EngineTensor("d", "fp16"),)), Precision.W4,
         AuditVerdict.MISMATCH),
    ],
)  # fmt: skip
def test_weights_alone_are_judged_by_what_the_engine_stores(
    stored: EngineLayer, asked: Precision, verdict: AuditVerdict
) -> None:
    """A kernel of its own may dequantize them, for the product that reads what it writes."""
    product = _layer("n", "gemm", "a:fp16 c:fp16", "b:fp16")
    (row,) = audit({"n": asked}, _info(stored, product, ops="n:MatMul")).layers
    assert row.verdict is verdict and row.built == "fp16"
    assert ("stored" in row.note) and bool(row.advice) == (verdict is AuditVerdict.MISMATCH)


def test_an_activation_inside_an_int8_kernel_is_no_mismatch() -> None:
    result = audit({"conv": INT8, "relu": FP32}, _info(CONV, ops="conv:Conv relu:Relu"))
    assert [row.verdict for row in result.layers] == [AuditVerdict.SAME, AuditVerdict.FUSED]


def _unknown() -> EngineInfo:
    kernel = "__myl_CastCorrMulCastAdd_myl0_9"  # what is cast may be the data or the weights
    cast = _layer(kernel, "kgen", "b:fp16", "c:fp16", "second", constants="w:int8 s:fp16")
    return _info(CONV, cast, ops="conv:Conv second:Conv")


def test_what_a_kernel_does_not_tell_is_unknown_and_neither_fails_nor_passes_unseen() -> None:
    result = audit({"conv": INT8, "second": INT8}, _unknown())
    assert result.passed and result.unknown == ("second",)
    assert [row.built for row in result.layers] == ["int8", ""]
    assert not any(row.advice for row in result.layers)
    values = gate_values(summarize(_unknown()), result)
    assert (values["mismatch_count"], values["unknown_count"]) == (0, 1)
    assert values["int8_share"] is None and values["fp32_share"] is None
    assert "1 layer of unknown precision" in doubt(result)
    assert doubt(audit({"conv": INT8}, _info(CONV))) == ""


def test_several_products_of_one_kernel_are_told_apart_or_unknown() -> None:
    """A product of its own kernel may be named by the kernels around it, which are not asked."""
    first = "__myl_CorrMulReluMulMinMaxRounCastConc_myl0_1"
    second = "__myl_CorrMul_myl0_2"
    before = _layer(first, "kgen", "a:fp16", "b:int8", "one two", constants="w:fp16 pad:int8")
    after = _layer(second, "kgen", "b:int8", "c:fp32", "two", constants="v:int8 s:fp32")
    nodes = (OnnxNode("one", "Conv", ("x", "w"), ("y",)), OnnxNode("two", "Conv", ("y",), ("z",)))
    info = EngineInfo((before, after), InfoSource.LAYER_INFO, nodes=nodes)
    rows = audit({"one": FP16, "two": INT8}, info).layers
    assert [(row.built, row.engine_layer) for row in rows] == [("fp16", first), ("int8", second)]
    together = replace(after, onnx_nodes=("one", "two"))
    info = EngineInfo((together,), InfoSource.LAYER_INFO, nodes=nodes)
    rows = audit({"one": FP16, "two": INT8}, info).layers
    assert {row.verdict for row in rows} == {AuditVerdict.UNKNOWN}


def test_pinning_is_no_advice_for_an_engine_of_another_model() -> None:
    layer = _layer("n", "gemm", "a:fp16", "b:fp16", constants="w:fp16")
    reads = OnnxNode("n", "Gemm", ("a", "w"), ("b",))
    info = EngineInfo((layer,), InfoSource.BUILD_LOG, nodes=(reads,))
    (row,) = audit({"n": INT8}, info).layers
    assert row.verdict is AuditVerdict.MISMATCH and "Pin" not in row.advice
    made = [OnnxNode(f"{t}_dq", "DequantizeLinear", (f"{t}_q",), (t,)) for t in ("a", "w")]
    reformat = _layer("a_q", "kgen", "x:fp16", "a_q:int8")
    info = EngineInfo((reformat, layer), InfoSource.BUILD_LOG, nodes=(*made, reads))
    (row,) = audit({"n": INT8}, info).layers
    assert row.advice.startswith("Pin it to fp16")


@pytest.mark.parametrize("between", ["DequantizeLinear", "Transpose"])
def test_only_dequantized_codes_are_those_of_an_integer_operator(between: str) -> None:
    """A product that reads such codes through another node was built as the file has it."""
    nodes = (
        OnnxNode("q", "DynamicQuantizeLinear", ("x",), ("codes", "s", "z")),
        OnnxNode("between", between, ("codes",), ("a",)),
        OnnxNode("n", "MatMul", ("a", "w"), ("b",)),
    )
    layer = _layer("n", "gemm", "a:fp32", "b:fp32", "n")
    info = EngineInfo((layer,), InfoSource.RUNTIME, nodes=nodes, provider="CPUExecutionProvider")
    (row,) = audit({"n": INT8}, info).layers
    is_equivalent = between == "DequantizeLinear"
    assert row.as_equivalent is is_equivalent
    assert (row.verdict is AuditVerdict.UNKNOWN) is is_equivalent


def test_tf32_counts_as_fp32_and_is_noted() -> None:
    layer = replace(_layer("n", "gemm", "a:fp32", "b:fp32"), tactic="sm80_gemm_tf32f32")
    (row,) = audit({"n": FP32}, _info(layer)).layers
    assert (row.verdict, row.built) == (AuditVerdict.SAME, "tf32")
    assert "TF32 flag" in row.note


def test_nodes_without_a_layer_are_said_not_failed() -> None:
    info = _info(CONV, ops="conv:Conv relu:Relu shape:Reshape scale:Mul lost:Gemm")
    asked = {"conv": INT8, "shape": FP32, "scale": FP32, "lost": INT8, "other": FP16}
    verdicts = {row.name: row.verdict.value for row in audit(asked, info).layers}
    assert verdicts == {
        "conv": "as-planned", "shape": "gone", "scale": "gone", "lost": "unknown",
        "other": "unknown",
    }  # fmt: skip
    old = _info(replace(CONV, named_only=True))
    assert audit({"conv": INT8, "hidden": INT8}, old).layers[1].verdict is AuditVerdict.UNKNOWN


def test_names_alone_and_engines_of_other_models_cannot_be_audited() -> None:
    with refused("QD-USAGE-AUDIT-OTHER-MODEL", "1 of the 1 ", "'elsewhere'"):
        audit({"elsewhere": INT8}, _info(CONV))
    with refused("QD-USAGE-AUDIT-NAMES-ONLY", "profilingVerbosity"):
        audit({"conv": INT8}, replace(_info(CONV), detailed=False))


def test_neighbours_are_found_through_other_layers_and_shared_tensors() -> None:
    first = replace(CONV, name="first")
    pool = _layer("pool", "Pooling", "b:int8", "p:int8")
    high = _layer("high", "gemm", "p:fp16", "q:fp16")
    copy = _layer("copy", "Reformat", "q:fp16", "r:int8")
    second = _layer("second", "gemm", "r:int8", "s:int8", constants="w:int8")
    third = _layer("third", "gemm", "s:int8 q:fp16", "t:int8", constants="w:int8")
    edges = product_edges(_info(first, pool, high, copy, second, third))
    assert [(e.writer.name, e.reader.name, e.changes) for e in edges] == [
        ("first", "high", True), ("high", "second", True), ("second", "third", False),
        ("high", "third", True),
    ]  # fmt: skip
    assert [layer.name for layer in left_high(edges)] == ["high"]
