"""Local error: each layer alone, reading the reference's tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, checker, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.plan.imported import import_quantized
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.rewrite.cut import LocalGraph, cut_layers
from qdebug.types import Precision

F16, F32 = np.float16, np.float32
AMAX = {"x": 2.0, "r1": 3.0, "f": 1.0}


def _cut(kit: SimpleNamespace, proto: Any, plan: PrecisionPlan) -> tuple[Graph, LocalGraph | None]:
    reference = kit.model_of(proto).graph
    layers = find_layers(reference)
    low = kit.lowered(proto, plan)
    bound = kit.bound(proto, plan)
    wanted = [x for x in layers if bound.precisions[x.name] is not Precision.FP32]
    return reference, cut_layers(reference, low.graph, wanted)


def _local(kit: SimpleNamespace, reference: Graph, cut: LocalGraph, feeds: Any) -> Any:
    """What each layer makes of the reference's tensors, by layer."""
    tensors = {**feeds, **kit.run(reference, feeds, cut.inputs)}
    found = kit.run(cut.proto, {name: tensors[name] for name in cut.inputs})
    return {layer: found[output] for layer, output in cut.outputs.items()}


def _weights(kit: SimpleNamespace, proto: Any) -> Any:
    values = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    fake = {n: kit.fake(v, kit.channel_amax(v, 0), 0) for n, v in values.items() if n[0] == "w"}
    return {**values, **fake}


def _expected(kit: SimpleNamespace, proto: Any, c: Any, reference: Any) -> Any:
    """The three layers of the residual net on fake-quantized reference inputs."""
    fr = kit.fake(reference["r1"], 3.0)
    step = kit.make(
        [
            kit.node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
            kit.node("Relu", ["c1"], ["r1"]),
            kit.node("Conv", ["r", "w2"], ["c2"], pads=[1] * 4),
            kit.node("Add", ["c2", "r"], ["s"]),
            kit.node("Relu", ["s"], ["r2"]),
            kit.node("Gemm", ["f", "w3", "b3"], ["out"], transB=1),
        ],
        {"x": ("N", 3, 8, 8), "r": ("N", 4, 8, 8), "f": ("N", 4)},
        ["r1", "r2", "out"],
        c,
    )
    fed = {"x": kit.fake(reference["x"], 2.0), "r": fr, "f": kit.fake(reference["f"], 1.0)}
    made = kit.run(step, fed)
    return {"conv1": made["r1"], "conv2": made["r2"], "fc": made["out"]}


def test_each_layer_alone(kit: SimpleNamespace, residual_net: Any, images: Any) -> None:
    proto = residual_net()
    reference, cut = _cut(kit, proto, kit.int8(AMAX))
    assert cut is not None
    checker.check_model(cut.proto)
    assert set(cut.inputs) == {"x", "r1", "f"}
    local = _local(kit, reference, cut, {"x": images})
    tensors = {"x": images, **kit.run(reference, {"x": images}, ["r1", "f"])}
    expected = _expected(kit, proto, _weights(kit, proto), tensors)
    assert set(local) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(local[name], value, rtol=1e-5, atol=1e-5)
    # r1 is read by conv2 and by the Add: its pair is there once
    assert kit.ops(cut.proto).count("QuantizeLinear") == 3


def test_one_pair_for_two_layers(kit: SimpleNamespace) -> None:
    w = np.random.default_rng(0).normal(size=(3, 3)).astype(F32)
    nodes = [
        kit.node("MatMul", ["x", "w"], ["a"], "m1"),
        kit.node("MatMul", ["x", "w"], ["b"], "m2"),
        kit.node("MatMul", ["x", "x"], ["c"], "m3"),
    ]
    proto = kit.make(nodes, {"x": (3, 3)}, ["a", "b", "c"], {"w": w})
    reference, cut = _cut(kit, proto, kit.int8({"x": 1}))
    assert cut is not None
    assert kit.ops(cut.proto).count("QuantizeLinear") == 1
    assert kit.ops(cut.proto).count("DequantizeLinear") == 2
    x = np.random.default_rng(1).normal(size=(3, 3)).astype(F32)
    local = _local(kit, reference, cut, {"x": x})
    np.testing.assert_array_equal(local["m1"], local["m2"])
    np.testing.assert_allclose(local["m3"], kit.fake(x, 1) @ kit.fake(x, 1), rtol=1e-5)


