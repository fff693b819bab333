"""INT32 biases that are cut, seen in the quantized model alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from qdebug.plan.lints import saturated_biases, saturation_notes

END = 2**31


@pytest.mark.parametrize("end", [END - 1, -END, END - 128])  # the last as float32 cuts it
@pytest.mark.parametrize("reshaped", [False, True])
def test_a_bias_at_an_end_of_int32_is_cut(kit: SimpleNamespace, end: int, reshaped: bool) -> None:
    node, bias = kit.node, "b_dq"
    nodes = [node("DequantizeLinear", ["b", "s"], ["b_dq"], "dq", axis=0)]
    if reshaped:
        bias = "b_flat"
        nodes.append(node("Reshape", ["b_dq", "flat"], [bias], "reshape"))
    proto = kit.make(
        [*nodes, node("Conv", ["x", "w", bias], ["y"], "conv")],
        {"x": (1, 3, 6, 6)}, ["y"],
        {"w": np.ones((4, 3, 1, 1), np.float32), "s": np.array([1, 2, 1e-9, 1], np.float32) / 100,
         "b": np.array([5, -7, end, END // 2], np.int32), "flat": np.array([4])},
    )  # fmt: skip
    (bias_found,) = (found := saturated_biases(kit.model_of(proto).graph)).values()
    assert set(found) == {"conv"}
    assert (bias_found.channels, bias_found.count) == ((2,), 4)
    limit = END * 1e-11
    assert bias_found.limits == pytest.approx([limit], rel=1e-6)
    assert bias_found.exceeded(np.array([1, 1, -8 * limit, 1])) == pytest.approx(8, rel=1e-6)
    assert bias_found.exceeded(np.array([9, 9, limit / 2, 9])) == 1
    assert bias_found.exceeded(np.ones(3)) == 1  # of another layer
    (note,) = saturation_notes(found)
    assert "'conv'" in note and "channel 2" in note


def test_large_codes_are_not_cut(kit: SimpleNamespace) -> None:
    proto = kit.make(
        [kit.node("DequantizeLinear", ["b", "s"], ["d"], "dq"),
         kit.node("Add", ["x", "d"], ["y"], "add")],
        {"x": (1, 2)}, ["y"],
        {"s": np.float32(1e-9), "b": np.array([END - 1000, 1000 - END], np.int32)},
    )  # fmt: skip
    assert saturated_biases(kit.model_of(proto).graph) == {}
