"""A model without its weights' data: everything else as it was, and the same types and shapes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import shape_inference

from qdebug.model.load import read_model
from qdebug.model.prepare import without_weights

DATA = Path(__file__).parents[2] / "calib_data"


@pytest.mark.parametrize("name", ["digits_cnn.onnx", "digits_encoder.onnx"])
def test_only_weights_lose_their_data(name: str) -> None:
    proto = read_model(DATA / name).proto
    light = without_weights(proto)
    assert light.ByteSize() < proto.ByteSize() / 3
    assert [t.dims for t in light.graph.initializer] == [t.dims for t in proto.graph.initializer]
    inferred = [shape_inference.infer_shapes(m, data_prop=True).graph for m in (light, proto)]
    assert inferred[0].value_info == inferred[1].value_info
    full = onnx.ModelProto()
    full.CopyFrom(proto)
    for model in (light, full):
        del model.graph.initializer[:]
    assert light == full
