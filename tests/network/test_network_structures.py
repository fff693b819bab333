"""Models of unusual build: subgraphs, functions, outputs that nothing computes, odd inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.network.layers import find_layers
from qdebug.network.prepare import Model

Same = Callable[..., Model]
FLOAT = TensorProto.FLOAT


def value(name: str, rank: int | None = 4, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None if rank is None else [None] * rank)


def if_net(net: Any, opset: int) -> onnx.ModelProto:
    """Both branches read outer tensors, and hold an operator that changed with opset 13."""
    if opset < 13:
        squeeze = [helper.make_node("Unsqueeze", ["b"], ["u"], axes=[0])]
        squeeze += [helper.make_node("Squeeze", ["u"], ["s"], axes=[0])]
    else:
        squeeze = [
            helper.make_node("Constant", [], ["ax"], value=numpy_helper.from_array(np.array([0]))),
            helper.make_node("Unsqueeze", ["b", "ax"], ["u"]),
            helper.make_node("Squeeze", ["u", "ax"], ["s"]),
        ]
    then = [*squeeze, helper.make_node("Softmax", ["s"], ["t"], axis=3)]
    other = [helper.make_node("Mul", ["b", "k"], ["e"])]
    n = net(opset).conv("x", "c", name="conv").batch_norm("c", "b", "bn")
    n.const("k", np.float32(-3)).const("zero", np.float32(0))
    n.add("ReduceMean", "x", "m", "mean", keepdims=0).add("Greater", "m,zero", "cond", "greater")
    n.add(
        "If",
        "cond",
        "y",
        "if",
        then_branch=helper.make_graph(then, "then", [], [value("t")]),
        else_branch=helper.make_graph(other, "else", [], [value("e")]),
    )
    return n.model()


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 17])
def test_if_reads_outer_tensors(net: Any, same_outputs: Same, opset: int) -> None:
    for sign in (1, -1):
        x = sign * np.abs(np.random.default_rng(0).normal(size=(1, 3, 8, 8))).astype(np.float32)
        model = same_outputs(if_net(net, opset), {"x": x})
    node = model.graph.by_name["if"]
    assert {"b"} <= set(node.implicit_inputs) <= {"b", "k"}  # constants may move inside
    assert "if" in [n.name for n in model.graph.consumers["b"]]
    assert model.origins["conv"] == ("conv", "bn")
    assert find_layers(model.graph).by_name["if"].nodes == ("if",)


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
def test_loop_reads_outer_tensors(net: Any, same_outputs: Same, opset: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["acc", "b"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            value("i", 0, TensorProto.INT64),
            value("go", 0, TensorProto.BOOL),
            value("acc"),
        ],
        [value("on", 0, TensorProto.BOOL), value("next")],
    )
    n = net(opset).conv("x", "c", name="conv").batch_norm("c", "b", "bn")
    n.const("trips", np.array(3)).const("true", np.array(True))
    model = same_outputs(n.add("Loop", "trips,true,b", "y", "loop", body=body).model())
    assert model.graph.by_name["loop"].implicit_inputs == ("b",)
    assert model.graph.by_name["loop"].reads[-1] == "b"


def test_nested_subgraphs(net: Any, same_outputs: Same) -> None:
    inner = helper.make_graph(
        [helper.make_node("Mul", ["a", "own"], ["p"])],
        "inner",
        [],
        [value("p")],
        [numpy_helper.from_array(np.float32(2), "own")],
    )
    outer = helper.make_graph(
        [
            helper.make_node("If", ["cond"], ["q"], then_branch=inner, else_branch=inner),
        ],
        "outer",
        [],
        [value("q")],
    )
    n = net().add("Abs", "x", "a").const("zero", np.float32(0))
    n.add("ReduceMean", "x", "m", keepdims=0).add("Greater", "m,zero", "cond")
    n.add("If", "cond", "y", "if", then_branch=outer, else_branch=outer)
    model = same_outputs(n.model())
    assert set(model.graph.by_name["if"].implicit_inputs) == {"a", "cond"}


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_an_output_that_is_an_input(net: Any, same_outputs: Same, opset: int) -> None:
    n = net(opset).add("Relu", "x", "y")
    model = same_outputs(n.model([value("y"), helper.make_tensor_value_info("x", 1, (1, 3, 8, 8))]))
    assert model.graph.outputs == ("y", "x")


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("kind", ["initializer", "Constant", "computed"])
def test_an_output_that_is_constant(net: Any, same_outputs: Same, kind: str, opset: int) -> None:
    n = net(opset).conv("x", "c").batch_norm("c", "y")
    if kind == "initializer":
        n.const("k", np.ones(2, np.float32))
    elif kind == "Constant":
        n.add("Constant", "", "k", value=numpy_helper.from_array(np.ones(2, np.float32)))
    else:
        n.const("k0", np.ones(2, np.float32)).add("Neg", "k0", "k")
    model = same_outputs(n.model([value("y"), value("k", 1)]))
    assert model.graph.outputs == ("y", "k")
    find_layers(model.graph)


def test_only_an_identity(net: Any, same_outputs: Same) -> None:
    assert len(same_outputs(net().add("Identity", "x", "y").model()).graph.nodes) == 1


def test_unused_inputs_stay_inputs(net: Any, same_outputs: Same) -> None:
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, [1, 3, 8, 8]),
        helper.make_tensor_value_info("z", TensorProto.INT64, ["N", None]),
    ]
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32), "z": np.zeros((1, 2), np.int64)}
    model = same_outputs(net().conv("x", "y").model(inputs=inputs), feeds)
    x, z = model.graph.inputs
    assert (x.name, x.shape, x.dtype) == ("x", (1, 3, 8, 8), np.float32)
    assert (z.name, z.shape, z.dtype) == ("z", ("N", None), np.int64)


def test_dynamic_shapes_are_kept(net: Any, same_outputs: Same) -> None:
    n = (
        net(17)
        .conv("x", "c")
        .batch_norm("c", "b")
        .add("Shape", "b", "s")
        .add("Reshape", "b,s", "y")
    )
    feeds = {"x": np.ones((2, 3, 5, 7), np.float32)}
    model = same_outputs(n.model(shape=("N", 3, "H", "W")), feeds)
    assert model.graph.inputs[0].shape == ("N", 3, "H", "W")


@pytest.mark.parametrize("kind", ["sequence", "optional", "undefined", "unknown"])
def test_inputs_that_are_no_arrays(net: Any, prepared: Callable[..., Model], kind: str) -> None:
    inner = helper.make_tensor_type_proto(FLOAT, [1])
    given = {
        "sequence": helper.make_sequence_type_proto(inner),
        "optional": helper.make_optional_type_proto(inner),
        "undefined": onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor()),
        "unknown": onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=57)),
    }[kind]
    proto = net().add("Relu", "k", "y").const("k", np.ones(2, np.float32)).model(rank=1)
    proto.graph.input[0].type.CopyFrom(given)
    with refused("QD-MODEL-INPUT", "'x'"):
        prepared(proto)


def function(opset: int, name: str = "F") -> onnx.FunctionProto:
    nodes = [
        helper.make_node("Conv", ["a", "k"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["o"]),
    ]
    return helper.make_function(
        "my", name, ["a", "k"], ["o"], nodes, [helper.make_opsetid("", opset)]
    )


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_functions_are_inlined(net: Any, same_outputs: Same, opset: int) -> None:
    n = net(opset).random("k", 3, 3, 1, 1)
    n.functions, n.domains = [function(opset)], {"my": 1}
    n.add("F", "x,k", "f", "first", domain="my").add("F", "f,k", "y", "second", domain="my")
    model = same_outputs(n.model())
    assert [x.op_type for x in model.graph.nodes] == ["Conv", "Relu"] * 2
    assert [len(x.nodes) for x in find_layers(model.graph)] == [2, 2]
    assert not model.graph.proto.functions


def test_functions_that_carry_qdq(net: Any, same_outputs: Same) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["o"]),
    ]
    f = helper.make_function(
        "my", "FQ", ["a", "s", "z"], ["o"], nodes, [helper.make_opsetid("", 13)]
    )
    n = net(13).const("s", np.float32(0.1)).const("z", np.int8(0))
    n.functions, n.domains = [f], {"my": 1}
    model = same_outputs(n.add("FQ", "x,s,z", "d", domain="my").conv("d", "y").model())
    assert model.quantized


def test_functions_in_subgraphs(net: Any, same_outputs: Same) -> None:
    call = helper.make_node("F", ["x", "k"], ["t"], domain="my")
    branch = helper.make_graph([call], "b", [], [value("t")])
    n = net(17).random("k", 3, 3, 1, 1).const("zero", np.float32(0))
    n.functions, n.domains = [function(17)], {"my": 1}
    n.add("ReduceMax", "x", "m", keepdims=0).add("Greater", "m,zero", "c")
    model = same_outputs(
        n.add("If", "c", "y", "if", then_branch=branch, else_branch=branch).model()
    )
    assert set(model.graph.by_name["if"].implicit_inputs) == {"x", "k"}


def test_operators_of_other_domains_pass(net: Any, same_outputs: Same) -> None:
    n = net(11).conv("x", "c").batch_norm("c", "b")
    n.domains = {"com.microsoft": 1}
    model = same_outputs(n.add("Gelu", "b", "y", domain="com.microsoft").model())
    assert [x.op_type for x in model.graph.nodes] == ["Conv", "Gelu"]
    assert model.graph.nodes[1].domain == "com.microsoft"


def test_a_domain_without_an_opset(net: Any, prepared: Callable[..., Model]) -> None:
    with refused("QD-MODEL-SHAPES"):
        n = (
            net()
            .const("s", np.float32(1))
            .const("z", np.int8(0))
            .add("QuantizeLinear", "x,s,z", "q")
        )
        prepared(n.add("DequantizeLinear", "q,s,z", "d").add("Relu", "d", "y", domain="my").model())


@pytest.mark.parametrize("opset", [9, 13])
def test_a_constant_read_inside_and_outside(net: Any, same_outputs: Same, opset: int) -> None:
    body = helper.make_graph([helper.make_node("Mul", ["b", "k"], ["o"])], "t", [], [value("o")])
    n = net(opset).const("k", np.float32(-3)).const("zero", np.float32(0))
    n.conv("x", "c").batch_norm("c", "b").add("ReduceMax", "x", "m", keepdims=0)
    n.add("Greater", "m,zero", "cond").add("If", "cond", "i", then_branch=body, else_branch=body)
    same_outputs(n.add("Sub", "i,k", "y").model())
