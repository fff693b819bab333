"""A model that somebody else quantized is named, computed and explained by its own format."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdebug
from qdebug.engine_info.files.onnx_file import info_of_graph
from qdebug.errors import ModelError, UsageError
from qdebug.formats.base import Format
from qdebug.formats.registry import FORMATS, INT4, INT8, INT16
from qdebug.network.graph import Graph

X = np.random.default_rng(1).normal(size=(32, 16)).astype(np.float32)
W = np.random.default_rng(0).normal(size=(2, 16, 16)).astype(np.float32)
SCALED = [f for f in FORMATS if f.needs_scale]


def scale_for(form: Format, amax: float, share: float = 1.0) -> Any:
    return form.scale_of(amax / share)


def model(data: int, weight: int, scales: Any, opset: int = 21) -> onnx.ModelProto:
    """x, MatMul, Relu, MatMul with each operand through a Q/DQ pair."""

    def pair(tensor: str, kind: int) -> list[onnx.NodeProto]:
        scale = f"{tensor}_s"
        codes = [tensor, scale, f"z{kind}"], [f"{tensor}_c"], f"{tensor}_q"
        back = [f"{tensor}_c", scale, f"z{kind}"], [f"{tensor}_d"], f"{tensor}_dq"
        return [
            helper.make_node("QuantizeLinear", *codes),
            helper.make_node("DequantizeLinear", *back),
        ]

    nodes = [
        *pair("x", data),
        *pair("w0", weight),
        helper.make_node("MatMul", ["x_d", "w0_d"], ["m"], "first"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        *pair("r", data),
        *pair("w1", weight),
        helper.make_node("MatMul", ["r_d", "w1_d"], ["y"], "second"),
    ]
    constants = [numpy_helper.from_array(W[i], f"w{i}") for i in range(2)]
    constants += [helper.make_tensor(f"{t}_s", TensorProto.FLOAT, [], [s]) for t, s in scales]
    constants += [helper.make_tensor(f"z{kind}", kind, [], [0]) for kind in {data, weight}]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n", 16])],
        [value("y", TensorProto.FLOAT, ["n", 16])],
        constants,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def quantized(data: Format, weight: Format) -> tuple[onnx.ModelProto, Any]:
    """The model, and its outputs computed in NumPy."""
    scales = {
        "x": data.scale_of(float(np.abs(X).max())),
        "w0": weight.scale_of(float(np.abs(W[0]).max())),
        "w1": weight.scale_of(float(np.abs(W[1]).max())),
    }
    weights = [weight.quantize(W[i], scales[f"w{i}"]) for i in range(2)]
    hidden = np.maximum(data.quantize(X, scales["x"]) @ weights[0], 0)
    # Not the largest value itself: multiples of both steps would lie exactly between two codes of
    # few bits, and the last bit of a sum, which differs between processors, would decide.
    scales["r"] = data.scale_of(1.01 * float(np.abs(hidden).max()))
    expected = data.quantize(hidden, scales["r"]) @ weights[1]
    pairs = [(name, float(scale)) for name, scale in scales.items()]
    return model(data.onnx_type, weight.onnx_type, pairs), expected


def without_pairs(proto: onnx.ModelProto) -> onnx.ModelProto:
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    del plain.graph.node[:]
    plain.graph.node.extend(n for n in proto.graph.node if "quantize" not in n.op_type.lower())
    for node in plain.graph.node:
        node.input[:] = [t.removesuffix("_d") for t in node.input]
    return plain


@pytest.mark.parametrize("form", SCALED, ids=lambda f: f.name)
def test_a_format_is_named_and_computed_as_what_it_is(form: Format) -> None:
    proto, expected = quantized(form, form)
    result = qdebug.compare(proto, inputs={"x": X})
    assert result.precision == form.precision
    assert {x.precision for x in result.layers} == {form.precision}
    reference = np.maximum(X @ W[0], 0) @ W[1]
    noise = np.sum((reference - expected).astype(np.float64) ** 2)
    sqnr = 10 * np.log10(np.sum(reference.astype(np.float64) ** 2) / noise)
    assert result.outputs[0].metrics.sqnr_db == pytest.approx(sqnr, abs=0.02)
    # Leaving a layer unquantized takes its error away, and changes nothing else in the model.
    assert form.lowest == 0 or all(
        x.effect is None or -0.1 < x.effect.gain <= 1 for x in result.layers
    )
    for cause in (c for x in result.layers for c in x.causes):
        assert "step (0)" not in cause.evidence
        assert form.label in cause.evidence or "clipped" in cause.evidence
        other = {f.label for f in SCALED if f.label not in form.label} - {"INT8"}
        assert not any(f" {label} " in cause.evidence for label in other)


@pytest.mark.parametrize("form", [f for f in SCALED if f.lowest < 0], ids=lambda f: f.name)
def test_rounded_weights_are_those_of_the_fp32_model(form: Format) -> None:
    """Whose steps, in floating point, are wide where the values are large."""
    stored = store_weights(quantized(form, form)[0], form)
    plain = without_pairs(quantized(form, form)[0])
    result = qdebug.compare(stored, reference=plain, inputs={"x": X})
    assert result.correspondence is not None
    assert all(match.proven for match in result.correspondence.matches)
    assert not any("weights" in c.label for x in result.layers for c in x.causes)


def store_weights(proto: onnx.ModelProto, form: Format) -> onnx.ModelProto:
    """The weights as codes."""
    scales = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    for tensor in proto.graph.initializer:
        if tensor.name in ("w0", "w1"):
            codes = form.encode(numpy_helper.to_array(tensor), scales[f"{tensor.name}_s"])
            tensor.CopyFrom(numpy_helper.from_array(codes, f"{tensor.name}_c"))
    kept = [n for n in proto.graph.node if n.name not in ("w0_q", "w1_q")]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return proto


@pytest.mark.parametrize(
    ("data", "weight", "expected"), [(INT8, INT4, "int8"), (INT16, INT8, "a16w8")]
)
def test_operands_of_two_formats(data: Format, weight: Format, expected: str) -> None:
    """A kernel multiplies in the wider one; the weight's rounding is that of its own."""
    result = qdebug.compare(quantized(data, weight)[0], inputs={"x": X})
    assert {str(x.precision) for x in result.layers} == {expected} == {result.precision}
    causes = {c.label: c.evidence for x in result.layers for c in x.causes}
    assert f"rounded to {weight.label} " in causes["weight-rounding"]