def test_fp16_layers(kit: SimpleNamespace, residual_net: Any, images: Any) -> None:
    proto = residual_net()
    reference, cut = _cut(kit, proto, PrecisionPlan(Precision.FP16))
    assert cut is not None
    local = _local(kit, reference, cut, {"x": images})
    assert set(local) == {"conv1", "conv2", "pool", "flatten", "fc"}
    expected = kit.run(reference, {"x": images}, ["r1", "r2", "p", "f"])
    for name, tensor in (("conv1", "r1"), ("conv2", "r2"), ("pool", "p"), ("fc", "out")):
        error = np.abs(local[name].astype(F32) - expected[tensor]).max()
        assert 0 < error < 1e-2
    np.testing.assert_array_equal(local["flatten"], expected["f"].astype(F16))
    assert local["fc"].dtype == F32  # a graph output, cast back
    np.testing.assert_array_equal(local["fc"], local["fc"].astype(F16).astype(F32))


def test_int8_with_fp16(kit: SimpleNamespace, residual_net: Any, images: Any) -> None:
    plan = kit.int8({"r1": 20, "f": 5}, {"conv1": "fp16"}, fallback_precision=Precision.FP16)
    reference, cut = _cut(kit, residual_net(21), plan)
    assert cut is not None
    local = _local(kit, reference, cut, {"x": images})
    assert set(local) == {"conv1", "conv2", "pool", "flatten", "fc"}
    expected = kit.run(reference, {"x": images}, ["r1", "r2"])
    for name, tensor, db in (("conv1", "r1", 55), ("conv2", "r2", 20)):
        noise = np.square(local[name].astype(np.float64) - expected[tensor]).sum()
        signal = np.square(expected[tensor].astype(np.float64)).sum()
        assert 10 * np.log10(signal / noise) > db


def test_an_output_that_is_read_inside(kit: SimpleNamespace) -> None:
    """FP16 forms of a graph output feed the next layer."""
    nodes = [
        kit.node("Neg", ["x"], ["a"], "first"),
        kit.node("Sqrt", ["a"], ["b"], "second"),
    ]
    proto = kit.make(nodes, {"x": (2,)}, ["a", "b"])
    reference, cut = _cut(kit, proto, PrecisionPlan(Precision.FP16))
    assert cut is not None
    x = np.array([-0.1, -7], F32)
    local = _local(kit, reference, cut, {"x": x})
    np.testing.assert_array_equal(local["first"], (-x).astype(F16))
    np.testing.assert_array_equal(local["second"], np.sqrt((-x).astype(F16)))


def test_layers_that_read_only_constants_are_left_out(kit: SimpleNamespace) -> None:
    nodes = [
        kit.node("Neg", ["k"], ["c"], "constant"),
        kit.node("Add", ["x", "c"], ["y"], "add"),
    ]
    proto = kit.make(nodes, {"x": (2,)}, ["y"], {"k": np.ones(2, F32)})
    _, cut = _cut(kit, proto, PrecisionPlan(Precision.FP16))
    assert cut is not None
    assert set(cut.outputs) == {"add"}
    none = kit.make(nodes[:1], {}, ["c"], {"k": np.ones(2, F32)})
    assert _cut(kit, none, PrecisionPlan(Precision.FP16))[1] is None
    assert cut_layers(Graph(none), Graph(none), []) is None


