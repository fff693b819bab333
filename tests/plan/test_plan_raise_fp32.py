"""A model with FP16 in it, raised to FP32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.plan.rewrite.raise_fp32 import raise_to_fp32


def test_fp16_constants_casts_and_outputs_become_fp32() -> None:
    half = TensorProto.FLOAT16
    weight = np.array([[0.1, 0.2], [0.3, 3.0]], np.float16)
    nodes = [
        helper.make_node("Cast", ["x"], ["xh"], "in", to=half),
        helper.make_node("MatMul", ["xh", "w"], ["m"], "mul"),
        helper.make_node("Add", ["m", "given"], ["y"], "add"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2]),
            helper.make_tensor_value_info("given", half, [1, 2]),
        ],
        [helper.make_tensor_value_info("y", half, [1, 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    before = model.SerializeToString()
    raised = raise_to_fp32(model)
    onnx.checker.check_model(raised, full_check=True)
    assert model.SerializeToString() == before
    x = np.array([[1.0001, 40000.0]], np.float32)
    given = np.array([[0.5, 0.25]], np.float16)
    session = SimulationBackend(1).open(raised, [])
    found = session.run({"x": x, "given": given})["y"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, x @ weight.astype(np.float32) + given, rtol=1e-6)