def test_weights_alone_with_a_scale_for_each_block() -> None:
    plain = without_pairs(quantized(INT4, INT4)[0])
    proto = onnx.ModelProto()
    proto.CopyFrom(plain)
    expected, backs = X, []
    for i, node in enumerate(n for n in proto.graph.node if n.op_type == "MatMul"):
        scale = INT4.scale_of(np.abs(W[i].reshape(4, 4, 16)).max(axis=1))
        codes = INT4.encode(W[i] / np.repeat(scale, 4, axis=0))
        for name, values in (("codes", codes), ("scale", scale)):
            proto.graph.initializer.append(numpy_helper.from_array(values, f"{name}{i}"))
        reads, block = [f"codes{i}", f"scale{i}"], {"axis": 0, "block_size": 4}
        backs.append(helper.make_node("DequantizeLinear", reads, [f"d{i}"], f"dq{i}", **block))
        node.input[1] = f"d{i}"
        expected = np.maximum(expected, 0 if i else -np.inf) @ (
            codes.astype(np.float32) * np.repeat(scale, 4, axis=0)
        )
    for back in backs:
        proto.graph.node.insert(0, back)
    result = qdebug.compare(proto, reference=plain, inputs={"x": X})
    reference = np.maximum(X @ W[0], 0) @ W[1]
    noise = np.sum((reference - expected).astype(np.float64) ** 2)
    sqnr = 10 * np.log10(np.sum(reference.astype(np.float64) ** 2) / noise)
    assert result.outputs[0].metrics.sqnr_db == pytest.approx(sqnr, abs=0.02)
    assert {str(x.precision) for x in result.layers} == {"int4"}
    for layer in result.layers:
        assert [c.label for c in layer.causes][:1] == ["weight-rounding"]
        assert "64 scales, for 4 values each" in layer.causes[0].evidence


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT4E2M1])
def test_a_format_that_is_not_read_is_refused_by_name(kind: int) -> None:
    proto = model(kind, kind, [(t, 0.5) for t in ("x", "w0", "r", "w1")], opset=23)
    with pytest.raises(ModelError, match=TensorProto.DataType.Name(kind)) as caught:
        qdebug.compare(proto, inputs={"x": X})
    assert caught.value.code == "QD-MODEL-NUMBER-FORMAT"


def test_a_repair_makes_no_layers_in_a_format_that_is_only_read(tmp_path: Any) -> None:
    proto, _ = quantized(INT4, INT4)
    with pytest.raises(UsageError, match="INT4") as caught:
        qdebug.repair(
            proto,
            reference=without_pairs(proto),
            inputs={"x": X},
            calib_data={"x": X[:16] + 1},
            output=tmp_path / "out.onnx",
        )
    assert caught.value.code == "QD-USAGE-REPAIR-FORMAT"


@pytest.mark.parametrize("form", SCALED, ids=lambda f: f.name)
def test_inspect_names_the_same_precision(form: Format) -> None:
    info = info_of_graph(Graph.inferred(quantized(form, form)[0]))
    assert {layer.precision for layer in info.layers} == {str(form.precision)}
