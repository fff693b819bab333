"""For any graph: every float node is in exactly one layer, and no layer waits on itself."""

from __future__ import annotations

import hypothesis.strategies as st
import onnx
from hypothesis import given, settings
from onnx import TensorProto, helper

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layers, find_layers

UNARY = ["Relu", "Sigmoid", "HardSwish", "Neg", "Softmax", "Conv", "MatMul", "Bias", "Shape"]
BINARY = ["Add", "Mul", "MatMul2", "Add", "Mul"]
SHAPE = [1, 4, 4, 4]

steps = st.lists(
    st.tuples(
        st.sampled_from(UNARY + BINARY),
        st.integers(0, 5),
        st.integers(0, 5),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


def build(plan: list[tuple[str, int, int, bool]]) -> Graph:
    """Each step reads one or two of the latest tensors; a flag makes its result an output."""
    tensors, outputs, nodes = ["x"], [], []
    for i, (op, first, second, is_output) in enumerate(plan):
        a, b = (tensors[-1 - min(k, len(tensors) - 1)] for k in (first, second))
        out, name = f"t{i}", f"n{i}"
        if op == "Shape":
            nodes.append(helper.make_node("Shape", [a], [out], name))
            continue
        inputs = {
            "Conv": [a, "w"],
            "MatMul": [a, "m"],
            "Bias": [a, "b"],
            "MatMul2": [a, b],
            "Add": [a, b],
            "Mul": [a, b],
        }.get(op, [a])
        kind = {"Bias": "Add", "MatMul2": "MatMul"}.get(op, op)
        nodes.append(helper.make_node(kind, inputs, [out], name))
        tensors.append(out)
        if is_output:
            outputs.append(out)
    value = helper.make_tensor_value_info
    weights = {"w": [4, 4, 1, 1], "m": [4, 4], "b": [4, 1, 1]}
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, SHAPE)],
        [value(t, TensorProto.FLOAT, SHAPE) for t in outputs or [tensors[-1]] if t != "x"],
        [
            helper.make_tensor(k, TensorProto.FLOAT, s, bytes(4 * _size(s)), raw=True)
            for k, s in weights.items()
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Graph(onnx.shape_inference.infer_shapes(proto))


def _size(shape: list[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


@settings(max_examples=250, deadline=None)
@given(steps)
def test_layers_partition_the_float_nodes(plan: list[tuple[str, int, int, bool]]) -> None:
    graph = build(plan)
    layers = find_layers(graph)
    found = [name for layer in layers for name in layer.nodes]
    expected = [n.name for n in graph.nodes if n.op_type != "Shape"]
    assert sorted(found) == sorted(expected)
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    for layer in layers:
        positions = [order[name] for name in layer.nodes]
        assert positions == sorted(positions)
        assert layer.name == layer.nodes[0]
        assert layer.output in graph.by_name[layer.nodes[-1]].outputs
    anchors = [order[layer.name] for layer in layers]
    assert anchors == sorted(anchors)


@settings(max_examples=250, deadline=None)
@given(steps)
def test_layers_are_convex_and_hide_only_what_nobody_sees(
    plan: list[tuple[str, int, int, bool]],
) -> None:
    graph = build(plan)
    layers = find_layers(graph)
    for layer in layers:
        inside = set(layer.nodes)
        for name in layer.nodes:
            for tensor in graph.by_name[name].outputs:
                readers = {n.name for n in graph.consumers.get(tensor, ())}
                if tensor != layer.output:
                    assert readers <= inside and tensor not in graph.outputs
    assert_no_cycles(graph, layers)


def assert_no_cycles(graph: Graph, layers: Layers) -> None:
    """Layers can run one after the other: convexity of all groups at once."""
    owner = {n.name: layers.of_node[n.name].name if n.name in layers.of_node else n.name
             for n in graph.nodes}  # fmt: skip

    def needs(node: Node) -> set[str]:
        producers = (graph.producers.get(t) for t in node.reads)
        return {owner[p.name] for p in producers if p} - {owner[node.name]}

    waiting: dict[str, set[str]] = {}
    for node in graph.nodes:
        waiting.setdefault(owner[node.name], set()).update(needs(node))
    while waiting:
        ready = {name for name, needed in waiting.items() if not needed & waiting.keys()}
        assert ready, f"layers wait on each other: {waiting}"
        for name in ready:
            del waiting[name]


@settings(max_examples=150, deadline=None)
@given(steps)
def test_quantized_inputs_come_from_outside(plan: list[tuple[str, int, int, bool]]) -> None:
    graph = build(plan)
    for layer in find_layers(graph):
        inside = {t for name in layer.nodes for t in graph.by_name[name].outputs}
        assert not inside & set(layer.quantized_inputs)
        assert not set(graph.initializers) & set(layer.quantized_inputs)
        assert layer.quantizable == bool(layer.quantized_inputs)
        assert len(set(layer.quantized_inputs)) == len(layer.quantized_inputs)
