"""The network of a page, from a graph and from what results say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.page.network import kernels_of, network_of
from qdebug.plan.description import Description, describe
from qdebug.plan.quantize import symmetric_grid


def quantized() -> Graph:
    """x → Q → DQ → Conv (weight behind DQ) → Relu → Q → DQ → y, and a Shape of x."""
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q1"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "dq1"),
        node("DequantizeLinear", ["w", "s", "z"], ["wd"], "dqw"),
        node("Conv", ["xd", "wd"], ["c"], "conv"),
        node("Relu", ["c"], ["r"], "relu"),
        node("QuantizeLinear", ["r", "s", "z"], ["rq"], "q2"),
        node("DequantizeLinear", ["rq", "s", "z"], ["y"], "dq2"),
        node("Shape", ["xd"], ["shape"], "shape"),
    ]
    values = {"w": np.ones((2, 3, 1, 1), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 3, 4, 4))],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("shape", TensorProto.INT64, None),
        ],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return Graph(onnx.shape_inference.infer_shapes(model))


@pytest.fixture
def description() -> Description:
    graph = quantized()
    return describe(graph, find_layers(graph), {"x": symmetric_grid(12.7)})


def test_q_and_dq_are_left_out(description: Description) -> None:
    assert [node.name for node in description.nodes] == ["conv", "relu", "shape"]
    conv, relu, shape = description.nodes
    assert conv.inputs == ("x",) and conv.weight == (2, 3, 1, 1) and conv.outputs == ("c",)
    assert relu.layer == conv.layer == "conv" and shape.inputs == ("x",)
    assert description.inputs == ("x",) and description.outputs == ("r", "shape")
    tensors = {tensor.name: tensor for tensor in description.tensors}
    assert tensors["x"].shape == (-1, 3, 4, 4) and tensors["r"].shape == (-1, 2, 4, 4)
    grid = tensors["x"].grid
    assert grid is not None and (grid.low, grid.high) == (-12.7, 12.7)
    assert grid.step == pytest.approx(0.1) and tensors["r"].grid is None


def test_a_scale_that_is_nan_shows_no_values() -> None:
    graph = quantized()
    broken = replace(symmetric_grid(12.7), scale=np.array(np.nan, np.float32))
    described = describe(graph, find_layers(graph), {"x": broken})
    assert all(tensor.grid is None for tensor in described.tensors)


def test_a_description_survives_its_text(description: Description) -> None:
    assert Description.from_text(description.to_text()) == description
    for text in ("[]", "{}", '{"nodes": 3}', '"text"'):
        with pytest.raises(ValueError):
            Description.from_text(text)


def test_positions_and_precisions(description: Description) -> None:
    audit = {"layers": [{"name": "conv", "requested": "int8", "built": "fp16", "nodes": []}]}
    result = {
        "schema": "qdebug.compare/1",
        "layers": [{"name": "conv", "precision": "int8", "nodes": ["conv", "relu"]}],
        "engine": {"audit": audit},
    }
    network = network_of(description, result)
    conv, relu, shape = network.nodes
    assert conv.inputs == () and relu.inputs == (0,) and network.readers_of_inputs == ((0, 2),)
    assert (conv.layer, relu.layer, shape.layer) == (0, 0, None)
    assert (conv.planned, relu.built, shape.planned) == ("int8", "fp16", "")
    assert (conv.shape, conv.weight) == ("?×2×4×4", "2×3×1×1")
    alone = network_of(description, None)
    assert all((n.layer, n.planned, n.built) == (None, "", "") for n in alone.nodes)


def test_kernels_that_were_timed(description: Description) -> None:
    row = {
        "name": "conv + relu",
        "ms": 0.5,
        "onnx_nodes": ["relu", "conv", "gone"],
        "precision": "int8",
    }
    name = "Reformatting CopyNode for Input Tensor 0 to conv + relu"
    copy = {"name": name, "ms": 0.1, "onnx_nodes": [], "precision": None}
    result: dict[str, Any] = {"schema": "qdebug.compare/1"}
    result["engine"] = {"execution": {"kernels": [copy, row]}, "audit": None}
    first, second = kernels_of(description, result)
    assert (first.role, first.nodes, first.precision) == ("reformat", (0, 1), "")
    assert (second.role, second.nodes, second.ms) == ("matrix", (1, 0), 0.5)
    assert kernels_of(description, {"schema": "qdebug.compare/1", "engine": None}) == ()


def test_kernels_of_an_engine_that_was_only_built(description: Description) -> None:
    nodes = [{"name": n, "engine_layers": ["conv + relu"]} for n in ("conv", "relu")]
    audited = {"name": "conv", "built": "int8", "requested": "int8", "engine_layer": "conv + relu"}
    result = {
        "schema": "qdebug.compare/1",
        "engine": {"execution": None, "audit": {"layers": [{**audited, "nodes": nodes}]}},
    }
    (kernel,) = kernels_of(description, result)
    assert (kernel.nodes, kernel.precision, kernel.ms) == ((0, 1), "int8", None)


def test_kernels_of_an_inspection(description: Description) -> None:
    tensor = {"name": "x", "dtype": "int8", "format": "NHWC", "dims": [-1, 3]}
    row = {"name": "k", "type": "CaskConvolution", "inputs": [tensor], "outputs": [],
           "tactic": "t9", "onnx_nodes": ["conv"], "time_ms": 0.25,
           "precision": "int8", "role": "matrix"}  # fmt: skip
    (kernel,) = kernels_of(description, {"schema": "qdebug.inspect/1", "layers": [row]})
    assert (kernel.role, kernel.ms, kernel.nodes) == ("matrix", 0.25, (0,))
    assert kernel.detail == "reads x int8 ?×3 NHWC; tactic t9"
    network = network_of(description, {"schema": "qdebug.inspect/1", "layers": [row]})
    assert network.nodes[0].layer == 0 and network.nodes[1].layer is None


def test_a_node_is_built_in_the_layer_that_does_its_work(description: Description) -> None:
    def row(name: str, role: str, precision: str, *nodes: str) -> dict[str, Any]:
        return {"name": name, "role": role, "precision": precision, "onnx_nodes": list(nodes)}

    rows = [
        row("copy", "reformat", "fp32", "conv"),
        row("quantize", "other", "fp32", "conv", "relu"),
        row("conv", "matrix", "int8", "conv"),
    ]
    network = network_of(description, {"schema": "qdebug.inspect/1", "layers": rows})
    conv, relu, shape = network.nodes
    assert (conv.layer, conv.built) == (2, "int8")
    assert (relu.layer, relu.built) == (1, "fp32")
    assert (shape.layer, shape.built) == (None, "")


def test_a_compiled_kernel_is_what_its_name_lists(description: Description) -> None:
    """It computes the end of one convolution and the beginning of the next, and multiplies none."""
    row = {
        "name": "__myl_MulAddMaxMin_myl0_2",
        "ms": 0.1,
        "onnx_nodes": ["conv"],
        "precision": None,
    }
    result = {"schema": "qdebug.compare/1", "engine": {"execution": {"kernels": [row]}}}
    (kernel,) = kernels_of(description, result)
    assert kernel.role == "other" and kernel.nodes == (0,)
