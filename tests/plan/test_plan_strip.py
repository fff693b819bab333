"""Taking the Q/DQ pairs out again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.errors import ModelError
from qdebug.network.graph import Graph
from qdebug.plan.imported import import_quantized

F32 = np.float32
ONE, ZERO = np.array(0.5, F32), np.array(0, np.int8)


def _strip(kit: SimpleNamespace, proto: Any) -> Any:
    return import_quantized(kit.model_of(proto).graph).network


def _representable(proto: Any) -> Any:
    """Weights that INT8 holds exactly: whole multiples of 2^-7, 127 of them in each channel."""
    changed = type(proto)()
    changed.CopyFrom(proto)
    rng = np.random.default_rng(0)
    for tensor in changed.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name.startswith("w"):
            codes = rng.integers(-127, 128, values.shape)
            codes.reshape(len(codes), -1)[:, 0] = 127
            tensor.CopyFrom(numpy_helper.from_array((codes / 128).astype(F32), tensor.name))
    return changed


@pytest.mark.parametrize("opset", [13, 21, 23])
def test_lower_then_strip_is_the_original(
    kit: SimpleNamespace, residual_net: Any, images: Any, opset: int
) -> None:
    proto = _representable(residual_net(opset))
    low = kit.lowered(proto, kit.int8({"x": 3, "r1": 6, "f": 4}))
    stripped = import_quantized(low.graph).network
    assert kit.ops(stripped) == kit.ops(proto)
    names = {n.name for n in stripped.graph.node}
    assert names == {n.name for n in proto.graph.node}
    found, expected = (kit.run(g, {"x": images}, ["c1", "s"]) for g in (stripped, proto))
    for name in ("c1", "s", "out"):
        np.testing.assert_array_equal(found[name], expected[name])
    assert {t.name for t in stripped.graph.initializer} == {
        "b1", "b3", "w1_quantized_dequantized", "w2_quantized_dequantized",
        "w3_quantized_dequantized",
    }  # fmt: skip


def test_asymmetric_uint8_per_channel_and_bias(kit: SimpleNamespace) -> None:
    codes = np.array([[0, 255, 128], [3, 4, 5]], np.uint8)
    constants = {
        "s": np.array(0.1, F32), "z": np.array(128, np.uint8),
        "wc": codes, "ws": np.array([0.5, 0.25], F32), "wz": np.array([128, 3], np.uint8),
        "bc": np.array([2**24 + 2, -7], np.int32), "bs": np.array([0.5, 2], F32),
    }  # fmt: skip
    nodes = [
        kit.node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        kit.node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "dq"),
        kit.node("DequantizeLinear", ["wc", "ws", "wz"], ["w"], "dqw", axis=-2),
        kit.node("DequantizeLinear", ["bc", "bs"], ["b"], "dqb", axis=0),
        kit.node("Gemm", ["xd", "w", "b"], ["y"], "gemm", transB=1),
    ]
    proto = kit.make(nodes, {"x": (1, 3)}, ["y"], constants)
    stripped = _strip(kit, proto)
    assert kit.ops(stripped) == ["Gemm"]
    w = np.array([[-64, 63.5, 0], [0, 0.25, 0.5]], F32)
    b = np.array([(2**24 + 2) * 0.5, -14], F32)
    x = np.array([[1e4, 1, 2]], F32)  # far beyond the range of the pair
    np.testing.assert_allclose(kit.run(stripped, {"x": x})["y"], x @ w.T + b)
    values = Graph(stripped).constant("wc_dequantized")
    np.testing.assert_array_equal(values, w)


def test_an_input_of_codes_stays_one(kit: SimpleNamespace) -> None:
    """What they stand for is no rounding of this model's."""
    w = np.array([[0.3]], F32)
    nodes = [
        kit.node("DequantizeLinear", ["codes", "s", "z"], ["x"], "dq"),
        kit.node("QuantizeLinear", ["w", "s", "z"], ["wq"], "q"),
        kit.node("DequantizeLinear", ["wq", "s", "z"], ["wd"], "dqw"),
        kit.node("MatMul", ["x", "wd"], ["y"], "m"),
    ]
    proto = kit.make(nodes, {"codes": ("c", (1, 1))}, ["y"], {"w": w, "s": ONE, "z": ZERO})
    stripped = _strip(kit, proto)
    assert kit.ops(stripped) == ["DequantizeLinear", "MatMul"]
    assert kit.run(stripped, {"codes": np.full((1, 1), 6, np.int8)})["y"] == F32(3) * w


