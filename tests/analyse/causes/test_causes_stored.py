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


def masked(mask: float, epsilon: float) -> onnx.ModelProto:
    """A product, and what a mask and a small number are added to."""
    node = helper.make_node
    random = np.random.default_rng(1)
    mask_values = np.where(np.arange(8) % 4 == 3, mask, 0.0)
    values = {"w": random.standard_normal((8, 8)), "mask": mask_values, "eps": np.array([epsilon])}
    nodes = [
        node("MatMul", ["f", "w"], ["p"], "product"),
        node("Add", ["p", "eps"], ["e"], "plus"),
        node("Add", ["e", "mask"], ["m"], "masking"),
        node("Softmax", ["m"], ["y"], "softmax"),
    ]
    graph = helper.make_graph(
        [
            node("GlobalAveragePool", ["x"], ["g"], "pool"),
            node("Reshape", ["g", "s"], ["h"], "flat"),
            node("Concat", ["h", "h"], ["f"], "twice", axis=1),
            *nodes,
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])],
        [
            *(numpy_helper.from_array(v.astype(np.float32), n) for n, v in values.items()),
            numpy_helper.from_array(np.array([-1, 4]), "s"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_infinities_and_what_fp16_rounds_to_0_are_the_same_constants() -> None:
    """A mask of -Inf, which both files have, or which is as low as FP16 can say; an epsilon that is
    below the smallest number of FP16."""
    fp32 = masked(-np.inf, 1e-12)
    found = causes(fp32, convert_float_to_float16(fp32, keep_io_types=True))
    assert found
    told = [c for each in found.values() for c in each]
    assert not any(c.label == "other-weights" or "which" in c.evidence for c in told), told


def test_a_constant_that_became_infinite_was_not_cut() -> None:
    """By a converter that casts; FP16 as `make_tensor` stores it is read, too."""
    fp32, half = network(4e6), network(4e6)
    half = convert_float_to_float16(half, keep_io_types=True, max_finite_val=65504.0)
    variance = next(t for t in half.graph.initializer if t.name == "variance")
    values = numpy_helper.to_array(variance)
    stored = helper.make_tensor("variance", TensorProto.FLOAT16, values.shape, values.tolist())
    assert not stored.raw_data
    variance.CopyFrom(stored)
    assert "was cut to 65504" in causes(fp32, half)["first"][0].evidence
    variance.CopyFrom(numpy_helper.from_array(np.full_like(values, np.inf), "variance"))
    assert "is Inf: it is beyond 65504" in causes(fp32, half)["first"][0].evidence


def test_a_weight_that_was_trained_on_is_no_rounding() -> None:
    fp32, other = network(4.0), network(4.0)
    weight = next(t for t in other.graph.initializer if t.name == "v")
    values = numpy_helper.to_array(weight).copy()
    values[2] *= 1.5
    weight.CopyFrom(numpy_helper.from_array(values, "v"))
    found = causes(fp32, convert_float_to_float16(other, keep_io_types=True))
    assert [c.label for c in found["second"]][:1] == ["other-weights"]
    assert not any(c.label == "other-weights" for c in found["first"])