def test_layers_with_subgraphs_are_left_out(kit: SimpleNamespace) -> None:
    info = helper.make_tensor_value_info
    then, other = (
        helper.make_graph(
            [kit.node(op, ["x"], [f"{op}_out"], op)],
            op,
            [],
            [info(f"{op}_out", TensorProto.FLOAT, [2])],
        )
        for op in ("Neg", "Abs")
    )
    nodes = [
        kit.node("If", ["cond"], ["i"], "if", then_branch=then, else_branch=other),
        kit.node("Exp", ["i"], ["y"], "exp"),
    ]
    proto = kit.make(nodes, {"x": (2,), "cond": ("b", ())}, ["y"])
    reference, cut = _cut(kit, proto, PrecisionPlan(Precision.FP16))
    assert cut is not None
    assert set(cut.outputs) == {"exp"}
    local = _local(kit, reference, cut, {"x": np.ones(2, F32), "cond": np.array(True)})
    np.testing.assert_allclose(local["exp"], np.exp(-np.ones(2)), rtol=1e-3)


def test_names_that_the_cut_would_use_itself(kit: SimpleNamespace) -> None:
    w = np.eye(2, dtype=F32)
    nodes = [
        kit.node("Relu", ["x"], ["y:local"], "relu"),
        kit.node("MatMul", ["y:local", "w"], ["y"], "m1"),
        kit.node("MatMul", ["y:local", "w"], ["x:fp16"], "m2"),
        kit.node("Add", ["y", "x:fp16"], ["y:local:local"], "add"),
    ]
    proto = kit.make(nodes, {"x": (1, 2)}, ["y:local:local"], {"w": w}, opset=19)
    for plan in (
        kit.int8({"y:local": 1, "y": 1}),
        PrecisionPlan(Precision.FP16),
        kit.int8({"y:local": 1, "y": 1}, fallback_precision=Precision.FP16),
    ):
        reference, cut = _cut(kit, proto, plan)
        assert cut is not None
        x = np.array([[0.3, 0.7]], F32)
        local = _local(kit, reference, cut, {"x": x})
        np.testing.assert_allclose(local["m1"], x, atol=1 / 127)
        both = "m2" if "m2" in local and "add" not in local else "add"  # m2 takes the Add in
        np.testing.assert_allclose(local[both], 2 * x, atol=2 / 127)


def test_an_unknown_rank(kit: SimpleNamespace) -> None:
    """The rank of a Reshape to a shape that is fed cannot be known."""
    nodes = [
        kit.node("Reshape", ["x", "shape"], ["r"], "reshape"),
        kit.node("Neg", ["r"], ["n"], "neg"),
        kit.node("Flatten", ["n"], ["y"], "flatten"),
    ]
    proto = kit.make(nodes, {"x": (4,), "shape": ("i", ("K",))}, ["y"])
    reference, cut = _cut(kit, proto, PrecisionPlan(Precision.FP16))
    assert cut is not None
    feeds = {"x": np.arange(4, dtype=F32), "shape": np.array([2, 2])}
    local = _local(kit, reference, cut, feeds)
    np.testing.assert_array_equal(local["neg"], -np.arange(4, dtype=F16).reshape(2, 2))


def _users_model(kit: SimpleNamespace, relu: str = "relu") -> Any:
    """x - Q - DQ - conv - relu - Q - DQ = y, which is an output and is read by a MatMul."""
    codes = np.array([[50, -3], [7, 100]], np.int8)
    pair = ["s", "z"]
    nodes = [
        kit.node("QuantizeLinear", ["x", *pair], ["xq"], "q1"),
        kit.node("DequantizeLinear", ["xq", *pair], ["xd"], "dq1"),
        kit.node("DequantizeLinear", ["wc", *pair], ["w"], "dqw"),
        kit.node("MatMul", ["xd", "w"], ["c"], "first"),
        kit.node("Relu", ["c"], ["r"], relu),
        kit.node("QuantizeLinear", ["r", "t", "z"], ["rq"], "q2"),
        kit.node("DequantizeLinear", ["rq", "t", "z"], ["y"], "dq2"),
        kit.node("MatMul", ["y", "w"], ["v"], "second"),
    ]
    constants = {"s": np.array(0.1, F32), "t": np.array(0.2, F32), "z": np.array(0, np.int8)}
    constants["wc"] = codes
    return kit.make(nodes, {"x": (1, 2)}, ["y", "v"], constants), codes * F32(0.1)


def _pair(x: Any, scale: float) -> Any:
    return np.clip(np.rint(x / F32(scale)), -128, 127).astype(F32) * F32(scale)


