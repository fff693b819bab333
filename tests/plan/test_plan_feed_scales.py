"""Scales as inputs: fed with the plan's own, a model computes what the plan says, bit by bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.lower import lower
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.quantize import scale_of
from qdebug.plan.rewrite.feed_scales import feed_scales
from qdebug.types import Precision


@pytest.mark.parametrize("name", ["digits_cnn", "digits_encoder"])
def test_scales_that_are_fed_act_as_those_in_the_model(name: str) -> None:
    model = prepare_model(read_model(f"calib_data/{name}.onnx"))
    layers, plan = find_layers(model.graph), PrecisionPlan(Precision.INT8)
    needed = bind_plan(plan, model, layers).needed_ranges()

    def lowered(amax: float) -> Graph:
        tensors = {t: TensorRange(amax + i / 10) for i, t in enumerate(needed)}
        return lower(bind_plan(replace(plan, tensors=tensors), model, layers)).graph

    x = np.load("calib_data/digits_holdout.npz")["input"][:4]
    fed, inputs = feed_scales(lowered(1.0), needed)
    assert set(inputs) == set(needed)
    session = SimulationBackend(1).open(fed, [])
    for amax in (0.7, 3.0):
        expected = SimulationBackend(1).open(lowered(amax).proto, []).run({"input": x})
        scales = {inputs[t]: scale_of(amax + i / 10) for i, t in enumerate(needed)}
        for tensor, values in session.run({"input": x, **scales}).items():
            np.testing.assert_array_equal(values, expected[tensor])
