"""Weights in blocks that several layers read."""

from __future__ import annotations

import numpy as np
import onnx
from half_networks import Builder

import qdebug


def chain(*, tied: bool) -> onnx.ModelProto:
    """Four products, of which the last three read one weight, two by an Identity."""
    b = Builder(7)
    first = b.weight(64, 64)
    h = b.add("Relu", b.add("MatMul", "x", b.weight(64, 64)))
    for k in range(3):
        own = b.weight(64, 64) if not tied else b.add("Identity", first) if k else first
        h = b.add("Relu", b.add("MatMul", h, own))
    return b.model({"x": ["n", 64]}, [h])


def test_a_pin_that_stores_a_weight_twice_is_told() -> None:
    x = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    tied, untied = (
        qdebug.compare(chain(tied=t), inputs={"x": x}, precision="w4", cache=False)
        for t in (True, False)
    )
    assert tied.summary is not None and len(tied.summary.layers) > 0
    assert sum("has the weight of 2 other layers" in note for note in tied.notes) == 1
    assert not any("has the weight of" in note for note in untied.notes)
