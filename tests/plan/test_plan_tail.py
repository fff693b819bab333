"""What a model computes from one of its tensors on."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from half_networks import Builder

from qdebug.network.graph import Graph
from qdebug.plan.rewrite.tail import tail_of


def branched() -> onnx.ModelProto:
    """x → Relu t1 → MatMul t2, and t1 + t2 → Sigmoid; a second output depends on x alone."""
    b = Builder(3)
    kept = b.add("Relu", "x")
    product = b.add("MatMul", kept, b.weight(4, 4))
    other = b.add("Tanh", "x")
    last = b.add("Sigmoid", b.add("Add", kept, product))
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        b.nodes,
        "g",
        [value("x", 1, ["N", 4])],
        [value(t, 1, ["N", 4]) for t in (other, product, last)],
        [onnx.numpy_helper.from_array(v, k) for k, v in b.weights.items()],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    made.ir_version = 8
    return onnx.shape_inference.infer_shapes(made)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return [np.asarray(x) for x in session.run(names, feeds)]


def test_a_tail_gives_what_the_model_gives_from_there_on() -> None:
    proto = branched()
    graph = Graph(proto)
    other, product, last = graph.outputs
    tail = tail_of(graph, product, [product, last, other])
    assert tail is not None
    (kept,) = tail.reads  # the branch beside it
    assert tail.outputs == (product, last)  # `other` does not depend on it
    assert [n.op_type for n in tail.proto.graph.node] == ["Add", "Sigmoid"]
    assert not tail.proto.graph.initializer
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    shown.graph.output.append(onnx.helper.make_tensor_value_info(kept, 1, ["N", 4]))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    values = run(shown, {"x": x}, [kept, product, last])
    assert np.array_equal(
        run(tail.proto, {kept: values[0], product: values[1]}, [last])[0], values[2]
    )
    moved = run(tail.proto, {kept: values[0], product: values[1] + 1}, [last])[0]
    assert np.allclose(moved, 1 / (1 + np.exp(-(values[0] + values[1] + 1))), atol=1e-6)


@pytest.mark.parametrize("which", [0, 2])
def test_nothing_follows_from_a_last_tensor(which: int) -> None:
    graph = Graph(branched())
    assert tail_of(graph, graph.outputs[which], graph.outputs) is None
