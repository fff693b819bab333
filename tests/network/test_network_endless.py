"""A Loop without an end is refused before anything executes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.errors import ModelError
from qdebug.network.endless import MOST_ITERATIONS
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model


def loop(count: int, condition: bool | None, after: str) -> onnx.ModelProto:
    """A Loop that doubles `x`; `after` an iteration its condition is "given", "true" or computed
    ("until")."""
    of_bool = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
    number = helper.make_tensor_value_info("number", TensorProto.INT64, [])
    carried = helper.make_tensor_value_info("carried", TensorProto.FLOAT, [2])
    doubled = helper.make_tensor_value_info("doubled", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Add", ["carried", "carried"], ["doubled"])]
    if after == "given":
        nodes.append(helper.make_node("Identity", ["going"], ["next"]))
    elif after == "true":
        truth = numpy_helper.from_array(np.array(True))
        nodes.append(helper.make_node("Constant", [], ["next"], value=truth))
    else:
        nodes.append(helper.make_node("Less", ["number", "three"], ["next"]))
    next_ = helper.make_tensor_value_info("next", TensorProto.BOOL, [])
    body = helper.make_graph(nodes, "body", [number, of_bool, carried], [next_, doubled])
    node = helper.make_node(
        "Loop", ["count", "" if condition is None else "first", "x"], ["y"], "endless", body=body
    )
    constants = {"count": np.array(count), "first": np.array(bool(condition)), "three": np.array(3)}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("count", "condition", "after", "refused"),
    [
        (MOST_ITERATIONS + 1, True, "given", True),
        (MOST_ITERATIONS, True, "given", False),
        (2**58, True, "true", True),
        (2**58, None, "until", True),
        (2**58, True, "until", False),
        (2**58, False, "true", False),
    ],
)
def test_a_loop_that_nothing_ends_is_refused(
    count: int, condition: bool | None, after: str, refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "loop.onnx"
    onnx.save(loop(count, condition, after), path)
    if not refused:
        prepare_model(read_model(path))
        return
    with pytest.raises(ModelError, match="endless") as found:
        prepare_model(read_model(path))
    assert found.value.code == "QD-MODEL-ENDLESS-LOOP"
