"""Operators of ONNX Runtime that quantize inside, where no Q/DQ pair stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import qdebug
from qdebug.types import Precision

X = {"x": np.random.default_rng(1).normal(size=(4, 6, 8)).astype(np.float32)}
X["x"][:, 0, 0] = 40  # one scale for it and the rest: under what counts as proven


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An LSTM and a product in FP32, and as quantize_dynamic makes them."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 64, 8), "r": (1, 64, 16), "b": (1, 128), "dense": (16, 5)}
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], "steps", perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r", "b"], ["h"], "lstm", hidden_size=16),
        helper.make_node("Squeeze", ["h", "axis"], ["states"], "squeeze"),
        helper.make_node("MatMul", ["states", "dense"], ["y"], "product"),
    ]
    value = helper.make_tensor_value_info
    constants = {**weights, "axis": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N", 6, 8])],
        [value("y", TensorProto.FLOAT, [6, "N", 5])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = tmp_path_factory.mktemp("lstm")
    onnx.save(proto, folder / "fp32.onnx")
    quantize_dynamic(folder / "fp32.onnx", folder / "int8.onnx")
    return folder / "fp32.onnx", folder / "int8.onnx"


def test_with_itself_what_it_costs_is_in_no_figure(models: tuple[Path, Path]) -> None:
    found = qdebug.compare(models[1], inputs=X)
    lstm = next(x for x in found.layers if x.op_type == "DynamicQuantizeLSTM")
    assert lstm.precision is Precision.INT8 and lstm.effect is None
    assert any("DynamicQuantizeLSTM (1) costs is in no figure" in note for note in found.notes)
    assert any("is quantized (integer operators)" in note for note in found.notes)


def test_with_the_fp32_model_it_is_no_other_model(models: tuple[Path, Path]) -> None:
    found = qdebug.compare(models[1], inputs=X, reference=models[0])
    behind = next(x for x in found.layers if x.tensor == "states")
    assert behind.precision is Precision.INT8 and 20 < behind.metrics.sqnr_db < 60
    assert "trained or corrected" not in found.headline()
    assert found.correspondence is not None
    match = next(m for m in found.correspondence.matches if m.tensor == "states")
    assert not match.proven and "rounds inside" in match.reason
