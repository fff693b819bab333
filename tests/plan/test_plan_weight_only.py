"""Weights in blocks of INT4 or INT8, with activations as they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qdebug.calibrators.weights import block_amax
from qdebug.errors import PlanError
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.planfile import parse_plan, plan_to_yaml
from qdebug.types import Precision

F32 = np.float32
LARGEST = {Precision.W4: 7, Precision.W8: 127}


def in_blocks(weight: Any, axis: int, size: int, largest: int) -> Any:
    """The same, one block after the other."""
    found = np.empty_like(weight)
    for first in range(0, weight.shape[axis], size):
        at = [slice(None)] * weight.ndim
        at[axis] = slice(first, first + size)
        block = weight[tuple(at)]
        scale = (np.abs(block).max(axis, keepdims=True).astype(np.float64) / largest).astype(F32)
        scale = np.where(scale == 0, F32(1), scale)
        found[tuple(at)] = np.rint(block / scale) * scale
    return found


def product(op_type: str, weight: Any, x: Any, **attributes: Any) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w"], ["y"], "m", **attributes)],
        "product",
        [value("x", TensorProto.FLOAT, x.shape)],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("rest", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("precision", [Precision.W4, Precision.W8])
@pytest.mark.parametrize(("op_type", "shape", "axis"), [
    ("MatMul", (40, 6), 0),
    ("Gemm", (6, 40), 1),
    ("MatMul", (3, 40, 6), 1),
])  # fmt: skip
def test_a_product_reads_blocks_of_codes(
    kit: SimpleNamespace, op_type: str, shape: Any, axis: int, precision: Precision, rest: Precision
) -> None:
    """Blocks of 16, the last of which has 8 values."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=shape).astype(F32)
    x = rng.normal(size=(3, 5, 40)[3 - max(2, len(shape)) :]).astype(F32)
    given = {"transB": 1} if op_type == "Gemm" else {}
    plan = PrecisionPlan(precision, rest, block_size=16)
    low = kit.lowered(product(op_type, weight, x, **given), plan)
    found = kit.run(low.graph, {"x": x})["y"]
    rounded = in_blocks(weight, axis, 16, LARGEST[precision])
    expected = x @ (rounded.T if op_type == "Gemm" else rounded)
    # Scales in 11 or 8 digits flip a code here and there.
    tolerance = {"fp32": 1e-6, "fp16": 0.02, "bf16": 0.04}[rest]
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)
    (node,) = [n for n in low.graph.nodes if n.op_type == "DequantizeLinear"]
    assert low.graph.attributes(node) == {"axis": axis, "block_size": 16}
    codes = low.graph.initializers[node.inputs[0]]
    kind = {Precision.W4: TensorProto.INT4, Precision.W8: TensorProto.INT8}[precision]
    assert codes.data_type == kind
    assert not [n for n in low.graph.nodes if n.op_type == "QuantizeLinear"]
    types = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
    assert low.graph.types[node.outputs[0]] == types[rest]  # the product is in what is around it


def test_one_block_is_a_scale_per_channel(kit: SimpleNamespace) -> None:
    """Which TensorRT for RTX 1.7.1 builds in INT8 with FP16 around it, other than one block."""
    rng = np.random.default_rng(1)
    weight, x = rng.normal(size=(40, 6)).astype(F32), rng.normal(size=(5, 40)).astype(F32)
    low = kit.lowered(product("MatMul", weight, x), PrecisionPlan(Precision.W4))
    (node,) = [n for n in low.graph.nodes if n.op_type == "DequantizeLinear"]
    assert low.graph.attributes(node) == {"axis": 1}
    expected = x @ in_blocks(weight, 0, 40, 7)
    np.testing.assert_allclose(kit.run(low.graph, {"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 70), st.integers(1, 40), st.integers(0, 1), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_the_largest_magnitude_of_each_block(length: int, size: int, axis: int, seed: int) -> None:
    shape = (length, 3) if axis == 0 else (3, length)
    weight = np.random.default_rng(seed).normal(size=shape).astype(F32)
    parts = [
        np.abs(weight.take(range(first, min(first + size, length)), axis)).max(axis)
        for first in range(0, length, size)
    ]
    np.testing.assert_array_equal(block_amax(weight, axis, size), np.stack(parts, axis))


def test_only_products_with_a_constant_right_operand(
    kit: SimpleNamespace, residual_net: Any
) -> None:
    """Convolutions stay in what is around; asked for by name, they are refused."""
    model = kit.prepare(residual_net(21), 21)
    bound = kit.bound(model, PrecisionPlan(Precision.W4, Precision.FP16))
    kinds = {(x.op_type, bound.precisions[x.name]) for x in bound.layers}
    assert ("Conv", Precision.FP16) in kinds and ("Conv", Precision.W4) not in kinds
    assert bound.needed_ranges() == []
    with pytest.raises(PlanError) as caught:
        kit.bound(model, PrecisionPlan(Precision.FP32, layers={"op:Conv": Precision.W8}))
    assert caught.value.code == "QD-PLAN-NO-INT8" and "Gemm and MatMul" in str(caught.value.hint)


def test_the_block_size_is_in_the_plan_file() -> None:
    plan = PrecisionPlan(Precision.W4, block_size=32)
    assert parse_plan(plan_to_yaml(plan), "p.yaml") == plan
    assert "block_size" not in plan_to_yaml(PrecisionPlan(Precision.INT8))
    with pytest.raises(PlanError):
        parse_plan(plan_to_yaml(plan).replace("32", "8"), "p.yaml")


def test_codes_of_every_block_are_within_the_format(kit: SimpleNamespace) -> None:
    rng = np.random.default_rng(2)
    weight = (rng.normal(size=(64, 8)) * 10.0 ** rng.integers(-3, 3, (64, 8))).astype(F32)
    x = rng.normal(size=(2, 64)).astype(F32)
    low = kit.lowered(product("MatMul", weight, x), PrecisionPlan(Precision.W4, block_size=16))
    (node,) = [n for n in low.graph.nodes if n.op_type == "DequantizeLinear"]
    codes = low.graph.constant(node.inputs[0]).astype(np.int32)
    assert codes.min() >= -7 and codes.max() <= 7
    assert np.abs(codes).reshape(4, 16, 8).max(axis=1).min() == 7  # each block fills its range
    assert low.graph.constant(node.inputs[0]).dtype == ml_dtypes.int4
