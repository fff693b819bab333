"""Nodes in any order: what ONNX Runtime's own quantizer writes around an If."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug import compare
from qdebug.network.subgraphs import sort_nodes


def _network() -> onnx.ModelProto:
    """x -> Relu -> If (both branches read the Relu's output from outside) -> MatMul -> y."""
    branches = [
        helper.make_graph(
            [
                helper.make_node(op, ["r"], [f"{op}_b"], f"{op}_a"),
                helper.make_node("Identity", [f"{op}_b"], [f"{op}_c"], f"{op}_i"),
            ],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_c", TensorProto.FLOAT, [1, 4])],
        )
        for op in ("Tanh", "Neg")
    ]
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("ReduceMax", ["r"], ["m"], "max", keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], "cast", to=TensorProto.BOOL),
        helper.make_node(
            "If", ["b"], ["t"], "if", then_branch=branches[0], else_branch=branches[1]
        ),
        helper.make_node("MatMul", ["t", "w"], ["y"], "matmul"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("seed", range(8))
def test_shuffled_nodes_are_put_in_order(seed: int) -> None:
    model = _network()
    for graph in (model.graph, *(a.g for a in model.graph.node[3].attribute)):
        nodes = list(graph.node)
        random.Random(seed).shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    sort_nodes(model.graph)
    onnx.checker.check_model(model, full_check=True)
    assert [n.name for n in model.graph.node] == ["relu", "max", "cast", "if", "matmul"]


def test_nodes_in_order_and_in_a_circle_stay() -> None:
    nodes = [helper.make_node("Relu", [a], [b], a) for a, b in ("cb", "bc", "xd", "de")]
    graph = helper.make_graph(nodes, "g", [], [])
    sort_nodes(graph)
    assert [n.name for n in graph.node] == ["c", "b", "x", "d"]


def test_an_if_before_what_its_branches_read_is_compared(tmp_path: Path) -> None:
    ordered, shuffled = _network(), _network()
    del shuffled.graph.node[:]
    shuffled.graph.node.extend([ordered.graph.node[i] for i in (3, 4, 0, 1, 2)])
    feeds = {"x": np.random.default_rng(1).random((6, 1, 4), np.float32).reshape(6, 4)}
    results = []
    for name, model in (("ordered", ordered), ("shuffled", shuffled)):
        onnx.save(model, tmp_path / f"{name}.onnx")
        results.append(compare(tmp_path / f"{name}.onnx", inputs=feeds))
    assert results[0].outputs == results[1].outputs
