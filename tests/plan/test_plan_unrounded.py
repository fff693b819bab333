"""Isolated layers that clip and do not round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.plan.imported import import_quantized
from qdebug.plan.rewrite.bypass import pairs_of
from qdebug.plan.rewrite.cut import cut_layers
from qdebug.plan.rewrite.unrounded import UnroundedLayers, without_rounding
from qdebug.types import Precision

F32 = np.float32
X = np.random.default_rng(2).normal(size=(5, 3)).astype(F32) * 3
W = np.random.default_rng(3).normal(size=(3, 4)).astype(F32)


def _unrounded(kit: SimpleNamespace, scale: Any, zero: Any) -> tuple[UnroundedLayers, str]:
    """That of a product that reads x through a Q/DQ pair; the name of its output."""
    nodes = [
        kit.node("QuantizeLinear", ["x", "s", "z"], ["q"], "q", axis=1),
        kit.node("DequantizeLinear", ["q", "s", "z"], ["d"], "dq", axis=1),
        kit.node("MatMul", ["d", "w"], ["y"], "mm"),
    ]
    constants = {"s": np.asarray(scale, F32), "z": zero, "w": W}
    graph = kit.model_of(kit.make(nodes, {"x": ("N", 3)}, ["y"], constants)).graph
    reference = kit.model_of(import_quantized(graph).network).graph
    local = cut_layers(reference, graph, find_layers(reference))
    assert local is not None
    return without_rounding(local, pairs_of(local)), local.outputs["mm"]


@pytest.mark.parametrize("zero", [np.array(0, np.int8), np.array(100, np.uint8)])
def test_values_are_clipped_to_what_the_pair_can_give(kit: SimpleNamespace, zero: Any) -> None:
    found, output = _unrounded(kit, 0.02, zero)
    info = np.iinfo(zero.dtype)
    low, high = ((limit - int(zero)) * F32(0.02) for limit in (info.min, info.max))
    assert not found.unknown and found.ranges["d"] == pytest.approx((low, high))
    assert "QuantizeLinear" not in kit.ops(Graph(found.proto))
    for slack in (0.0, 0.5, np.inf):
        given = {"x": X, found.slack: np.array(slack, F32)}
        expected = np.clip(X, F32(low - slack), F32(high + slack)) @ W
        np.testing.assert_allclose(kit.run(found.proto, given)[output], expected, rtol=1e-5)


def test_a_range_per_channel_is_not_known(kit: SimpleNamespace) -> None:
    found, _ = _unrounded(kit, [0.1, 0.2, 0.3], np.zeros(3, np.int8))
    assert found.unknown == {"mm"} and not found.ranges and not found.slack


def test_fp16_is_raised_and_its_weights_stay_rounded(kit: SimpleNamespace) -> None:
    proto = kit.make(
        [kit.node("MatMul", ["x", "w"], ["y"], "mm")], {"x": ("N", 3)}, ["y"], {"w": W}
    )
    low = kit.lowered(proto, kit.int8(precision=Precision.FP16))
    reference = kit.model_of(proto).graph
    local = cut_layers(reference, low.graph, find_layers(reference))
    assert local is not None
    found = without_rounding(local, pairs_of(local))
    given = kit.run(found.proto, {"x": X})[local.outputs["mm"]]
    assert given.dtype == F32 and not found.slack
    np.testing.assert_allclose(given, X @ W.astype(np.float16).astype(F32), rtol=1e-5)
