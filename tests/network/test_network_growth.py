"""A file of a few kilobytes that asks for gigabytes, or for hours, is refused at once."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.errors import ModelError
from qdebug.network.growth import check_computed, check_inlined, computed_bytes
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]


def _model(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9, functions=functions)


def _functions(levels: int, last: str = "Relu") -> list[onnx.FunctionProto]:
    """Each calls the next one twice."""
    node = helper.make_node
    made = []
    for k in range(levels):
        inner = {"op_type": f"f{k + 1}", "domain": "my"} if k + 1 < levels else {"op_type": last}
        nodes = [node(inputs=["a"], outputs=["b"], **inner)]
        nodes += [node(inputs=["b"], outputs=["c"], **inner)]
        made.append(helper.make_function("my", f"f{k}", ["a"], ["c"], nodes, OPSETS))
    return made


def _calling(levels: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("f0", ["x"], ["m"], "call", domain="my"),
        helper.make_node("MatMul", ["m", "w"], ["y"], "matmul"),
    ]
    return _model(nodes, _functions(levels))


def _doubling(times: int) -> onnx.ModelProto:
    node = helper.make_node
    one = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [node("Constant", [], ["c0"], value=one)]
    nodes += [node("Concat", [f"c{k}"] * 2, [f"c{k + 1}"], axis=0) for k in range(times)]
    nodes += [
        node("ReduceSum", [f"c{times}"], ["sum"], keepdims=0),
        node("MatMul", ["x", "w"], ["product"], "matmul"),
        node("Add", ["product", "sum"], ["y"], "add"),
    ]
    return _model(nodes, [])


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (_calling(16), "QD-MODEL-FUNCTIONS"),
        (_calling(30), "QD-MODEL-FUNCTIONS"),
        (_doubling(34), "QD-MODEL-CONSTANTS"),
    ],
)
def test_small_bombs(tmp_path: Path, model: onnx.ModelProto, code: str) -> None:
    path = tmp_path / "bomb.onnx"
    path.write_bytes(model.SerializeToString())
    started = time.process_time()
    with pytest.raises(ModelError) as caught:
        prepare_model(read_model(str(path)))
    assert caught.value.code == code
    assert time.process_time() - started < 20


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    functions = _functions(2)
    functions[1].node[0].op_type, functions[1].node[0].domain = "f0", "my"
    model = _calling(2)
    del model.functions[:]
    model.functions.extend(functions)
    check_inlined(Path("m"), model)  # it ends; the inliner says what is wrong
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="QD-MODEL-FUNCTIONS"):
        prepare_model(read_model(str(path)))


def test_what_models_have_is_taken() -> None:
    check_inlined(Path("m"), _calling(13))  # 8192 nodes
    check_computed(Path("m"), _doubling(24))
    # 2 + 4 + … + 2^10 floats, and their sum
    assert computed_bytes(_doubling(10)) == 4 * (2**11 - 2) + 4


def test_casts_of_all_weights_are_no_growth() -> None:
    """Of large models: only types and shapes are looked at."""
    weights = [onnx.TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT16) for k in range(4)]
    for tensor in weights:
        tensor.dims.extend([20_000, 20_000])
    nodes = [helper.make_node("Cast", [t.name], [f"c{t.name}"], to=1) for t in weights]
    model = _model(nodes, [])
    model.graph.initializer.extend(weights)
    assert computed_bytes(model) == 4 * 4 * 20_000**2
    check_computed(Path("m"), model)
