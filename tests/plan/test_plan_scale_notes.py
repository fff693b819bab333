"""Scales that are not positive are told, with the layer that reads what they dequantize."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from qdebug.plan.lints import scale_notes


@pytest.mark.parametrize(
    ("value", "told"), [(0.1, ""), (0.0, "1 zero"), (-0.1, "1 negative"), (np.nan, "1 not finite")]
)
def test_scales_that_are_not_positive(kit: SimpleNamespace, value: float, told: str) -> None:
    scales = np.array([0.1, 0.2, value, 0.3], np.float32)
    node = kit.node
    proto = kit.make(
        [
            node("DequantizeLinear", ["w", "s", "z"], ["w_dq"], "dq", axis=0),
            node("Conv", ["x", "w_dq"], ["y"], "conv"),
        ],
        {"x": (1, 3, 6, 6)}, ["y"],
        {"w": np.ones((4, 3, 1, 1), np.int8), "s": scales, "z": np.zeros(4, np.int8)},
    )  # fmt: skip
    notes = scale_notes(kit.model_of(proto).graph)
    assert len(notes) == bool(told)
    assert all(told in note and "'conv'" in note and "of 4" in note for note in notes)