def test_a_float_weight_with_a_pair(kit: SimpleNamespace) -> None:
    w = np.array([[0.123]], F32)
    nodes = [
        kit.node("QuantizeLinear", ["w", "s", "z"], ["wq"], "q"),
        kit.node("DequantizeLinear", ["wq", "s", "z"], ["wd"], "dq"),
        kit.node("MatMul", ["x", "wd"], ["y"], "m"),
    ]
    proto = kit.make(nodes, {"x": (1, 1)}, ["y"], {"w": w, "s": ONE, "z": ZERO})
    assert kit.run(_strip(kit, proto), {"x": np.ones((1, 1), F32)})["y"] == F32(0.123)


def test_blocked_scales(kit: SimpleNamespace) -> None:
    codes = np.arange(-8, 7, dtype=np.int8).reshape(5, 3)
    scale = np.array([[1, 2, 4], [0.5, 8, 16], [3, 5, 7]], F32)  # blocks of 2, 2 and 1 rows
    nodes = [
        kit.node("DequantizeLinear", ["c", "s"], ["w"], "dq", axis=0, block_size=2),
        kit.node("MatMul", ["x", "w"], ["y"], "m"),
    ]
    proto = kit.make(nodes, {"x": (5, 5)}, ["y"], {"c": codes, "s": scale}, opset=21)
    stripped = _strip(kit, proto)
    expected = codes * scale[[0, 0, 1, 1, 2]]
    np.testing.assert_array_equal(Graph(stripped).constant("c_dequantized"), expected)
    eye = np.eye(5, dtype=F32)
    np.testing.assert_array_equal(kit.run(proto, {"x": eye})["y"], expected)


def test_a_model_with_pairs_in_fp16_is_raised(kit: SimpleNamespace) -> None:
    half = np.array(0.5, np.float16)
    nodes = [
        kit.node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        kit.node("DequantizeLinear", ["q", "s", "z"], ["d"], "dq"),
        kit.node("DequantizeLinear", ["c", "s", "z"], ["w"], "dqw"),
        kit.node("MatMul", ["d", "w"], ["y"], "m"),
    ]
    constants = {"s": half, "z": ZERO, "c": np.eye(2, dtype=np.int8) * 2}
    proto = kit.make(nodes, {"x": ("h", (1, 2))}, {"y": "h"}, constants, opset=21)
    stripped = _strip(kit, proto)
    x = np.array([[0.3, 1000]], np.float16)
    np.testing.assert_array_equal(kit.run(stripped, {"x": x})["y"], x)


def test_outputs_and_names_that_are_taken(kit: SimpleNamespace) -> None:
    """Q/DQ'd outputs; one weight with two scales; a node that has an output's name."""
    nodes = [
        kit.node("Relu", ["x"], ["r"], "y"),
        kit.node("QuantizeLinear", ["r", "s", "z"], ["q"], "q"),
        kit.node("DequantizeLinear", ["q", "s", "z"], ["y"], "dq"),
        kit.node("DequantizeLinear", ["c", "s", "z"], ["w1"], "dq1"),
        kit.node("DequantizeLinear", ["c", "t", "z"], ["w2"], "dq2"),
        kit.node("MatMul", ["y", "w1"], ["c_dequantized"], "m1"),
        kit.node("MatMul", ["c_dequantized", "w2"], ["v"], "m2"),
        kit.node("DequantizeLinear", ["q", "s", "z"], ["again"], "dq-again"),
    ]
    constants = {"s": ONE, "t": np.array(4, F32), "z": ZERO, "c": np.eye(2, dtype=np.int8)}
    proto = kit.make(nodes, {"x": (1, 2)}, ["y", "v", "again"], constants)
    stripped = _strip(kit, proto)
    names = [n.name for n in stripped.graph.node]
    assert len(set(names)) == len(names)
    constants = [t.name for t in stripped.graph.initializer]
    assert len(set(constants)) == len(constants)
    x = np.array([[0.3, 0.1]], F32)
    found = kit.run(stripped, {"x": x})
    np.testing.assert_array_equal(found["y"], x)
    np.testing.assert_array_equal(found["again"], x)
    np.testing.assert_array_equal(found["v"], x * F32(0.5) * F32(4))


