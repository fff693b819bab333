"""Which FP16 nodes the simulation is said to predict, and that this shows in results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from half_runs import Array, half_model
from onnx import helper

import qdebug
from qdebug.backends.fp16_emulation.coverage import behind_few_values, predicted
from qdebug.display.blocks import Facts
from qdebug.display.compare import view
from qdebug.network.graph import Graph
from qdebug.types import Fp16Kernels

make = helper.make_node
LSTM = {"W": np.zeros((1, 16, 4)), "R": np.zeros((1, 16, 4))}
CASES: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "Add": (make("Add", ["x", "x"], ["y"]), {}, True),
    "square": (make("Pow", ["x", "w"], ["y"]), {"w": np.float16(2)}, True),
    "cube": (make("Pow", ["x", "w"], ["y"]), {"w": np.float16(3)}, False),
    "MatMul": (make("MatMul", ["x", "w"], ["y"]), {"w": np.zeros((4, 8))}, True),
    "Elu": (make("Elu", ["x"], ["y"]), {}, True),
    "Elu of another factor": (make("Elu", ["x"], ["y"], alpha=0.5), {}, False),
    "Mean": (make("Mean", ["x", "x"], ["y"]), {}, False),
    "CumSum": (make("CumSum", ["x", "w"], ["y"]), {"w": np.int64(1)}, False),
    "LSTM": (make("LSTM", ["x", "W", "R"], ["y"], hidden_size=4), LSTM, True),
    "clipped LSTM": (make("LSTM", ["x", "W", "R"], ["y"], hidden_size=4, clip=1.0), LSTM, False),
    "unknown domain": (make("Add", ["x", "x"], ["y"], domain="my.ops"), {}, False),
}


def graph_of(node: onnx.NodeProto, weights: dict[str, Array]) -> Graph:
    halves = {n: a for n, a in weights.items() if np.asarray(a).dtype.kind == "f"}
    node.name = "node"
    proto = half_model([node], {"x": [3, 2, 4]}, halves)
    for name in weights.keys() - halves.keys():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights[name], name))
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))
    return Graph(onnx.shape_inference.infer_shapes(proto))


@pytest.mark.parametrize("name", CASES)
def test_what_is_predicted(name: str) -> None:
    node, weights, expected = CASES[name]
    assert predicted(graph_of(node, weights), "node", Fp16Kernels.TENSORRT) is expected


def test_one_row_and_a_constant_stack_of_another_rank() -> None:
    for rows, known in ((1, False), (2, True)):
        node = make("MatMul", ["x", "w"], ["y"], "node")
        proto = half_model([node], {"x": [5, 3, rows, 4]}, {"w": np.zeros((3, 4, 8))})
        graph = Graph(onnx.shape_inference.infer_shapes(proto))
        assert predicted(graph, "node", Fp16Kernels.TENSORRT) is known


def test_a_long_sum_may_be_split() -> None:
    for terms, known in ((999, True), (1000, False)):
        node = make("MatMul", ["x", "w"], ["y"], "node")
        proto = half_model([node], {"x": [8, terms]}, {"w": np.zeros((terms, 8))})
        graph = Graph(onnx.shape_inference.infer_shapes(proto))
        assert predicted(graph, "node", Fp16Kernels.TENSORRT) is known


def test_exact_sums_predict_what_rounds_once() -> None:
    for name, known in (("Add", True), ("MatMul", False), ("LSTM", False), ("Elu", False)):
        node, weights, _ = CASES[name]
        assert predicted(graph_of(node, weights), "node", Fp16Kernels.EXACT) is known


def gated(gate: str) -> Graph:
    """A convolution, a gate of squeeze and excitation or what looks like it, and another."""
    nodes = [
        make("Conv", ["x", "w"], ["a"], "first"),
        make("GlobalAveragePool", ["a"], ["p"], "pool"),
        make("Conv", ["p", "w"], ["q"], "squeeze"),
        make(gate, ["q"], ["g"], "gate"),
        make("Mul", ["a", "g"], ["m"], "scaled"),
        make("Conv", ["m", "w"], ["y"], "last"),
    ]
    proto = half_model(nodes, {"x": [1, 4, 5, 5]}, {"w": np.ones((4, 4, 1, 1)) / 3})
    return Graph(onnx.shape_inference.infer_shapes(proto))


def test_what_is_behind_a_gate() -> None:
    for gate in ("Sigmoid", "HardSigmoid"):
        assert behind_few_values(gated(gate)) == {"scaled", "last"}
    assert not behind_few_values(gated("Relu"))
    swish = [make("Sigmoid", ["x"], ["s"], "s"), make("Mul", ["x", "s"], ["y"], "m")]
    assert not behind_few_values(Graph(half_model(swish, {"x": [1, 4, 5, 5]})))


def test_what_is_behind_a_recurrent_layer() -> None:
    node, weights, _ = CASES["LSTM"]
    graph = graph_of(node, weights)
    assert behind_few_values(graph) == {"node"}


def test_few_samples_do_not_predict_what_is_behind_a_gate() -> None:
    proto = onnx.shape_inference.infer_shapes(gated("Sigmoid").proto)
    for part in (*proto.graph.input, *proto.graph.output):
        part.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for part in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(part).astype(np.float32)
        part.CopyFrom(onnx.numpy_helper.from_array(values, part.name))
    del proto.graph.value_info[:]
    data = np.random.default_rng(0).normal(size=(4, 4, 5, 5)).astype(np.float32)
    for samples, known in ((3, False), (4, True)):
        found = qdebug.compare(proto, inputs={"x": data[:samples]}, precision="fp16", effect="none")
        said = {layer.name: layer.fp16_predicted for layer in found.layers}
        assert said["first"] and said["last"] is known
        assert any("behind a gate" in note for note in found.notes) is not known


def test_results_say_of_how_many_layers() -> None:
    data = Path(__file__).parents[3] / "calib_data"
    found = qdebug.compare(
        str(data / "digits_cnn.onnx"),
        inputs=str(data / "digits_holdout.npz"),
        precision="fp16",
        samples=4,
        effect="none",
    )
    covered = found.fp16_coverage
    assert covered is not None and covered.layers == covered.predicted == len(found.layers)
    assert found.to_dict()["fp16_coverage"] == {
        "layers": covered.layers,
        "predicted": covered.predicted,
    }
    assert "predicted" in {name for name, _ in _facts_of(found)}


def _facts_of(found: qdebug.CompareResult) -> tuple[tuple[str, str], ...]:
    return next(block.rows for block in view(found, detailed=True) if isinstance(block, Facts))
