"""weight-scales: one scale becomes one for each output channel, where a given model had one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from repair_networks import NETWORKS

from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.weight_scales import REMEDY
from qdebug.plan.plan import GIVEN, Correction, Granularity, TensorRange


def with_one_scale(start: Quantized) -> Quantized:
    """As a quantizer gives it: one scale for each weight, and a bias that it corrected."""
    weights = {layer.name: layer.weight or "" for layer in start.weighted()}
    ranges = {
        weight: TensorRange(float(np.abs(start.graph.constant(weight)).max()), GIVEN)
        for weight in weights.values()
    }
    first = next(iter(weights))
    return start.with_ranges(ranges).with_corrections({first: Correction(None, np.ones(1))})


def test_weights_of_one_scale_get_one_for_each_channel(case: Callable[..., Any]) -> None:
    at = case(NETWORKS["residual"]())
    given = with_one_scale(at.start)
    layers = REMEDY.layers(given)
    assert set(layers) == {layer.name for layer in given.weighted()}
    (proposal,) = REMEDY.propose(at.study, given, layers)
    assert proposal.result.bound == at.start.bound
    (part,) = REMEDY.propose(at.study, given, layers[1:])
    assert set(part.result.bound.corrections) == {layers[0]}
    changed = given.bound.plan.tensors.keys() - part.result.bound.plan.tensors.keys()
    assert changed == {given.layers.by_name[name].weight for name in layers[1:]}


def test_who_asks_for_one_scale_keeps_it(case: Callable[..., Any]) -> None:
    given = with_one_scale(case(NETWORKS["residual"]()).start)
    plan = replace(given.bound.plan, weights=Granularity.PER_TENSOR)
    assert not REMEDY.layers(replace(given, bound=replace(given.bound, plan=plan)))
