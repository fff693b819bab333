"""One scale of an FP8 weight, written for each output channel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdebug.network.graph import Graph
from qdebug.plan.plan import Granularity, PrecisionPlan
from qdebug.plan.rewrite.fp8_scales import with_channel_scales_of_fp8
from qdebug.types import Precision


@pytest.fixture
def plan(kit: SimpleNamespace) -> PrecisionPlan:
    """FP8 with one scale per weight."""
    amax = {"x": 3.0, "r1": 6.0, "f": 4.0}
    made: PrecisionPlan = kit.int8(amax, precision=Precision.FP8, weights=Granularity.PER_TENSOR)
    return made


@pytest.fixture
def foreign(
    kit: SimpleNamespace, residual_net: Any, plan: PrecisionPlan, monkeypatch: pytest.MonkeyPatch
) -> onnx.ModelProto:
    """As other tools write it: with scalar scales."""
    with monkeypatch.context() as patched:
        patched.setattr("qdebug.plan.lower.channel_axis", lambda *_: None)
        proto: onnx.ModelProto = kit.lowered(kit.prepare(residual_net(19), 19), plan).graph.proto
    assert _scale_shapes(proto) == {"conv1": (), "conv2": (), "fc": ()}
    return proto


def _scale_shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """By layer, of its weight in FP8."""
    graph = Graph(proto)
    shapes = {}
    for name in ("conv1", "conv2", "fc"):
        dequantizer = graph.producers[graph.by_name[name].inputs[1]]
        assert graph.initializers[dequantizer.inputs[0]].data_type == TensorProto.FLOAT8E4M3FN
        shapes[name] = graph.constant(dequantizer.inputs[1]).shape
    return shapes


def test_convolutions_get_a_scale_per_channel(
    kit: SimpleNamespace, residual_net: Any, images: Any, plan: Any, foreign: onnx.ModelProto
) -> None:
    """When a plan is lowered, and in files of others. The same numbers: bit for bit the same."""
    own = kit.lowered(kit.prepare(residual_net(19), 19), plan).graph
    rewritten = with_channel_scales_of_fp8(foreign)
    expected = kit.run(Graph(foreign), {"x": images})["out"]
    for proto in (own.proto, rewritten):
        assert _scale_shapes(proto) == {"conv1": (4,), "conv2": (4,), "fc": ()}
        np.testing.assert_array_equal(kit.run(Graph(proto), {"x": images})["out"], expected)
    assert with_channel_scales_of_fp8(own.proto) is own.proto


def test_a_weight_of_two_convolutions(foreign: onnx.ModelProto) -> None:
    nodes = foreign.graph.node
    (conv,) = (n for n in nodes if n.name == "conv1")
    nodes.add().CopyFrom(conv)
    nodes[-1].name, nodes[-1].output[0] = "again", "c1_again"
    assert _scale_shapes(with_channel_scales_of_fp8(foreign))["conv1"] == (4,)


def test_other_models_are_left_alone(kit: SimpleNamespace, residual_net: Any) -> None:
    low = kit.lowered(residual_net(19), PrecisionPlan(Precision.FP16)).graph
    assert with_channel_scales_of_fp8(low.proto) is low.proto
