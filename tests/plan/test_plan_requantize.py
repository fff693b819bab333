"""A model that others have quantized, with other scales."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.plan.imported import import_quantized
from qdebug.plan.rewrite.requantize import with_channel_scales, with_scales

X, Y = 0.5, 2.0
"""The scales of x and y."""


def quantized() -> Graph:
    """x → Q → twice DQ, each doubled or not → Add y → Q → DQ z."""
    node = helper.make_node
    constants = {"xs": np.float32(X), "ys": np.float32(Y), "zero": np.int8(0), "two": np.float32(2)}
    nodes = [
        node("QuantizeLinear", ["x", "xs", "zero"], ["xq"], "quantize x"),
        node("DequantizeLinear", ["xq", "xs", "zero"], ["x1"], "once"),
        node("DequantizeLinear", ["xq", "xs", "zero"], ["x2"], "again"),
        node("Mul", ["x2", "two"], ["doubled"], "double"),
        node("Add", ["x1", "doubled"], ["y"], "add"),
        node("QuantizeLinear", ["y", "ys", "zero"], ["yq"], "quantize y"),
        node("DequantizeLinear", ["yq", "ys", "zero"], ["z"], "last"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N"])],
        [value("z", TensorProto.FLOAT, ["N"])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return Graph.inferred(model)


def rounded(values: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(np.round(values / scale), -128, 127) * scale


def test_all_that_reads_the_codes_has_the_new_scale() -> None:
    scales = {"x": X / 8, "y": 4 * Y, "z": 3.0}
    model, changed = with_scales(import_quantized(quantized()), scales)
    assert changed == ("x", "y")
    x = np.linspace(-5, 5, 41, dtype=np.float32)
    session = onnxruntime.InferenceSession(model.lowered.SerializeToString())
    (z,) = session.run(["z"], {"x": x})
    np.testing.assert_allclose(z, rounded(3 * rounded(x, X / 8), 4 * Y), atol=1e-6)
    onnx.checker.check_model(model.lowered)


def test_a_weight_that_is_a_constant_node_gets_a_scale_for_each_channel() -> None:
    node, weight = helper.make_node, np.array([[1, 100], [0.5, 80]], np.float32)
    stored = node("Constant", [], ["w"], "w", value=numpy_helper.from_array(weight))
    plain = [stored, node("MatMul", ["x", "w"], ["y"], "product")]
    pair = ["s", "zero"]
    nodes = [
        stored,
        node("QuantizeLinear", ["w", *pair], ["wq"], "q"),
        node("DequantizeLinear", ["wq", *pair], ["wd"], "d"),
        node("MatMul", ["x", "wd"], ["y"], "product"),
    ]
    constants = {"s": np.float32(100 / 127), "zero": np.int8(0)}
    value = helper.make_tensor_value_info
    reference, candidate = (
        Graph.inferred(
            helper.make_model(
                helper.make_graph(
                    made,
                    "g",
                    [value("x", TensorProto.FLOAT, ["N", 2])],
                    [value("y", TensorProto.FLOAT, ["N", 2])],
                    [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
                ),
                opset_imports=[helper.make_opsetid("", 17)],
                ir_version=8,
            )
        )
        for made in (plain, nodes)
    )
    model = import_quantized(candidate, reference)
    layers = list(find_layers(reference))
    changed, names = with_channel_scales(model, reference, candidate, layers)
    assert names == ("product",)
    session = onnxruntime.InferenceSession(changed.lowered.SerializeToString())
    (y,) = session.run(None, {"x": np.eye(2, dtype=np.float32)})
    np.testing.assert_allclose(y, weight, rtol=0.01)
