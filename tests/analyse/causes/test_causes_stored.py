"""Constants of a file in FP16 that are more than rounded are told of the layer that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

import qdebug

IMAGES = np.random.default_rng(3).standard_normal((8, 4, 8, 8)).astype(np.float32)


def network(variance: float) -> onnx.ModelProto:
    """Two convolutions; the first is normalized, by the standard deviation of what it gives."""
    random = np.random.default_rng(0)
    size = np.sqrt(variance)
    values = {
        "w": random.standard_normal((6, 4, 3, 3)) * size / 6,
        "gamma": np.ones(6),
        "beta": random.standard_normal(6) / 4,
        "mean": np.zeros(6),
        "variance": np.full(6, variance),
        "v": random.standard_normal((5, 6, 3, 3)) / 7,
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], "first", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["n"], "normal"),
        node("Relu", ["n"], ["r"], "relu"),
        node("Conv", ["r", "v"], ["y"], "second", pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5, 8, 8])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def causes(fp32: onnx.ModelProto, fp16: onnx.ModelProto) -> dict[str, Any]:
    how: dict[str, Any] = {"inputs": {"x": IMAGES}, "effect": "none"}
    result = qdebug.compare(fp16, reference=fp32, **how)
    return {layer.name: layer.causes for layer in result.layers}


@pytest.mark.parametrize(("variance", "cut"), [(4e6, True), (4.0, False)])
def test_a_variance_that_fp16_cannot_hold(variance: float, cut: bool) -> None:
    fp32 = network(variance)
    half = convert_float_to_float16(network(variance), keep_io_types=True, max_finite_val=65504.0)
    found = causes(fp32, half)
    told = [c for c in found["first"] if "was cut to 65504" in c.evidence]
    assert bool(told) is cut
    if cut:
        assert found["first"][0] is told[0] and told[0].label == "fp16-overflow"
        assert "'variance', which 'normal' reads" in told[0].evidence
        assert told[0].remedy.startswith("Fold BatchNormalization")
    assert not any("was cut" in c.evidence for c in found["second"])


def test_a_weight_that_was_trained_on_is_no_rounding() -> None:
    fp32, other = network(4.0), network(4.0)
    weight = next(t for t in other.graph.initializer if t.name == "v")
    values = numpy_helper.to_array(weight).copy()
    values[2] *= 1.5
    weight.CopyFrom(numpy_helper.from_array(values, "v"))
    found = causes(fp32, convert_float_to_float16(other, keep_io_types=True))
    assert [c.label for c in found["second"]][:1] == ["other-weights"]
    assert not any(c.label == "other-weights" for c in found["first"])