def test_a_subgraph_that_reads_a_dequantized_tensor(kit: SimpleNamespace) -> None:
    info = helper.make_tensor_value_info
    then, other = (
        helper.make_graph(
            [kit.node(op, ["d"], [f"{op}_out"], op)],
            op,
            [],
            [info(f"{op}_out", TensorProto.FLOAT, [1])],
        )
        for op in ("Neg", "Abs")
    )
    nodes = [
        kit.node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        kit.node("DequantizeLinear", ["q", "s", "z"], ["d"], "dq"),
        kit.node("If", ["cond"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    proto = kit.make(nodes, {"x": (1,), "cond": ("b", ())}, ["y"], {"s": ONE, "z": ZERO})
    feeds = {"x": np.array([0.3], F32), "cond": np.array(True)}
    assert kit.run(_strip(kit, proto), feeds)["y"] == F32(-0.3)


def test_integer_arithmetic_is_refused(kit: SimpleNamespace) -> None:
    quantize = kit.node("QuantizeLinear", ["x", "s", "z"], ["q"], "q")
    pair = ["s", "z"]
    nodes = [
        quantize,
        kit.node("QLinearConv", ["q", *pair, "w", *pair, *pair], ["c"], "qconv"),
        kit.node("DequantizeLinear", ["c", *pair], ["y"], "dq"),
    ]
    constants = {"s": ONE, "z": ZERO, "w": np.ones((1, 1, 1, 1), np.int8)}
    proto = kit.make(nodes, {"x": (1, 1, 2, 2)}, ["y"], constants)
    with pytest.raises(
        ModelError, match=r"'qconv' \(QLinearConv\)(?s:.)*QD-MODEL-NO-FP32-FORM"
    ) as caught:
        _strip(kit, proto)
    assert "reference" in caught.value.hint


def test_codes_without_a_quantizer_or_as_output_are_refused(kit: SimpleNamespace) -> None:
    constants = {"s": ONE, "z": ZERO}
    nodes = [
        kit.node("Neg", ["x"], ["c"], "computed"),
        kit.node("DequantizeLinear", ["c", "s", "z"], ["y"], "dq"),
    ]
    with pytest.raises(ModelError, match=r"'dq'(?s:.)*QD-MODEL-NO-FP32-FORM"):
        _strip(kit, kit.make(nodes, {"x": ("c", (1,))}, ["y"], constants))
    quantize = kit.node("QuantizeLinear", ["x", "s", "z"], ["q"], "q")
    with pytest.raises(ModelError, match=r"'q'(?s:.)*QD-MODEL-NO-FP32-FORM"):
        _strip(kit, kit.make([quantize], {"x": (1,)}, {"q": "c"}, constants))


def test_where_the_fp32_model_is_given_it_is_not_asked_for() -> None:
    """The scale of a dynamic quantization, read by something else than its DequantizeLinear."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        helper.make_node("Mul", ["d", "s"], ["y"], "scaled"),
    ]
    value = helper.make_tensor_value_info
    shape = [2, 4]
    given, made = value("x", TensorProto.FLOAT, shape), value("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [given], [made])
    aligned = Graph.inferred(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    with pytest.raises(ModelError) as alone:
        import_quantized(aligned)
    assert alone.value.code == "QD-MODEL-NO-FP32-FORM" and "reference" in alone.value.hint
    with pytest.raises(ModelError) as beside:
        import_quantized(aligned, aligned)
    assert beside.value.code == "QD-MODEL-NO-FP32-FORM"
    assert "Q/DQ format" in beside.value.hint and "reference" not in beside.value.hint


def test_constants_in_double_stay_double(kit: SimpleNamespace) -> None:
    """Next to a Cast to double, as the tail of a pitch estimator has it."""
    nodes = [
        kit.node("Cast", ["x"], ["d"], "cast", to=TensorProto.DOUBLE),
        kit.node("Mul", ["d", "c"], ["m"], "mul"),
        kit.node("Cast", ["m"], ["y"], "back", to=TensorProto.FLOAT),
    ]
    constants = {"c": np.array([0.1, 0.2, 0.3], np.float64)}
    graph = kit.model_of(kit.make(nodes, {"x": (2, 3)}, ["y"], constants)).graph
    plain = import_quantized(graph, graph).network
    x = np.ones((2, 3), F32)
    np.testing.assert_array_equal(kit.run(plain, {"x": x})["y"], [constants["c"].astype(F32)] * 2)
