"""One scale of an FP8 weight, written for each output channel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from qdebug.network.graph import Graph
from qdebug.plan.plan import Granularity, PrecisionPlan
from qdebug.plan.rewrite.fp8_scales import with_channel_scales_of_fp8
from qdebug.types import Precision


@pytest.mark.parametrize("weights", list(Granularity))
def test_convolutions_get_a_scale_per_channel(
    kit: SimpleNamespace, residual_net: Any, images: Any, weights: Granularity
) -> None:
    """The same numbers: the model computes the same, bit for bit."""
    amax = {"x": 3.0, "r1": 6.0, "f": 4.0}
    plan = kit.int8(amax, precision=Precision.FP8, weights=weights)
    low = kit.lowered(kit.prepare(residual_net(19), 19), plan).graph
    found = with_channel_scales_of_fp8(low.proto)
    assert (found is low.proto) == (weights is Granularity.PER_CHANNEL)
    graph = Graph(found)
    for node in graph.nodes:
        readers = graph.consumers.get(node.outputs[0], ())
        if node.op_type == "DequantizeLinear" and any(
            r.op_type == "Conv" and r.inputs[1] == node.outputs[0] for r in readers
        ):
            codes = graph.initializers[node.inputs[0]]
            assert codes.data_type == TensorProto.FLOAT8E4M3FN
            assert graph.constant(node.inputs[1]).shape == (codes.dims[0],)
    expected = kit.run(low, {"x": images})["out"]
    np.testing.assert_array_equal(kit.run(graph, {"x": images})["out"], expected)


def test_other_models_are_left_alone(kit: SimpleNamespace, residual_net: Any) -> None:
    low = kit.lowered(residual_net(19), PrecisionPlan(Precision.FP16)).graph
    assert with_channel_scales_of_fp8(low.proto) is low.proto
