"""BatchNorm and constants are folded where TensorRT would, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.network.prepare import Model

Same = Callable[..., Model]


def ops(model: Model) -> list[str]:
    return [n.op_type for n in model.graph.nodes]


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("group", [1, 2])
def test_batch_norm_folds(
    net: Any, same_outputs: Same, kind: str, bias: bool, group: int, opset: int
) -> None:
    n = net(opset)
    shape = (4, 4 // group, 3, 3)
    n.random("w", *shape).random("wb", 4)
    n.add(kind, "x,w,wb" if bias else "x,w", "c", "conv", group=group)
    model = same_outputs(n.batch_norm("c", "y", "bn").model(shape=(2, 4, 8, 8)))
    assert ops(model) == [kind]
    assert model.origins == {"conv": ("conv", "bn")}


def test_batch_norm_of_one_dimension(net: Any, same_outputs: Same) -> None:
    n = net().random("w", 4, 3, 3).add("Conv", "x,w", "c").batch_norm("c", "y")
    assert ops(same_outputs(n.model(shape=(1, 3, 8), rank=3))) == ["Conv"]


def test_two_batch_norms_in_a_row(net: Any, same_outputs: Same) -> None:
    n = net().conv("x", "c", name="conv").batch_norm("c", "b", "one").batch_norm("b", "y", "two")
    model = same_outputs(n.model())
    assert model.origins == {"conv": ("conv", "one", "two")}


def test_weights_shared_by_a_folded_and_a_plain_conv(net: Any, same_outputs: Same) -> None:
    n = net().conv("x", "c").batch_norm("c", "b").conv("x", "d").add("Add", "b,d", "y")
    model = same_outputs(n.model())
    assert sorted(ops(model)) == ["Add", "Conv", "Conv"]
    assert model.graph.constant("w") is not None


def test_weights_shared_by_two_folded_convs(net: Any, same_outputs: Same) -> None:
    n = net().conv("x", "c", name="c").batch_norm("c", "b", "cb").conv("x", "d", name="d")
    model = same_outputs(n.batch_norm("d", "e", "db").add("Add", "b,e", "y", "add").model())
    assert model.origins == {"c": ("c", "cb"), "d": ("d", "db"), "add": ("add",)}


def test_weights_from_constant_nodes(net: Any, same_outputs: Same) -> None:
    n = net()
    w = numpy_helper.from_array(n.rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "w")
    n.add("Constant", "", "w", value=w).add("Conv", "x,w", "c", "conv").batch_norm("c", "y")
    assert ops(same_outputs(n.model())) == ["Conv"]


def test_weights_that_are_computed_from_constants(net: Any, same_outputs: Same) -> None:
    n = net().random("w", 4, 3, 3, 3).const("two", np.float32(2)).add("Mul", "w,two", "w2")
    assert ops(same_outputs(n.add("Conv", "x,w2", "c").batch_norm("c", "y").model())) == ["Conv"]


@pytest.mark.parametrize(
    "build",
    [
        lambda n: n.add("Relu", "x", "c").batch_norm("c", "y"),
        lambda n: n.add("Conv", "x,w", "c").add("Relu", "c", "r").batch_norm("r", "y"),
        lambda n: n.add("Conv", "x,w", "c").batch_norm("c", "b").add("Add", "b,c", "y"),
        lambda n: n.batch_norm("x", "b").add("Conv", "b,w", "y"),
    ],
    ids=["after-relu", "relu-between", "conv-read-twice", "before-conv"],
)
def test_batch_norm_that_cannot_fold_stays(net: Any, same_outputs: Same, build: Any) -> None:
    n = net().random("w", 4, 4, 1, 1)
    build(n)
    model = same_outputs(n.model(shape=(1, 4, 8, 8)))
    assert "BatchNormalization" in ops(model)
    assert all(len(names) == 1 for names in model.origins.values())


def test_a_conv_that_is_an_output_keeps_its_batch_norm(net: Any, same_outputs: Same) -> None:
    n = net().conv("x", "c").batch_norm("c", "y")
    assert ops(same_outputs(n.model("y,c"))) == ["Conv", "BatchNormalization"]


def test_a_conv_read_by_a_subgraph_keeps_its_batch_norm(net: Any, same_outputs: Same) -> None:
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [None] * 4)
    body = helper.make_graph([helper.make_node("Neg", ["c"], ["o"])], "b", [], [out])
    n = net().conv("x", "c").batch_norm("c", "b").const("zero", np.float32(0))
    n.add("ReduceMax", "b", "m", keepdims=0).add("Greater", "m,zero", "k")
    n.add("If", "k", "i", then_branch=body, else_branch=body).add("Add", "i,b", "y")
    assert "BatchNormalization" in ops(same_outputs(n.model()))


def test_training_mode_stays(net: Any, prepared: Callable[..., Model]) -> None:
    n = net(17).conv("x", "c").batch_norm("c", "y")
    n.nodes[-1].output.extend(["m2", "v2"])
    n.nodes[-1].attribute.append(helper.make_attribute("training_mode", 1))
    assert ops(prepared(n.model())) == ["Conv", "BatchNormalization"]


def test_dropout_and_identity_go(net: Any, same_outputs: Same) -> None:
    n = net().conv("x", "c", name="conv").add("Identity", "c", "i", "id").add("Relu", "i", "r", "r")
    model = same_outputs(n.add("Dropout", "r", "y", "drop").model())
    assert ops(model) == ["Conv", "Relu"]
    assert model.origins == {"conv": ("conv", "id"), "r": ("r", "drop")}


@pytest.mark.parametrize("suffix", ["_weight", "_bias"])
@pytest.mark.parametrize("source", ["weight", "activation", "subgraph"])
def test_names_that_the_folder_would_take(
    net: Any, same_outputs: Same, suffix: str, source: str
) -> None:
    """The folded weight is called <output>_weight, if nothing else has that name already."""
    taken, n = f"b{suffix}", net()
    if source == "weight":
        n.const(taken, np.float32(3))
    else:
        n.add("ReduceMax", "x", taken, "reduce", keepdims=0)
    n.conv("x", "c", name="conv").batch_norm("c", "b", "bn")
    if source == "subgraph":
        out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [None] * 4)
        body = helper.make_graph([helper.make_node("Mul", ["b", taken], ["o"])], "t", [], [out])
        n.const("zero", np.float32(0)).add("Greater", f"{taken},zero", "k")
        n.add("If", "k", "y", "mul", then_branch=body, else_branch=body)
    else:
        n.add("Mul", f"b,{taken}", "y", "mul")
    model = same_outputs(n.model())
    assert model.origins["conv"] == ("conv", "bn")
    assert model.graph.by_name["conv"].outputs == ("b",)
    assert taken in model.graph.by_name["mul"].reads


def test_the_users_names_survive_a_taken_name_at_an_output(net: Any, same_outputs: Same) -> None:
    n = net().const("y_weight", np.float32(3)).conv("x", "c").batch_norm("c", "y")
    n.add("Mul", "y,y_weight", "z")
    model = same_outputs(n.model("y,z"))
    assert model.graph.outputs == ("y", "z")
    assert not any("folded" in t for t in (*model.graph.producers, *model.graph.outputs))


def test_constants_that_cannot_be_computed_stay(
    net: Any, prepared: Callable[..., Model], caplog: Any
) -> None:
    n = net().const("k", np.ones(4, np.float32)).const("shape", [3, 5]).conv("x", "c", name="conv")
    n.add("Identity", "shape", "s").add("Reshape", "k,s", "r", "reshape").add("Mul", "c,r", "y")
    proto = n.model()
    with caplog.at_level(logging.WARNING, "qdebug"):
        model = prepared(proto)
    assert ops(model) == ["Conv", "Reshape", "Mul"]
    assert "not folded" in caplog.text


def test_folding_is_silent(net: Any, prepared: Callable[..., Model], capfd: Any) -> None:
    n = net().conv("x", "c").batch_norm("c", "y")
    n.weights[-1].CopyFrom(numpy_helper.from_array(np.full(4, -1, np.float32), "bn_var"))
    prepared(n.model())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_models_with_qdq_are_left_alone(net: Any, same_outputs: Same, opset: int) -> None:
    n = net(opset).const("s", np.float32(0.05)).const("z", np.int8(0))
    n.add("QuantizeLinear", "x,s,z", "q", "q").add("DequantizeLinear", "q,s,z", "d", "dq")
    n.conv("d", "c", name="conv").batch_norm("c", "b", "bn").add("Identity", "b", "y", "id")
    model = same_outputs(n.model())
    assert model.quantized
    assert [n.name for n in model.graph.nodes] == ["q", "dq", "conv", "bn", "id"]


def test_a_plain_model_is_not_quantized(net: Any, prepared: Callable[..., Model]) -> None:
    assert not prepared(net().conv("x", "y").model()).quantized


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_fp16_models_fold_in_fp16(net: Any, same_outputs: Same, opset: int) -> None:
    n = net(opset).random("w", 4, 3, 3, 3, dtype="float16")
    n.add("Conv", "x,w", "c", "conv").batch_norm("c", "y", dtype="float16")
    model = same_outputs(n.model(elem_type=TensorProto.FLOAT16))
    assert ops(model) == ["Cast", "Conv", "Cast"]
    assert {Graph(model.graph.proto).types[t] for t in model.graph.nodes[1].inputs} == {
        TensorProto.FLOAT16
    }


def test_nodes_that_are_called_as_tensors(net: Any, same_outputs: Same) -> None:
    """Folding must not take the one for the other."""
    n = net().const("x_1", np.float32([0.97, -0.57])).const("h", np.float32([0.69, -0.95]))
    n.add("Sub", "x_1,x_1", "i2", "x_1_iter2").add("Tanh", "i2", "v16", "a_iter2")
    n.add("Add", "v16,x_1", "a_iter0", "i2").add("Neg", "a_iter0", "v19", "Identity_y")
    n.add("Add", "v19,h", "a", "h").add("Mul", "x,x", "v21", "a").add("Mul", "v21,a", "v22", "x_1")
    model = same_outputs(n.add("Neg", "v22", "y", "out").model(shape=(3, 2), rank=2))
    assert [node.name for node in model.graph.nodes] == ["a", "x_1", "out"]
    np.testing.assert_allclose(model.graph.constant("a"), [-0.28, -0.38], rtol=1e-5)


def test_a_reshape_does_not_follow_the_output_that_is_declared(
    net: Any, same_outputs: Same
) -> None:
    """As a recognizer's exporter declares [1, n] for scores of (n, 1, classes)."""
    proto = net(13).add("Shape", "x", "s").const("two", np.array([0, 2])).const("last", -1)
    proto = proto.add("Gather", "s,two", "front").const("end", np.array([-1]))
    proto = proto.add("Concat", "front,end", "shape", axis=0).add("Relu", "x", "r")
    proto = proto.add("Reshape", "r,shape", "y").model()
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "n"]))
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "width"
    same_outputs(proto, {"x": np.ones((1, 3, 8, 8), np.float32)})


