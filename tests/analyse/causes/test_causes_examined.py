"""Causes are found on the sample that makes most of the error, too."""

from __future__ import annotations

import numpy as np
from half_networks import Builder

import qdebug


def test_what_one_sample_of_many_loses_is_explained() -> None:
    """Its values lie far beyond the range; samples that are spread evenly do not hold it."""
    b = Builder(0)
    y = b.add("MatMul", "x", b.constant(np.random.default_rng(1).normal(size=(16, 8))))
    model = b.model({"x": ["n", 16]}, [y])
    x = np.random.default_rng(2).uniform(-1, 1, (200, 16)).astype(np.float32)
    calibration = {"x": x.copy()}
    x[77, 3] = 3.0
    result = qdebug.compare(
        model, inputs={"x": x}, calib_data=calibration, batch_size=1, cache=False
    )
    (layer,) = (r for r in result.layers if r.op_type == "MatMul")
    assert layer.causes[0].label in ("unrepresentative-calibration", "clipping")
    assert layer.causes[0].share > 0.9
