"""Which networks have samples on the leading axis of their inputs, by their shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.network.sampleaxis import sample_inputs

node = helper.make_node
MEAN = node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)
CONV = [
    node("Unsqueeze", ["x", "front"], ["u"]),
    node("Conv", ["u", "w"], ["c"]),
    node("Squeeze", ["c", "front"], ["s"]),
]
FLAT = node("Reshape", ["x", "flat"], ["y"])
SWAP = node("Transpose", ["x"], ["y"], perm=[1, 0])
SAME = node("Identity", ["x"], ["y"])
FOUND = node("NonZero", ["x"], ["y"])


@pytest.mark.parametrize(
    ("nodes", "given", "declared", "holds"),
    [
        ([SAME], ["N", 6], ["N", 6], True),
        ([SAME], ["N", 6], ["M", "K"], True),
        ([SWAP], ["time", 6], [6, "T"], True),
        ([FLAT], ["N", 6], ["rows"], True),
        ([FOUND], ["N", 6], ["a", "b"], True),
        ([MEAN], [4, 6], [6], True),
        ([MEAN], ["time", 6], ["classes"], False),
        ([*CONV, node("Identity", ["s"], ["y"])], ["time", 6], ["a", "b"], False),
    ],
    ids=["same", "renamed", "turned", "in rows", "unknown", "fixed", "mean", "frames"],
)
def test_an_axis_of_samples(
    nodes: list[NodeProto],
    given: Sequence[int | str],
    declared: Sequence[int | str],
    holds: bool,
) -> None:
    constants = [
        numpy_helper.from_array(np.array(v, t), n)
        for n, v, t in (
            ("front", [0, 1], np.int64),
            ("flat", [-1], np.int64),
            ("w", np.ones((1, 1, 5, 1)), np.float32),
        )
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, given)
    kind = TensorProto.INT64 if nodes == [FOUND] else TensorProto.FLOAT
    y = helper.make_tensor_value_info("y", kind, declared)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (found,) = sample_inputs(Graph.inferred(proto))
    assert found.holds_samples is holds
