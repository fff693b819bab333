"""Layers: what a fused kernel takes in, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdebug.network.graph import Graph
from qdebug.network.layers import Layer, Layers, find_layers


def layers_of(proto: onnx.ModelProto) -> Layers:
    """The layers of a model as it is: folding would hide some of the patterns."""
    for i, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type}_{i}"
    return find_layers(Graph(onnx.shape_inference.infer_shapes(proto)))


def groups(proto: onnx.ModelProto) -> list[tuple[str, ...]]:
    return [layer.nodes for layer in layers_of(proto)]


def one(proto: onnx.ModelProto, name: str) -> Layer:
    return layers_of(proto).by_name[name]


def test_conv_relu(net: Any) -> None:
    layer = one(net().conv("x", "c", name="conv").add("Relu", "c", "y", "relu").model(), "conv")
    assert layer == Layer("conv", "Conv", ("conv", "relu"), "y", True, ("x",), "w")


@pytest.mark.parametrize(
    "op", ["Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish"]
)
def test_activations(net: Any, op: str) -> None:
    proto = net(17).conv("x", "c", name="conv").add(op, "c", "y", "act").model()
    assert groups(proto) == [("conv", "act")]


def test_clip_with_constant_bounds(net: Any) -> None:
    n = net().conv("x", "c", name="conv").const("lo", np.float32(0)).const("hi", np.float32(6))
    assert groups(n.add("Clip", "c,lo,hi", "y", "clip").model()) == [("conv", "clip")]


def test_prelu_slope_is_not_the_activation(net: Any) -> None:
    n = net().conv("x", "c", name="conv").random("slope", 4, 1, 1)
    assert groups(n.add("PRelu", "c,slope", "y", "prelu").model()) == [("conv", "prelu")]
    n = net().conv("x", "c", name="conv").random("data", 1, 4, 8, 8)
    assert groups(n.add("PRelu", "data,c", "y", "prelu").model()) == [("conv",), ("prelu",)]


@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid", "Tanh", "Softplus"])
@pytest.mark.parametrize("inputs", ["c,s", "s,c"])
def test_gated_activations(net: Any, gate: str, inputs: str) -> None:
    n = net().conv("x", "c", name="conv").add(gate, "c", "s", "gate").add("Mul", inputs, "y", "mul")
    layer = one(n.model(), "conv")
    assert layer.nodes == ("conv", "gate", "mul") and layer.output == "y"


def test_a_gate_that_others_read_is_not_taken_in(net: Any) -> None:
    n = net().conv("x", "c", name="conv").add("Sigmoid", "c", "s", "gate").add("Mul", "c,s", "p")
    assert ("conv",) in groups(n.add("Add", "p,s", "y").model())
    n = net().conv("x", "c", name="conv").add("Sigmoid", "c", "s", "gate").add("Mul", "c,s", "y")
    assert ("conv",) in groups(n.model("y,s"))


def test_a_gate_of_something_else(net: Any) -> None:
    n = net().conv("x", "c", name="conv").random("k", 1, 4, 8, 8)
    n.add("Sigmoid", "c", "s", "gate").add("Mul", "k,s", "y", "mul")
    assert groups(n.model()) == [("conv", "gate"), ("mul",)]


def residual(net: Any) -> Any:
    n = net().random("w2", 4, 4, 1, 1).conv("x", "a", name="first").add("Relu", "a", "b", "relu1")
    n.add("Conv", "b,w2", "c", "second")
    return n


@pytest.mark.parametrize("inputs", ["c,b", "b,c"])
def test_residual_add(net: Any, inputs: str) -> None:
    n = residual(net).add("Add", inputs, "s", "add").add("Relu", "s", "y", "relu2")
    layers = layers_of(n.model())
    assert [layer.nodes for layer in layers] == [("first", "relu1"), ("second", "add", "relu2")]
    assert layers.by_name["second"].quantized_inputs == ("b",)
    assert layers.of_node["add"] is layers.by_name["second"]


def test_a_residual_with_a_pair_of_its_own_is_taken_in(net: Any) -> None:
    """The placement that NVIDIA recommends; tools list the pair right before the Add."""
    n = residual(net).const("s1", np.float32(0.1)).const("z", np.int8(0))
    n.add("QuantizeLinear", "b,s1,z", "q", "quantize").add("DequantizeLinear", "q,s1,z", "d", "dq")
    n.add("Add", "c,d", "s", "add").add("Relu", "s", "y", "relu2")
    found = {nodes[0]: nodes for nodes in groups(n.model())}
    assert found["second"] == ("second", "add", "relu2")


def test_the_later_of_two_convs_takes_the_add(net: Any) -> None:
    n = net().conv("x", "a", name="early").conv("x", "b", "w2", name="late")
    n.add("Add", "a,b", "s", "add").add("Relu", "s", "y", "relu")
    layers = layers_of(n.model())
    assert [layer.nodes for layer in layers] == [("early",), ("late", "add", "relu")]
    assert layers.by_name["late"].quantized_inputs == ("x", "a")


def test_no_residual_that_is_computed_after_the_conv(net: Any) -> None:
    n = net().random("w1", 3, 3, 1, 1).add("Conv", "x,w1", "c", "conv").add("Neg", "x", "n", "neg")
    assert groups(n.add("Add", "c,n", "y", "add").model()) == [("conv",), ("neg",), ("add",)]


def test_no_residual_after_the_activation(net: Any) -> None:
    n = residual(net).add("Relu", "c", "d", "relu2").add("Add", "d,b", "y", "add")
    assert groups(n.model()) == [("first", "relu1"), ("second", "relu2"), ("add",)]


def test_no_residual_of_another_shape(net: Any) -> None:
    n = net().conv("x", "c", name="conv").add("ReduceMean", "x", "m", "mean", keepdims=1)
    assert ("conv",) in groups(n.add("Add", "c,m", "y", "add").model())


def test_a_tensor_added_to_itself(net: Any) -> None:
    proto = net().conv("x", "c", name="conv").add("Add", "c,c", "y", "add").model()
    assert groups(proto) == [("conv",), ("add",)]


def test_an_output_that_two_read_ends_the_group(net: Any) -> None:
    n = net().conv("x", "c", name="conv").add("Relu", "c", "r", "relu").add("Neg", "c", "n", "neg")
    assert groups(n.add("Add", "r,n", "y", "add").model())[0] == ("conv",)


def test_an_output_of_the_model_ends_the_group(net: Any) -> None:
    proto = net().conv("x", "c", name="conv").add("Relu", "c", "y", "relu").model("y,c")
    assert groups(proto) == [("conv",), ("relu",)]


def test_a_subgraph_that_reads_ends_the_group(net: Any) -> None:
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [None] * 4)
    body = helper.make_graph([helper.make_node("Neg", ["c"], ["o"])], "b", [], [out])
    n = net().conv("x", "c", name="conv").const("k", np.array(True)).add("Relu", "c", "r", "relu")
    n.add("If", "k", "i", "if", then_branch=body, else_branch=body).add("Add", "r,i", "y", "add")
    assert groups(n.model()) == [("conv",), ("relu",), ("if",), ("add",)]


def test_the_operators_of_other_domains_are_others(net: Any) -> None:
    n = net().conv("x", "c", name="conv").add("Relu", "c", "y", "relu", domain="my")
    n.domains = {"my": 1}
    assert groups(n.model()) == [("conv",), ("relu",)]
    n = net().random("w", 4, 3, 1, 1).add("Conv", "x,w", "y", "conv", domain="my")
    n.domains = {"my": 1}
    assert not one(n.model(), "conv").quantizable


def test_an_unfolded_batch_norm_belongs_to_its_conv(net: Any) -> None:
    n = net().conv("x", "c", name="conv").batch_norm("c", "b", "bn").add("Relu", "b", "y", "relu")
    assert groups(n.model()) == [("conv", "bn", "relu")]


def matmul(net: Any, build: Callable[[Any], object], rank: int | None = None) -> onnx.ModelProto:
    n = net()
    build(n)
    return n.model(shape=(2, 4, 4), rank=rank)


def test_matmul_with_bias(net: Any) -> None:
    def build(n: Any) -> None:
        n.random("w", 4, 4).random("b", 4)
        n.add("MatMul", "x,w", "m", "mm").add("Add", "b,m", "a", "bias").add(
            "Relu", "a", "y", "act"
        )

    layer = one(matmul(net, build), "mm")
    assert layer.nodes == ("mm", "bias", "act")
    assert (layer.quantized_inputs, layer.weight) == (("x",), "w")


def test_matmul_with_bias_and_residual(net: Any) -> None:
    def build(n: Any) -> None:
        n.random("w", 4, 4).random("b", 4).add("MatMul", "x,w", "m", "mm")
        n.add("Add", "m,b", "a", "bias").add("Add", "a,x", "y", "residual")

    layer = one(matmul(net, build), "mm")
    assert layer.nodes == ("mm", "bias", "residual") and layer.quantized_inputs == ("x",)


def test_only_one_bias(net: Any) -> None:
    def build(n: Any) -> None:
        n.random("w", 4, 4).random("b", 4).add("MatMul", "x,w", "m", "mm")
        n.add("Add", "m,b", "a", "bias").add("Add", "a,b", "y", "again")

    assert groups(matmul(net, build)) == [("mm", "bias"), ("again",)]


def test_a_constant_on_the_left(net: Any) -> None:
    layer = one(matmul(net, lambda n: n.random("w", 4, 4).add("MatMul", "w,x", "y", "mm")), "mm")
    assert (layer.quantizable, layer.quantized_inputs, layer.weight) == (True, ("x",), "w")


def test_matmul_of_a_tensor_with_itself(net: Any) -> None:
    layer = one(matmul(net, lambda n: n.add("MatMul", "x,x", "y", "mm")), "mm")
    assert (layer.quantizable, layer.quantized_inputs, layer.weight) == (True, ("x",), None)


def test_matmul_of_two_activations(net: Any) -> None:
    build = lambda n: n.add("Relu", "x", "r").add("MatMul", "x,r", "y", "mm")  # noqa: E731
    assert one(matmul(net, build), "mm").quantized_inputs == ("x", "r")


def test_gemm_of_two_constants_is_not_quantizable(net: Any) -> None:
    n = net().random("a", 4, 4).random("b", 4, 4).add("Gemm", "a,b", "g", "gemm")
    proto = n.add("Add", "x,g", "y").model(shape=(4, 4), rank=2)
    layer = one(proto, "gemm")
    assert not layer.quantizable and layer.quantized_inputs == ()


def test_gemm_bias_is_not_quantized(net: Any) -> None:
    n = net().random("w", 4, 5).add("Relu", "x", "r").add("Gemm", "x,w,r", "y", "gemm")
    assert one(n.model(shape=(4, 4), rank=2), "gemm").quantized_inputs == ("x",)


def test_conv_with_computed_weights(net: Any) -> None:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8]),
        helper.make_tensor_value_info("k", TensorProto.FLOAT, [4, 3, 1, 1]),
    ]
    n = net().add("Tanh", "k", "w").add("Conv", "x,w", "y", "conv")
    layer = one(n.model(inputs=inputs), "conv")
    assert (layer.quantized_inputs, layer.weight) == (("x", "w"), None)


def test_integer_nodes_and_constants_are_no_layers(net: Any) -> None:
    n = net().add("Shape", "x", "s", "shape").add("Constant", "", "k", "const", value_float=2.0)
    n.add("Reshape", "x,s", "r", "reshape").add("Mul", "r,k", "y", "mul")
    n.add("MatMul", "s,s", "i", "int-matmul")
    assert groups(n.model()) == [("reshape",), ("mul",)]


def test_the_output_is_the_first_float_one(net: Any) -> None:
    n = (
        net()
        .const("k", np.array([2]))
        .add("TopK", "x,k", "v,i", "topk")
        .add("Neg", "v", "y", "neg")
    )
    assert one(n.model(), "topk").output == "v"
