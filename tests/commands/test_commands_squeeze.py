"""A Squeeze without axes: how many axes are left depends on the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import qdebug

RNG = np.random.default_rng(0)
SAMPLES = RNG.normal(size=(6, 1, 8)).astype(np.float32)


class _Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self._feeds = iter([{"x": x} for x in SAMPLES])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.mark.parametrize("batch", ["batch", 1])
def test_scores_without_axes(tmp_path: Path, batch: Any) -> None:
    """As networks that rate a sample with one number export them: shapes are inferred for any
    number of samples, and of one sample no axis is left."""
    weight = RNG.normal(size=(8, 1)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Squeeze", ["m"], ["s"], "squeeze"),
        helper.make_node("Sigmoid", ["s"], ["p"], "rate"),
        helper.make_node("Mul", ["p", "four"], ["y"], "scale"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [batch, 8])],
        [value("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.array(4, np.float32), "four"),
        ],
    )
    graph.value_info.append(value("s", TensorProto.FLOAT, [batch] if batch != 1 else []))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "fp32.onnx")
    quantize_static(tmp_path / "fp32.onnx", tmp_path / "qdq.onnx", _Reader())
    feeds = [{"x": x} for x in SAMPLES]
    for settings in (
        {"model": str(tmp_path / "fp32.onnx")},
        {"model": str(tmp_path / "qdq.onnx"), "reference": str(tmp_path / "fp32.onnx")},
    ):
        result = qdebug.compare(
            inputs=feeds, output=str(tmp_path / "run.h5"), force=True, **settings
        )
        assert not result.failed
        assert {"m", "y"} <= {t.name for t in result.tensors}
        assert result.outputs[0].metrics.sqnr_db > 20
