"""Lowering to FP16, against numpy's float16."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Precision

HALF = PrecisionPlan(Precision.FP16)
F16, F32 = np.float16, np.float32


def _types(graph: Any) -> dict[str, str]:
    return {n: TensorProto.DataType.Name(k) for n, k in graph.types.items()}


def _chain(kit: SimpleNamespace, opset: int = 17) -> Any:
    """y = relu(x * k + b) @ w."""
    rng = np.random.default_rng(3)
    constants = {
        "k": rng.normal(size=4).astype(F32),
        "b": rng.normal(size=4).astype(F32),
        "w": rng.normal(size=(4, 3)).astype(F32),
    }
    nodes = [
        kit.node("Mul", ["x", "k"], ["m"], "mul"),
        kit.node("Add", ["m", "b"], ["a"], "add"),
        kit.node("Relu", ["a"], ["r"], "relu"),
        kit.node("MatMul", ["r", "w"], ["y"], "matmul"),
    ]
    return kit.make(nodes, {"x": ("N", 4)}, ["y"], constants, opset), constants


def _half_chain(x: Any, c: Any) -> tuple[Any, Any]:
    relu = np.maximum(x.astype(F16) * c["k"].astype(F16) + c["b"].astype(F16), F16(0))
    return relu, (relu.astype(F32) @ c["w"].astype(F16).astype(F32)).astype(F16)


@pytest.mark.parametrize("opset", [13, 17, 19, 21, 23, 25])
def test_a_chain_is_numpys_float16(kit: SimpleNamespace, opset: int) -> None:
    proto, c = _chain(kit, opset)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(F32)
    low = kit.lowered(proto, HALF)
    found = kit.run(low.graph, {"x": x}, ["m", "a", "r"])
    relu, y = _half_chain(x, c)
    assert found["r"].dtype == np.float16
    np.testing.assert_array_equal(found["r"], relu)
    assert found["y"].dtype == np.float32
    np.testing.assert_allclose(found["y"], y.astype(F32), rtol=2e-3, atol=1e-3)
    np.testing.assert_array_equal(found["y"], found["y"].astype(F16).astype(F32))
    kinds = _types(low.graph)
    assert kinds["x"] == kinds["y"] == "FLOAT"
    assert [kinds[f"{t}_fp16"] for t in "kbw"] == ["FLOAT16"] * 3
    assert not {"k", "b", "w"} & set(low.graph.initializers)
    assert kit.ops(low.graph).count("Cast") == 2


def test_pinned_node_inside(kit: SimpleNamespace) -> None:
    proto, c = _chain(kit)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(F32)
    plan = PrecisionPlan(Precision.FP16, layers={"add": Precision.FP32})
    low = kit.lowered(proto, plan)
    found = kit.run(low.graph, {"x": x}, ["m", "a", "r"])
    kinds = _types(low.graph)
    assert (kinds["m"], kinds["a"], kinds["r"]) == ("FLOAT16", "FLOAT", "FLOAT16")
    m = x.astype(F16) * c["k"].astype(F16)
    np.testing.assert_array_equal(found["a"], m.astype(F32) + c["b"])
    np.testing.assert_array_equal(found["r"], np.maximum(found["a"].astype(F16), F16(0)))


def test_all_pinned_is_the_reference_bit_for_bit(
    kit: SimpleNamespace, residual_net: Any, images: Any
) -> None:
    proto = residual_net()
    names = ["conv1", "conv2", "pool", "flatten", "fc"]
    plan = PrecisionPlan(Precision.FP16, layers=dict.fromkeys(names, Precision.FP32))
    low = kit.lowered(proto, plan)
    assert kit.ops(low.graph) == kit.ops(proto)
    found, expected = (kit.run(g, {"x": images}, ["s"]) for g in (low.graph, proto))
    np.testing.assert_array_equal(found["s"], expected["s"])
    np.testing.assert_array_equal(found["out"], expected["out"])


def test_overflow_shows_as_inf(kit: SimpleNamespace) -> None:
    nodes = [
        kit.node("Mul", ["x", "k"], ["m"], "mul"),
        kit.node("Mul", ["m", "tiny"], ["y"], "back"),
    ]
    constants = {"k": np.array([1e5, 300], F32), "tiny": np.array([1e-3], F32)}
    low = kit.lowered(kit.make(nodes, {"x": (1, 2)}, ["y"], constants), HALF)
    assert np.isinf(low.graph.constant("k_fp16")[0])
    found = kit.run(low.graph, {"x": np.array([[1, 300]], F32)})["y"]
    assert np.isinf(found).tolist() == [[True, True]]


def test_what_the_schema_fixes_stays(kit: SimpleNamespace) -> None:
    """Scales of Resize, a ConstantOfShape, a Cast, a Range and ArgMax keep their types."""
    nodes = [
        kit.node("Relu", ["x"], ["r"], "relu"),
        kit.node("Resize", ["r", "", "scales"], ["big"], "resize", mode="nearest"),
        kit.node("Shape", ["big"], ["shape"], "shape"),
        kit.node(
            "ConstantOfShape", ["shape"], ["fill"], "fill",
            value=numpy_helper.from_array(np.array([2], F32)),
        ),
        kit.node("Mul", ["big", "fill"], ["m"], "mul"),
        kit.node("Cast", ["m"], ["d"], "to-double", to=TensorProto.DOUBLE),
        kit.node("Cast", ["d"], ["f"], "to-float", to=TensorProto.FLOAT),
        kit.node("Range", ["zero", "four", "one"], ["range"], "range"),
        kit.node("Add", ["f", "range"], ["y"], "add"),
        kit.node("ArgMax", ["y"], ["index"], "argmax", axis=3, keepdims=0),
    ]  # fmt: skip
    constants = {"scales": np.array([1, 1, 2, 2], F32)}
    constants |= {n: np.array(v, F32) for n, v in (("zero", 0), ("four", 4), ("one", 1))}
    proto = kit.make(nodes, {"x": (1, 1, 2, 2)}, {"y": "f", "index": "i"}, constants)
    low = kit.lowered(proto, HALF)
    kinds = _types(low.graph)
    assert kinds["scales"] == "FLOAT"
    assert (kinds["r"], kinds["big"], kinds["m"]) == ("FLOAT16", "FLOAT16", "FLOAT16")
    assert (kinds["fill"], kinds["f"], kinds["range"]) == ("FLOAT", "FLOAT", "FLOAT")
    x = np.arange(4, dtype=F32).reshape(1, 1, 2, 2)
    found, expected = (kit.run(g, {"x": x}) for g in (low.graph, proto))
    np.testing.assert_array_equal(found["y"], expected["y"])
    np.testing.assert_array_equal(found["index"], expected["index"])


def test_operators_typed_by_attribute_or_subgraph(kit: SimpleNamespace) -> None:
    """A window of an attribute's type, an If and a Loop that read no outer tensor."""
    info = helper.make_tensor_value_info

    def branch(name: str, value: float) -> Any:
        constant = numpy_helper.from_array(np.array([value], F32))
        out = [info(f"{name}_v", TensorProto.FLOAT, [1])]
        node = kit.node("Constant", [], [f"{name}_v"], f"{name}_c", value=constant)
        return helper.make_graph([node], name, [], out)

    body = helper.make_graph(
        [kit.node("Add", ["acc", "acc"], ["acc_out"], "dbl"),
         kit.node("Identity", ["go"], ["go_out"], "go")],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []),
         info("acc", TensorProto.FLOAT, ["K"])],
        [info("go_out", TensorProto.BOOL, []), info("acc_out", TensorProto.FLOAT, ["K"])],
    )  # fmt: skip
    nodes = [
        kit.node("HannWindow", ["size"], ["window"], "window"),
        kit.node(
            "If", ["cond"], ["c"], "if", then_branch=branch("t", 2), else_branch=branch("e", 3)
        ),
        kit.node("Mul", ["x", "c"], ["m"], "mul"),
        kit.node("Loop", ["trips", "", "m"], ["l"], "loop", body=body),
        kit.node("Add", ["l", "window"], ["y"], "add"),
    ]
    constants = {"size": np.array(4), "trips": np.array(3)}
    proto = kit.make(nodes, {"x": (4,), "cond": ("b", ())}, ["y"], constants)
    low = kit.lowered(proto, HALF)
    kinds = _types(low.graph)
    assert (kinds["window"], kinds["c"], kinds["m"], kinds["l"]) == (
        "FLOAT", "FLOAT", "FLOAT16", "FLOAT"
    )  # fmt: skip
    feeds = {"x": np.array([1, 2, 3, 4], F32), "cond": np.array(True)}
    found, expected = (kit.run(g, feeds)["y"] for g in (low.graph, proto))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_a_subgraph_that_reads_a_tensor_that_becomes_fp16(kit: SimpleNamespace) -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [kit.node("Add", ["acc", "r"], ["acc_out"], "inner"),
         kit.node("Mul", ["acc_out", "r"], ["r_fp32"], "taken"),
         kit.node("Identity", ["go"], ["go_out"], "go")],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []),
         info("acc", TensorProto.FLOAT, [2])],
        [info("go_out", TensorProto.BOOL, []), info("acc_out", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    then, other = (
        helper.make_graph(
            [kit.node("Neg", [read], [f"{read}_neg"], f"neg-{read}")],
            read,
            [],
            [info(f"{read}_neg", TensorProto.FLOAT, [2])],
        )
        for read in ("r", "l")
    )
    nodes = [
        kit.node("Relu", ["x"], ["r"], "relu"),
        kit.node("Loop", ["trips", "", "x"], ["l"], "loop", body=body),
        kit.node("If", ["cond"], ["c"], "if", then_branch=then, else_branch=other),
        kit.node("Neg", ["c"], ["y"], "neg"),
    ]
    proto = kit.make(nodes, {"x": (2,), "cond": ("b", ())}, ["y"], {"trips": np.array(3)})
    low = kit.lowered(proto, HALF)
    assert _types(low.graph)["r"] == "FLOAT16"
    for cond in (True, False):
        feeds = {"x": np.array([0.5, -2], F32), "cond": np.array(cond)}
        found, expected = (kit.run(g, feeds)["y"] for g in (low.graph, proto))
        np.testing.assert_array_equal(found, expected)


def test_an_output_that_others_read(kit: SimpleNamespace) -> None:
    nodes = [
        kit.node("Neg", ["x"], ["a"], "first"),
        kit.node("Abs", ["a"], ["b"], "second"),
        kit.node("CumSum", ["a", "axis"], ["c"], "fp32-only-at-11"),
    ]
    proto = kit.make(nodes, {"x": (3,)}, ["a", "b", "c"], {"axis": np.array(0)}, opset=13)
    low = kit.lowered(proto, HALF)
    x = np.array([0.1, 1000.3, -3], F32)
    found = kit.run(low.graph, {"x": x})
    half = -x.astype(F16)
    np.testing.assert_array_equal(found["a"], half.astype(F32))
    np.testing.assert_array_equal(found["b"], np.abs(half).astype(F32))
    np.testing.assert_array_equal(found["c"], np.cumsum(half.astype(F32), dtype=F32))
    assert {v.dtype for v in found.values()} == {np.dtype(F32)}


def test_behind_an_operator_that_onnx_does_not_know(kit: SimpleNamespace) -> None:
    """Its output has no known type: nothing may assume that it can be cast."""
    nodes = [
        kit.node("Neg", ["x"], ["n"], "neg"),
        kit.node("Gelu", ["n"], ["g"], "gelu", domain="com.microsoft"),
        kit.node("Add", ["n", "g"], ["s"], "add"),
        kit.node("Mul", ["g", "k"], ["y"], "mul"),
        kit.node("Sub", ["s", "y"], ["z"], "sub"),
    ]
    proto = kit.make(
        nodes, {"x": (3,)}, ["y", "z"], {"k": np.array([2], F32)}, domains={"com.microsoft": 1}
    )
    low = kit.lowered(proto, HALF)
    x = np.array([0.25, -1, 2], F32)
    found, expected = (kit.run(g, {"x": x}) for g in (low.graph, proto))
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-2, atol=1e-3)


def test_batchnorm_layernorm_dropout_and_where(kit: SimpleNamespace) -> None:
    ones = {n: np.full(4, v, F32) for n, v in (("s", 2), ("b", 1), ("mean", 0.5), ("var", 1.5))}
    nodes = [
        kit.node("BatchNormalization", ["x", "s", "b", "mean", "var"], ["n"], "bn"),
        kit.node("LayerNormalization", ["n", "s", "b"], ["l", "mu", "inv"], "ln"),
        kit.node("Dropout", ["l", "ratio"], ["d"], "dropout"),
        kit.node("Greater", ["d", "n"], ["g"], "greater"),
        kit.node("Where", ["g", "d", "n"], ["w"], "where"),
        kit.node("Sub", ["w", "mu"], ["y"], "sub"),
        kit.node("Clip", ["y", "low", "high"], ["z"], "clip"),
    ]
    constants = {**ones, "ratio": np.array(0.5, F32), "low": np.array(-1, F32)}
    constants["high"] = np.array(1e9, F32)  # Inf in FP16, which is as good
    proto = kit.make(nodes, {"x": (2, 4)}, ["z"], constants)
    low = kit.lowered(proto, HALF)
    kinds = _types(low.graph)
    assert (kinds["l"], kinds["mu"], kinds["y"]) == ("FLOAT16", "FLOAT", "FLOAT16")
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(F32)
    found, expected = (kit.run(g, {"x": x})["z"] for g in (low.graph, proto))
    np.testing.assert_allclose(found, expected, atol=2e-2)


def test_a_model_that_is_fp16_already_is_left_alone(kit: SimpleNamespace) -> None:
    proto = kit.make(
        [kit.node("Add", ["x", "k"], ["y"], "add")],
        {"x": ("h", (2,))},
        {"y": "h"},
        {"k": np.array([1, 2], F16)},
    )
    assert kit.ops(kit.lowered(proto, HALF).graph) == ["Add"]


def test_the_newest_opset_that_onnx_runtime_takes(kit: SimpleNamespace) -> None:
    import onnx

    from qdebug.errors import ModelError

    newest = 0
    for opset in range(25, onnx.defs.onnx_opset_version() + 1):
        proto, c = _chain(kit, opset)
        low = kit.lowered(proto, HALF)
        mixed = kit.lowered(proto, kit.int8({"r": 4.0}, fallback_precision=Precision.FP16))
        x = np.ones((2, 4), F32)
        try:
            kit.run(proto, {"x": x})
            in_fp16, in_both = (kit.run(m.graph, {"x": x})["y"] for m in (low, mixed))
        except ModelError:
            continue  # ONNX Runtime does not know it yet, or not its Q/DQ; lowering worked
        newest = opset
        _, y = _half_chain(x, c)
        np.testing.assert_allclose(in_fp16, y, rtol=2e-3)
        np.testing.assert_allclose(in_both, y, atol=0.2)
    assert newest >= 25
