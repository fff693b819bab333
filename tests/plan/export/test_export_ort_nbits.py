"""`--to ort-nbits`: MatMulNBits computes what the lowered model does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.errors import PlanError
from qdebug.plan.export import EXPORT_TARGETS
from qdebug.plan.export.ort_nbits import with_matmul_nbits
from qdebug.plan.export.source import ExportSource
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.rewrite.qoperator import to_qdq
from qdebug.types import Precision

F32 = np.float32
X = np.random.default_rng(0).normal(size=(5, 40)).astype(F32)


def network() -> onnx.ModelProto:
    """MatMul and Gemm, with 40 and 24 terms: neither is a multiple of 16."""
    rng, value = np.random.default_rng(1), helper.make_tensor_value_info
    constants = {"a": (40, 24), "b": (6, 24), "c": (6,)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["m"], "first"),
            helper.make_node("Relu", ["m"], ["r"], "relu"),
            helper.make_node("Gemm", ["r", "b", "c"], ["y"], "second", transB=1),
        ],
        "network",
        [value("x", TensorProto.FLOAT, ["n", 40])],
        [value("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(rng.normal(size=s).astype(F32), n) for n, s in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("precision", [Precision.W4, Precision.W8])
def test_onnx_runtime_computes_the_lowered_model(
    kit: SimpleNamespace, tmp_path: Path, precision: Precision, size: int
) -> None:
    """Blocks that end within the weight, and one block that is longer than it."""
    model = kit.model_of(network())
    bound = kit.bound(model, PrecisionPlan(precision, block_size=size))
    path = tmp_path / "out.onnx"
    rendered = EXPORT_TARGETS["ort-nbits"].render(ExportSource(model, bound, "p.yaml"), path)
    (data,) = rendered.files.values()
    proto = onnx.load_from_string(data)
    kinds = [n.op_type for n in proto.graph.node]
    assert kinds.count("MatMulNBits") == 2 and "DequantizeLinear" not in kinds
    assert "accuracy_level" in rendered.notes[0] and len(rendered.notes) == 1
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": X})
    low = kit.lowered(network(), bound.plan)
    expected = kit.run(low.graph, {"x": X})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    if size < 24:  # read again, it is the lowered model
        again = to_qdq(kit.model_of(proto).graph).proto
        np.testing.assert_allclose(kit.run(again, {"x": X})["y"], expected, rtol=1e-6, atol=1e-6)


def test_what_it_does_not_take(kit: SimpleNamespace, tmp_path: Path) -> None:
    model = kit.model_of(network())

    def render(plan: PrecisionPlan) -> Any:
        source = ExportSource(model, kit.bound(model, plan), "p.yaml")
        return EXPORT_TARGETS["ort-nbits"].render(source, tmp_path / "out.onnx")

    for plan, code in (
        (PrecisionPlan(Precision.FP32), "QD-PLAN-NOTHING-TO-QUANTIZE"),
        (PrecisionPlan(Precision.W4, block_size=24), "QD-PLAN-BLOCK-SIZE"),
    ):
        with pytest.raises(PlanError) as caught:
            render(plan)
        assert caught.value.code == code


def test_products_of_other_types_stay(kit: SimpleNamespace) -> None:
    """BF16, which MatMulNBits lacks on the CPU."""
    low = kit.lowered(kit.prepare(network(), 22), PrecisionPlan(Precision.W4, Precision.BF16))
    proto, left = with_matmul_nbits(low.graph)
    assert left == ["first", "second"]
    assert "MatMulNBits" not in {n.op_type for n in proto.graph.node}
