"""Modules of a framework by the names that exporters write."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.commands.framework.framework_check import aligned, candidates_of, scope_of
from qdebug.network.graph import Graph


@pytest.mark.parametrize(
    ("node", "module"),
    [
        ("/conv1/Conv", "conv1"),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/stem/stem.0/Conv", "stem.0"),
        ("/blocks.0/norm/LayerNormalization", "blocks.0.norm"),
        ("/layer1/layer1.0/layer1.0.0/Conv_1", "layer1.0.0"),
        ("/encoder/layer.11/attention/self/MatMul", "encoder.layer.11.attention.self"),
        ("Conv_3", ""),
    ],
)
def test_scopes_of_torchscript(node: str, module: str) -> None:
    assert ".".join(scope_of(node)) == module


def graph() -> Graph:
    """Two modules: `a` of two nodes by TorchScript's names, `b.0` by torch.export's metadata."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["/a/MatMul_output_0"], "/a/MatMul"),
        helper.make_node("Relu", ["/a/MatMul_output_0"], ["/a/Relu_output_0"], "/a/Relu"),
        helper.make_node("Tanh", ["/a/Relu_output_0"], ["tanh"], "node_tanh"),
        helper.make_node("Neg", ["tanh"], ["y"], "node_neg"),
    ]
    scopes = nodes[2].metadata_props.add()
    scopes.key, scopes.value = "pkg.torch.onnx.name_scopes", "['', 'b', 'b.0', 'tanh']"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    made = helper.make_graph(nodes, "g", [x], [y], [weight])
    return Graph.inferred(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]))


def test_the_tensors_that_a_module_may_be() -> None:
    found = {c.name: c for c in candidates_of(["a", "b.0", "b", "c", "output_0", "tanh"], graph())}
    assert found["a"].tensors == ("/a/Relu_output_0", "/a/MatMul_output_0")
    assert found["b.0"].tensors == found["b"].tensors == ("tanh",)
    assert found["c"].tensors == ()
    assert (found["output_0"].tensors, found["output_0"].how) == (("y",), "order")
    assert (found["tanh"].tensors, found["tanh"].how) == (("tanh",), "name")


def test_axes_that_a_framework_has_otherwise() -> None:
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    last = array.transpose(0, 2, 3, 1)
    given = aligned(last, (2, 3, 4, 5))
    assert given is not None and np.array_equal(given, array)
    flat = aligned(array[:, :, :1, :1], (2, 3))
    assert flat is not None and np.array_equal(flat, array[:, :, 0, 0])
    assert aligned(array, (2, 60)) is None
