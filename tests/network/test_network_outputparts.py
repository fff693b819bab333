"""The parts of an output: found behind what moves values, pooled over the levels of a pyramid."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.network.outputparts import joined_parts, output_parts

Nodes = list[onnx.NodeProto]


class _Net:
    """A network in the making: a backbone's features at two sizes, and what is added to it."""

    def __init__(self) -> None:
        self.nodes: Nodes = []
        self.constants: list[TensorProto] = []
        self.shapes = {"p3": ["N", 8, 4, 4], "p4": ["N", 8, 2, 2]}

    def constant(self, values: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def op(self, op_type: str, *inputs: str, name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def conv(self, source: str, channels: int, name: str) -> str:
        weight = self.constant(np.ones((channels, 8, 1, 1), np.float32))
        return self.op("Conv", source, weight, name=name)

    def rows(self, source: str, channels: int, name: str) -> str:
        shape = self.constant(np.array([0, channels, -1], np.int64))
        return self.op("Reshape", source, shape, name=name)

    def head(self, source: str, channels: int, name: str) -> str:
        return self.rows(self.conv(source, channels, f"{name}_conv"), channels, name)

    def parts(self, output: str) -> list[tuple[str, int, int]]:
        given = [helper.make_tensor_value_info(n, 1, s) for n, s in self.shapes.items()]
        finals = [helper.make_tensor_value_info(output, 1, None)]
        graph = helper.make_graph(self.nodes, "g", given, finals, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        found = output_parts(Graph.inferred(model)).get(output)
        return [(p.branch, p.first, p.last) for p in found.parts] if found else []


def _boxes_and_scores(net: _Net) -> str:
    scores = net.op("Sigmoid", net.head("p3", 3, "logits"), name="scores")
    return net.op("Concat", net.head("p3", 4, "boxes"), scores, name="joined", axis=1)


def _behind_moves(net: _Net) -> str:
    turned = net.op("Transpose", _boxes_and_scores(net), name="turned", perm=[0, 2, 1])
    zero = net.constant(np.zeros((), np.uint8))
    step = net.constant(np.float32(0.1))
    codes = net.op("QuantizeLinear", turned, step, zero, name="codes")
    axes = net.constant(np.array([3], np.int64))
    wider = net.op(
        "Unsqueeze", net.op("DequantizeLinear", codes, step, zero, name="dq"), axes, name="w"
    )
    return net.rows(wider, 16, "out")


def _merged(net: _Net) -> str:
    return net.rows(_behind_moves(net), 112, "flat")  # places and channels in one axis


def _pyramid_of_parts(net: _Net) -> str:
    levels = []
    for source in ("p3", "p4"):
        boxes = net.conv(source, 4, f"{source}_boxes")
        scores = net.op("Sigmoid", net.conv(source, 3, f"{source}_l"), name=f"{source}_scores")
        joined = net.op("Concat", boxes, scores, name=f"{source}_joined", axis=1)
        levels.append(net.rows(joined, 7, f"{source}_rows"))
    return net.op("Concat", *levels, name="out", axis=2)


def _decoded_pyramid(net: _Net) -> str:
    """Boxes are cut out and decoded, and joined with the scores that stayed as they are."""
    joined = _pyramid_of_parts(net)
    cut = [net.constant(np.array(x, np.int64)) for x in ([0], [4], [7], [1])]
    boxes = net.op("Slice", joined, cut[0], cut[1], cut[3], name="raw")
    decoded = net.op("Exp", boxes, name="decoded")
    rest = net.op("Slice", joined, cut[1], cut[2], cut[3], name="rest")
    return net.op("Concat", decoded, rest, name="final", axis=1)


def _levels_only(net: _Net) -> str:
    return net.op("Concat", net.head("p3", 4, "a"), net.head("p4", 4, "b"), name="out", axis=2)


def _cache(net: _Net) -> str:
    net.shapes["past"] = ["N", 8, 3, 4]
    return net.op("Concat", "past", net.op("Relu", "p3", name="new"), name="out", axis=2)


def _two_classifiers(net: _Net) -> str:
    """Alike, but what joins them is the axis of classes."""
    heads = [net.op("GlobalMaxPool", net.conv("p3", 3, f"h{k}"), name=f"s{k}") for k in range(2)]
    return net.op("Concat", *heads, name="out", axis=1)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_boxes_and_scores, [("boxes", 0, 3), ("scores", 4, 6)]),
        (_behind_moves, [("boxes", 0, 3), ("scores", 4, 6)]),
        (_merged, []),
        (_pyramid_of_parts, [("p3_boxes", 0, 3), ("p3_scores", 4, 6)]),
        (_decoded_pyramid, [("decoded", 0, 3), ("p3_scores", 4, 6)]),
        (_levels_only, []),
        (_cache, []),
        (_two_classifiers, [("s0", 0, 2), ("s1", 3, 5)]),
    ],
)
def test_parts(make: Callable[[_Net], str], expected: list[tuple[str, int, int]]) -> None:
    net = _Net()
    assert net.parts(make(net)) == expected


def test_parts_of_an_array() -> None:
    net = _Net()
    given = [helper.make_tensor_value_info(n, 1, s) for n, s in net.shapes.items()]
    last = _boxes_and_scores(net)
    graph = helper.make_graph(net.nodes, "g", given, [], net.constants)
    found = joined_parts(Graph.inferred(helper.make_model(graph)), last)
    assert found is not None
    values = np.arange(14).reshape(1, 7, 2)
    assert [x.tolist() for x in found.of(values)] == [
        values[:, :4].tolist(),
        values[:, 4:].tolist(),
    ]
