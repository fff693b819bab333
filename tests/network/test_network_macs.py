"""Work of layers against figures counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.macs import Work, work_of


def _graph(op: str, inputs: list[list[int | str]], weight: tuple[int, ...] | None, **attributes):
    names = [f"x{i}" for i in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in zip(names, inputs, strict=True)
    ]
    constants = []
    if weight is not None:
        constants = [numpy_helper.from_array(np.zeros(weight, np.float32), "w")]
        names.append("w")
    node = helper.make_node(op, names, ["y"], name="n", **attributes)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", values, [output], constants)
    return Graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("op", "inputs", "weight", "attributes", "macs", "elements"),
    [
        ("Conv", [["N", 8, 10, 10]], (16, 8, 3, 3), {"pads": [1] * 4}, 3 * 100 * 16 * 72, 4800),
        ("Conv", [["N", 8, 10, 10]], (8, 1, 3, 3), {"group": 8}, 3 * 64 * 8 * 9, 3 * 64 * 8),
        ("ConvTranspose", [["N", 8, 4, 4]], (8, 5, 2, 2), {"strides": [2, 2]}, 7680, 3 * 5 * 64),
        ("Gemm", [["N", 20]], (20, 30), {}, 3 * 20 * 30, 3 * 30),
        ("Gemm", [["N", 20]], (30, 20), {"transB": 1}, 3 * 20 * 30, 3 * 30),
        ("MatMul", [["N", 4, 7], ["N", 7, 5]], None, {}, 3 * 4 * 7 * 5, 3 * 4 * 5),
        ("Softmax", [["N", 9]], None, {}, 0, 27),
    ],
)
def test_work(op, inputs, weight, attributes, macs, elements) -> None:
    graph = _graph(op, inputs, weight, **attributes)
    shapes = {f"x{i}": [3, *shape[1:]] for i, shape in enumerate(inputs)}
    assert work_of(find_layers(graph), shapes) == {"n": Work(macs, elements)}
    assert graph.shapes["x0"][0] == "N"  # the model itself is as it was


def test_an_axis_that_stays_unknown_counts_as_one() -> None:
    graph = _graph("Gemm", [["N", 20]], (20, 30))
    assert work_of(find_layers(graph), {}) == {"n": Work(600, 30)}