def test_a_size_that_may_be_zero_is_not_taken_for_another(net: Any, same_outputs: Same) -> None:
    """As TensorFlow's exporter crops: to the end where there is nothing to crop."""
    n = net(17).const("two", [2]).const("none", [0]).const("end", [2**31 - 1]).const("axis", [2])
    n.add("Shape", "x", "shape").add("Gather", "shape,axis", "height")
    n.add("Div", "height,two", "half").add("Mul", "half,two", "even").add(
        "Sub", "height,even", "crop"
    )
    n.add("Equal", "crop,none", "fits")
    n.add("Cast", "fits", "is", to=TensorProto.INT64).add("Mul", "is,end", "whole")
    n.add("Neg", "crop", "before").add("Add", "before,whole", "ends")
    n.add("Slice", "x,none,ends,axis", "y")
    same_outputs(n.model(shape=(1, 3, "height", 8)))
    feeds = {"x": np.ones((1, 3, 7, 8), np.float32)}
    same_outputs(n.model(shape=(1, 3, "height", 8)), feeds)


@pytest.mark.parametrize("pick", ["gather", "slice"])
def test_a_fixed_axis_of_a_free_shape_is_constant(net: Any, same_outputs: Same, pick: str) -> None:
    """As an exporter scales attention by the length of the last axis."""
    n = net().add("Shape", "x", "s").const("one", np.array([1])).const("two", np.array([2]))
    n.add("Gather", "s,one", "c") if pick == "gather" else n.add("Slice", "s,one,two", "c")
    n.add("Cast", "c", "f", to=TensorProto.FLOAT).add("Sqrt", "f", "r").add("Div", "x,r", "y")
    model = same_outputs(n.model(shape=("n", 3, "height", 8)))
    assert ops(model) == ["Div"]


