"""Layers of the prepared graph and nodes of the user's file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.export.file_nodes import FileNodes


def nodes_of(path: Path, opset: int = 13) -> FileNodes:
    model = prepare_model(read_model(path), opset)
    return FileNodes(model, find_layers(model.graph))


def indices(nodes: FileNodes) -> list[list[int]]:
    return [[n.index for n in found] for found in nodes.by_layer.values()]


def test_folded_unnamed_and_equally_named_nodes(odd_net: Path) -> None:
    nodes = nodes_of(odd_net)
    # BatchNorm (3) is folded into its convolution, whose layer also takes Add and Relu in.
    assert indices(nodes) == [[0, 1], [2, 3, 4, 5], [6], [7], [8], [9], [10], [11]]
    first = next(iter(nodes.by_layer.values()))
    assert [n.node.name for n in first] == ["", "dup"]
    names = {**nodes.renamed}
    assert set(names) == {0, 1, 2}
    given = [n.name for n in onnx.load(odd_net).graph.node]
    final = [names.get(i, name) for i, name in enumerate(given)]
    assert max(Counter(final).values()) == 1 and all(final)


def test_nodes_that_the_opset_converter_splits(kit: SimpleNamespace, tmp_path: Path) -> None:
    node = helper.make_node
    path = tmp_path / "old.onnx"
    nodes = [node("Softmax", ["x"], ["y"], "soft", axis=1), node("Relu", ["y"], ["z"], "relu")]
    onnx.save(kit.make(nodes, {"x": (2, 3, 4)}, ["z"], opset=11), path)
    found = nodes_of(path)
    assert len(found.model.graph.nodes) > 2
    held = {name: [n.name for n in nodes] for name, nodes in found.by_layer.items() if nodes}
    assert held == {"soft": ["soft"], "relu": ["relu"]}
    assert not found.absent


def test_constant_parts_belong_to_no_layer(kit: SimpleNamespace, tmp_path: Path) -> None:
    node = helper.make_node
    path = tmp_path / "net.onnx"
    weights: dict[str, Any] = {"w": np.ones((4, 3), np.float32)}
    nodes = [
        node("Transpose", ["w"], ["wt"], "transpose"),
        node("Identity", ["x"], ["i"], "identity"),
        node("MatMul", ["i", "wt"], ["y"], "mm"),
    ]
    onnx.save(kit.make(nodes, {"x": (2, 3)}, ["y"], weights), path)
    found = nodes_of(path)
    assert [n.name for nodes in found.by_layer.values() for n in nodes] == ["identity", "mm"]
    assert "wt" in found.computed


def test_a_layer_inside_a_local_function_stands_in_no_node(tmp_path: Path) -> None:
    node = helper.make_node
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    body = [node("MatMul", ["a", "b"], ["m"], "inner"), node("Exp", ["m"], ["c"], "exp")]
    function = helper.make_function("mine", "Op", ["a", "b"], ["c"], body, opsets)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("Op", ["x", "w"], ["y"], "call", domain="mine")],
        "g",
        [value("x", 1, [2, 3]), value("w", 1, [3, 4])],
        [value("y", 1, [2, 4])],
    )
    proto = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    onnx.save(proto, tmp_path / "f.onnx")
    found = nodes_of(tmp_path / "f.onnx")
    held = [[n.name for n in nodes] for nodes in found.by_layer.values()]
    assert sorted(map(len, held)) == [0, 1] and len(found.absent) == 1
