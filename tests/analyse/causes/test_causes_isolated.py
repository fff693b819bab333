"""What a layer that runs isolated says of its error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdebug
from qdebug.analyse.causes.isolated import joined_in
from qdebug.network.graph import Graph
from qdebug.types import Array


def product(weight: Array) -> onnx.ModelProto:
    """x → MatMul product → y."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [value("x", TensorProto.FLOAT, ["N", weight.shape[0]])],
        [value("y", TensorProto.FLOAT, ["N", weight.shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("size", "share"), [(64.0, 1.0), (0.01, None)])
def test_partial_sums_that_alone_overflow_are_the_whole_cause(
    size: float, share: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the products are 4096 and half of them -4096: in FP16, whose largest number is 65504,
    the first 16 of them overflow, whatever the rest subtracts; every operand and result fits."""
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path))
    signs = np.where(np.arange(128) < 64, 1, -1).astype(np.float32)
    weight = np.stack([signs, signs], axis=1) * np.float32(size)
    weight[0] *= 1.5  # or else the result is 0
    x = np.full((4, 128), size, np.float32)
    exact, kernels = (
        qdebug.compare(product(weight), inputs={"x": x}, precision="fp16", fp16_kernels=how)
        for how in ("exact", "tensorrt")
    )
    assert np.isfinite(exact.layers[0].metrics.rmse)
    assert exact.layers[0].metrics.inf_count == exact.layers[0].metrics.nan_count == 0
    found = {c.label: c.share for c in kernels.layers[0].causes}
    if share is None:
        assert kernels.layers[0].metrics.inf_count == 0
        assert "fp16-overflow" not in found
        return
    broken = kernels.layers[0].metrics
    assert broken.inf_count + broken.nan_count == 8
    assert found == {"fp16-overflow": share}


def test_a_tensor_without_a_finite_value() -> None:
    """A network that overflows in FP32 already is compared like any other."""
    model = product(np.full((4, 4), 3e38, np.float32))
    model.graph.node.append(helper.make_node("MatMul", ["y", "w2"], ["z"], "second"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "w2"))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4]))
    found = qdebug.compare(model, inputs={"x": np.full((4, 4), 9, np.float32)})
    assert {x.name for x in found.layers} == {"product", "second"}


def test_what_is_taken_out_of_a_concat() -> None:
    graph = Graph(
        helper.make_model(
            helper.make_graph(
                [
                    helper.make_node("Concat", ["boxes", "scores"], ["joined"], "c", axis=1),
                    helper.make_node("Split", ["joined"], ["b", "s"], "s", axis=1),
                    helper.make_node("Reshape", ["s", "shape"], ["flat"], "r"),
                    helper.make_node("Softmax", ["flat"], ["soft"], "m"),
                ],
                "g",
                [],
                [],
            )
        )
    )
    found = {t: joined_in(graph, t) for t in ("boxes", "joined", "s", "flat", "soft")}
    assert found == {"boxes": "", "joined": "", "s": "joined", "flat": "joined", "soft": ""}