def test_a_free_axis_stays_computed(net: Any, same_outputs: Same) -> None:
    n = net().add("Shape", "x", "s").const("two", np.array([2])).add("Gather", "s,two", "h")
    n.add("Cast", "h", "f", to=TensorProto.FLOAT).add("Div", "x,f", "y")
    assert ops(same_outputs(n.model(shape=("n", 3, "height", 8)))) == [
        "Shape",
        "Gather",
        "Cast",
        "Div",
    ]


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("neutral", [True, False])
def test_arithmetic_that_changes_nothing_goes(
    net: Any, same_outputs: Same, operator: str, neutral: bool
) -> None:
    value = (0 if operator in ("Add", "Sub") else 1) if neutral else 2
    n = net().const("k", np.float32(value)).add("Relu", "x", "r", "relu")
    model = same_outputs(n.add(operator, "r,k", "m", "m").add("Neg", "m", "y").model())
    assert ops(model) == (["Relu", "Neg"] if neutral else ["Relu", operator, "Neg"])


def test_ones_that_broadcast_stay(net: Any, same_outputs: Same) -> None:
    n = net().const("k", np.ones((2, 1, 1, 1), np.float32)).add("Mul", "x,k", "y")
    assert ops(same_outputs(n.model())) == ["Mul"]


@pytest.mark.parametrize("is_taken", [True, False])
def test_an_if_that_a_constant_decides(net: Any, same_outputs: Same, is_taken: bool) -> None:
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [None] * 4)
    branches = {
        name: helper.make_graph([helper.make_node(op, ["x"], ["o"], "inner")], name, [], [out])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    n = (
        net()
        .const("k", np.array(not is_taken))
        .add("Not", "k", "c")
        .add("If", "c", "i", **branches)
    )
    model = same_outputs(n.add("Relu", "i", "y", "relu").model())
    assert ops(model) == ["Neg" if is_taken else "Abs", "Relu"]
    assert model.origins["inner"] == ("inner",)


def test_what_draws_random_numbers_is_not_folded(net: Any, prepared: Callable[..., Model]) -> None:
    n = net().const("k", np.ones((1, 3, 8, 8), np.float32)).add("RandomNormalLike", "k", "r")
    assert ops(prepared(n.add("Add", "x,r", "y").model())) == ["RandomNormalLike", "Add"]
