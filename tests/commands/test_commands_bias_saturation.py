"""An INT32 bias that saturates: seen in the quantized model alone, weighed with its FP32 model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdebug
from qdebug.analyse.cures import FITTED_RANGES
from qdebug.types import Array

TINY, BIAS = 3, 2.0


def network(op_type: str, quantized: bool, tiny: float = 1e-9) -> onnx.ModelProto:
    """x → Conv, ConvTranspose or Gemm, whose weights of one channel are `tiny` and its bias
    ordinary → Relu → a sum of channels."""
    rng = np.random.default_rng(3)
    image = op_type != "Gemm"
    outer = 1 if op_type == "ConvTranspose" else 0
    weight = rng.normal(size=(8, 8, 3, 3) if image else (8, 8)).astype(np.float32) / 4
    weight[(slice(None),) * outer + (TINY,)] *= tiny
    bias = rng.normal(0, 0.5, 8).astype(np.float32)
    bias[TINY] = BIAS
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}
    reads = ["x", "w", "b"]
    if quantized:
        others = tuple(i for i in range(weight.ndim) if i != outer)
        step, scale = np.float32(4.8 / 127), np.abs(weight).max(axis=others) / np.float32(127)
        codes = np.round(bias / (scale.astype(np.float64) * step))
        constants |= {
            "xs": step, "xz": np.int8(0), "ws": scale, "bs": (scale * step).astype(np.float32),
            "wc": np.round(weight / np.expand_dims(scale, others)).astype(np.int8),
            "bc": np.clip(codes, -(2**31), 2**31 - 1).astype(np.int64).astype(np.int32),
        }  # fmt: skip
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
            helper.make_node("DequantizeLinear", ["wc", "ws"], ["wd"], axis=outer),
            helper.make_node("DequantizeLinear", ["bc", "bs"], ["bd"], axis=0),
        ]
        reads = ["xd", "wd", "bd"]
    else:
        constants |= {"w": weight, "b": bias}
    how: dict[str, Any] = {"pads": [1] * 4} if image else {"transB": 1}
    nodes += [
        helper.make_node(op_type, reads, ["c"], "layer", **how),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("ReduceMean", ["r"], ["y"], "mean", axes=[1], keepdims=1),
    ]
    value = helper.make_tensor_value_info
    size = ["N", 8, 6, 6] if image else ["N", 8]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, size)],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def compared(op_type: str, *, known: bool, tiny: float = 1e-9) -> qdebug.CompareResult:
    size = (16, 8) if op_type == "Gemm" else (16, 8, 6, 6)
    x = np.random.default_rng(1).normal(size=size).astype(np.float32)
    more = {"reference": network(op_type, False, tiny)} if known else {}
    return qdebug.compare(network(op_type, True, tiny), inputs={"x": x}, **more)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm"])
def test_it_is_the_cause_with_the_scale_that_holds_it(op_type: str) -> None:
    result = compared(op_type, known=True)
    main = result.layers[0].causes[0]
    assert main.label == "bias-saturation"
    assert main.share is not None and main.share > 0.9
    assert result.summary is not None and result.summary.elsewhere is None
    weight = numpy_helper.to_array(
        next(t for t in network(op_type, True).graph.initializer if t.name == "bs")
    )
    times = BIAS / (float(weight[TINY]) * (2**31 - 1))
    assert f"{times:.3g} times" in main.remedy and f"channel {TINY}" in main.evidence
    cure = result.cures[0]
    assert (cure.name, cure.helps) == ("biases in FP32", True)
    assert cure.sqnr_db > cure.before_sqnr_db + 10


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_the_model_alone_shows_it(op_type: str) -> None:
    result = compared(op_type, known=False)
    main = result.layers[0].causes[0]
    assert (main.label, main.share) == ("bias-saturation", None)
    assert any("saturates" in note and "'layer'" in note for note in result.notes)


@pytest.mark.parametrize("known", [False, True])
def test_a_bias_that_fits_is_not_blamed(known: bool) -> None:
    result = compared("Conv", known=known, tiny=1e-3)
    assert all(c.label != "bias-saturation" for c in result.layers[0].causes)
    assert not any("saturates" in note for note in result.notes)


@pytest.mark.parametrize(
    ("constant", "cure"), [("xs", FITTED_RANGES), ("ws", "weights per-channel")]
)
def test_a_scale_that_is_no_number_is_the_cause_and_cured(constant: str, cure: str) -> None:
    """Of the input, and of a channel of the weight."""
    model = network("Gemm", True, tiny=1.0)
    tensor = next(t for t in model.graph.initializer if t.name == constant)
    values = numpy_helper.to_array(tensor).copy()
    values[... if values.ndim == 0 else TINY] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(values, constant))
    x = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    result = qdebug.compare(model, inputs={"x": x}, reference=network("Gemm", False, tiny=1.0))
    assert result.layers[0].causes[0].label == "invalid-scale"
    assert (result.cures[0].name, result.cures[0].helps) == (cure, True)
    assert result.cures[0].sqnr_db > 25