def test_a_users_model_against_itself(kit: SimpleNamespace) -> None:
    proto, w = _users_model(kit)
    graph = kit.model_of(proto).graph
    reference = kit.model_of(import_quantized(graph).network).graph
    wanted = [x for x in find_layers(reference) if x.name in ("first", "second")]
    cut = cut_layers(reference, graph, wanted)
    assert cut is not None
    x = np.array([[0.123, 0.456]], F32)
    local = _local(kit, reference, cut, {"x": x})
    np.testing.assert_allclose(local["first"], np.maximum(_pair(x, 0.1) @ w, 0), rtol=1e-6)
    # what the second layer reads is the reference's r behind the model's own Q/DQ
    r = np.maximum(x @ w, 0)
    np.testing.assert_allclose(local["second"], _pair(r, 0.2) @ w, rtol=1e-6)


def test_a_users_model_against_its_fp32_form(kit: SimpleNamespace) -> None:
    """Only tensor names are shared; the reference calls its Relu otherwise, and writes y there."""
    proto, w = _users_model(kit, relu="Relu_17")
    nodes = [
        kit.node("MatMul", ["x", "w"], ["c"], "first"),
        kit.node("Relu", ["c"], ["y"], "relu"),
        kit.node("MatMul", ["y", "w"], ["v"], "second"),
    ]
    full = kit.make(nodes, {"x": (1, 2)}, ["y", "v"], {"w": w + F32(0.01)})
    reference = kit.model_of(full).graph
    wanted = [x for x in find_layers(reference) if x.name in ("first", "second")]
    cut = cut_layers(reference, kit.model_of(proto).graph, wanted)
    assert cut is not None
    x = np.array([[0.123, 0.456]], F32)
    local = _local(kit, reference, cut, {"x": x})
    first = _pair(np.maximum(_pair(x, 0.1) @ w, 0), 0.2)
    np.testing.assert_allclose(local["first"], first, rtol=1e-6)
    assert set(cut.inputs) <= {"x", "y", "c", "r"}


@pytest.mark.parametrize("opset", [13, 19, 23])
def test_opsets(kit: SimpleNamespace, residual_net: Any, images: Any, opset: int) -> None:
    reference, cut = _cut(kit, residual_net(opset), kit.int8(AMAX))
    assert cut is not None
    assert set(_local(kit, reference, cut, {"x": images})) == {"conv1", "conv2", "fc"}


def test_a_pair_that_writes_the_tensor_which_the_reference_gives(kit: SimpleNamespace) -> None:
    """A quantizer keeps the name of an output behind the pair, and of the node before it; two
    layers read the output on."""
    rng = np.random.default_rng(0)
    node, w = kit.node, rng.normal(size=(4, 4)).astype(F32)
    products = [node("MatMul", ["y", n], [f"p{n}"], f"fc{n}") for n in ("v", "w")]
    shapes: Any = {"x": ("N", 4)}, ["y", "pv", "pw"], {"w": w, "v": w + 1}
    reference = kit.make([node("Relu", ["x"], ["y"], "act"), *products], *shapes)
    grid = {"s": np.float32(0.05), "z": np.int8(0)}
    quantized = kit.make(
        [
            node("Relu", ["x"], ["y_before"], "act"),
            node("QuantizeLinear", ["y_before", "s", "z"], ["y_q"], "q"),
            node("DequantizeLinear", ["y_q", "s", "z"], ["y"], "dq"),
            *products,
        ],
        shapes[0], shapes[1], {**shapes[2], **grid},
    )  # fmt: skip
    graph, low = kit.model_of(reference).graph, kit.model_of(quantized).graph
    cut = cut_layers(graph, low, [x for x in find_layers(graph) if x.name in ("fcv", "fcw")])
    assert cut is not None and cut.inputs == ("y",)
    x = np.abs(rng.normal(size=(5, 4))).astype(F32)
    local = _local(kit, graph, cut, {"x": x})
    for name, weight in (("fcv", w + 1), ("fcw", w)):
        np.testing.assert_allclose(local[name], _pair(x, 0.05) @ weight, rtol=1e-5)
