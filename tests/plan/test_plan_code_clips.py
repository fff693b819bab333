"""Clips of codes, as Brevitas writes them, are left out where they change no value."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

from qdebug.errors import ModelError
from qdebug.network.graph import Graph
from qdebug.plan.rewrite.code_clips import without_code_clips


def clipped(kit: SimpleNamespace, low: int, high: int, most: int = 7) -> Graph:
    """x, clipped to `low` … `high` of INT8, times a weight of codes up to `most`, clipped alike."""
    node, nodes, constants = kit.node, [], {}
    for t, s, ends in (("x", "sx", (low, high)), ("w", "sw", (-7, 7))):
        nodes += [
            node("QuantizeLinear", [t, s, "z"], [f"{t}_q"], f"{t}_q"),
            node("Clip", [f"{t}_q", f"{t}_low", f"{t}_high"], [f"{t}_c"], f"{t}_clip"),
            node("DequantizeLinear", [f"{t}_c", s, "z"], [f"{t}_d"], f"{t}_dq"),
        ]
        constants |= {f"{t}_low": np.int8(ends[0]), f"{t}_high": np.int8(ends[1])}
    weight = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    weight[0, 0] = 1
    proto = kit.make(
        [*nodes, node("MatMul", ["x_d", "w_d"], ["y"], "product")],
        {"x": (5, 4)}, ["y"],
        {**constants, "w": weight, "z": np.int8(0), "sx": np.float32(3 / 127),
         "sw": np.float32(1 / most)},
    )  # fmt: skip
    return Graph(proto)


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("low", [-127, -128])
def test_a_clip_to_all_codes_or_all_but_the_lowest_is_left_out(
    kit: SimpleNamespace, low: int
) -> None:
    graph = clipped(kit, low, 127)
    proto, count = without_code_clips(graph, "m.onnx")
    assert count == 2 and all(n.op_type != "Clip" for n in proto.graph.node)
    inside = np.random.default_rng(1).uniform(-3, 3, (5, 4)).astype(np.float32)
    assert np.array_equal(run(proto, inside), run(graph.proto, inside))


@pytest.mark.parametrize(("low", "high", "most"), [(-7, 7, 7), (0, 127, 7), (-127, 127, 20)])
def test_fewer_codes_than_the_format_has_are_refused(
    kit: SimpleNamespace, low: int, high: int, most: int
) -> None:
    with pytest.raises(ModelError) as raised:
        without_code_clips(clipped(kit, low, high, most), "m.onnx")
    assert raised.value.code == "QD-MODEL-CODE-CLIP" and "m.onnx" in str(raised.value)


def test_other_clips_stay(kit: SimpleNamespace) -> None:
    proto = kit.make(
        [kit.node("Clip", ["x", "low"], ["y"], "relu")], {"x": (2,)}, ["y"], {"low": np.float32(0)}
    )
    assert without_code_clips(Graph(proto), "m.onnx") == (proto, 0)
