"""What builders of symmetric INT8 take of a model that others quantized."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdebug.errors import UsageError
from qdebug.network.graph import Graph
from qdebug.plan.rewrite.symmetric import (
    check_symmetric,
    quantized_tensors,
    with_float_biases,
)

F32 = np.float32


def _graph(kit: SimpleNamespace, zero: Any, dynamic: bool = False) -> Graph:
    node = kit.node
    first = (
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "q1")
        if dynamic
        else node("QuantizeLinear", ["x", "s", "z"], ["q"], "q1")
    )
    nodes = [
        first,
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "d1"),
        node("DequantizeLinear", ["wc", "ws"], ["w"], "d2", axis=0),
        node("DequantizeLinear", ["bc", "bs"], ["b"], "d3", axis=0),
        node("Gemm", ["d", "w", "b"], ["y"], "gemm", transB=1),
    ]
    constants: dict[str, Any] = {
        "wc": np.array([[1, -2, 3], [4, 5, -6]], np.int8), "ws": np.array([0.5, 0.25], F32),
        "bc": np.array([70000, -5], np.int32), "bs": np.array([0.001, 0.5], F32),
    }  # fmt: skip
    if not dynamic:
        constants |= {"s": np.array(0.1, F32), "z": zero}
    return Graph(kit.model_of(kit.make(nodes, {"x": (2, 3)}, ["y"], constants)).graph.proto)


@pytest.mark.parametrize(
    ("zero", "says"),
    [
        (np.array(0, np.int8), ""),
        (np.array(5, np.int8), "signed with zero point 5"),
        (np.array(0, np.uint8), "unsigned with zero point 0"),
        (np.array(128, np.uint8), "unsigned with zero point 128"),
    ],
)
def test_what_is_symmetric(kit: SimpleNamespace, zero: Any, says: str) -> None:
    graph = _graph(kit, zero)
    found = quantized_tensors(graph)
    assert found.count == 2  # the activation and the weight; a bias is none
    if not says:
        assert not found.others
        check_symmetric(graph, "m.onnx", "TensorRT")
        return
    assert len(found.others) == 1 and says in found.others[0] and "'x'" in found.others[0]
    with pytest.raises(UsageError) as caught:
        check_symmetric(graph, "m.onnx", "TensorRT")
    assert caught.value.code == "QD-USAGE-ASYMMETRIC" and "1 of 2" in caught.value.message


def test_dynamic_quantization_is_none_of_it(kit: SimpleNamespace) -> None:
    (said,) = quantized_tensors(_graph(kit, None, dynamic=True)).others
    assert "'x'" in said


def test_biases_become_fp32_without_changing_a_bit(kit: SimpleNamespace) -> None:
    graph = _graph(kit, np.array(0, np.int8))
    plain, count = with_float_biases(graph)
    assert count == 1 and kit.ops(plain).count("DequantizeLinear") == 2
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(F32)
    np.testing.assert_array_equal(kit.run(plain, {"x": x})["y"], kit.run(graph, {"x": x})["y"])
    assert with_float_biases(plain) == (plain, 0)
