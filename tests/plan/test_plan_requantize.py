"""A model that others have quantized, with other scales."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.graph import Graph
from qdebug.plan.rewrite.requantize import with_scales

X, Y = 0.5, 2.0
"""The scales of x and y."""


def quantized(*, shown: bool) -> Graph:
    """x → Q → twice DQ, each doubled or not → Add y → Q → DQ z; where they are `shown`, the codes
    of y are an output besides."""
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
    codes = [value("yq", TensorProto.INT8, ["N"])] if shown else []
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N"])],
        [value("z", TensorProto.FLOAT, ["N"]), *codes],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return Graph.inferred(model)


def rounded(values: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(np.round(values / scale), -128, 127) * scale


@pytest.mark.parametrize("shown", [False, True])
def test_all_that_reads_the_codes_has_the_new_scale(shown: bool) -> None:
    """But for codes that somebody else reads, whose meaning would change."""
    graph, changed = with_scales(quantized(shown=shown), {"x": X / 8, "y": 4 * Y, "z": 3.0})
    assert changed == (("x",) if shown else ("x", "y"))
    x = np.linspace(-5, 5, 41, dtype=np.float32)
    session = onnxruntime.InferenceSession(graph.proto.SerializeToString())
    (z,) = session.run(["z"], {"x": x})
    y = 3 * rounded(x, X / 8)
    np.testing.assert_allclose(z, rounded(y, Y if shown else 4 * Y), atol=1e-6)
    onnx.checker.check_model(graph.proto)
