"""offsets: INT8 as it would be with zero points, in a form without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repair_networks import IMAGES, Builder

from qdebug.decide.remedies.registry import REMEDIES
from qdebug.network.prepare import Model
from qdebug.plan.plan import Correction

REMEDY = REMEDIES["offsets"]


def network(activation: str, size: int) -> Model:
    """An activation, and a convolution that reads it."""
    made = Builder(spread=0.0)
    return made.model(IMAGES, made.conv(made.add(activation, "x"), 3, 4, size=size))


@pytest.mark.parametrize("size", [1, 3])
def test_it_computes_what_a_zero_point_would(size: int, case: Callable[..., Any]) -> None:
    at = case(network("Relu", size))
    (layer,) = REMEDY.layers(at.start)
    proposal, *_ = REMEDY.propose(at.study, at.start, (layer,))
    node = at.start.graph.by_name[layer]
    read, output = node.inputs[0], node.outputs[0]
    x = at.run(at.start.graph.proto, [read])[read]
    step = x.max() / 2 * (1 + 0.5 / 127) / 127
    zero_point = np.rint(x / step) * step
    exact = at.run(at.start.graph.proto)[output]

    # The same layer with an input that needs no rounding, and the weight as rounded.
    weight = at.start.quantized(layer).weight
    rounded = weight.format.quantize(
        at.start.graph.constant(node.inputs[1]), weight.scale, weight.axis
    )
    windows = np.pad(zero_point, ((0, 0), (0, 0), (size // 2,) * 2, (size // 2,) * 2))
    view = np.lib.stride_tricks.sliding_window_view(windows, (size, size), (2, 3))
    bias = at.start.graph.constant(node.inputs[2]).reshape(-1, 1, 1)
    wanted = np.einsum("nchwkl,ockl->nohw", view, rounded) + bias
    found = at.run(proposal.result.proto())[output]
    inner = (..., slice(1, -1), slice(1, -1))  # at the borders the weight's rounding shows
    np.testing.assert_allclose(found[inner], wanted[inner], atol=1e-4 * np.abs(exact).max())
    # A quarter of the activation's noise is left, and all of the weight's.
    assert at.noise(proposal.result) < (0.5 if size == 1 else 0.6) * at.noise(at.start)


def test_activations_about_0_are_left_alone(case: Callable[..., Any]) -> None:
    at = case(network("Tanh", 1))
    assert not list(REMEDY.propose(at.study, at.start, REMEDY.layers(at.start)))


def test_constants_of_an_outputs_size_are_avoided_second(case: Callable[..., Any]) -> None:
    made = Builder(spread=0.0)
    first = made.conv(made.add("Relu", "x"), 3, 4, size=3)
    at = case(made.model(IMAGES, made.conv(made.add("Relu", first), 4, 4, size=1)))
    every, _, less, corrected = REMEDY.propose(at.study, at.start, REMEDY.layers(at.start))
    assert len(every.layers) == 2 and "1 constant of the size of an output" in every.what
    assert len(less.layers) == 1 and "constant" not in less.what
    assert corrected.what.endswith("biases corrected")
    assert len(corrected.layers) == 2  # the head's bias stays


def test_what_a_layer_was_corrected_by_stays(case: Callable[..., Any]) -> None:
    at = case(network("Relu", 1))
    (layer,) = REMEDY.layers(at.start)
    weight = at.start.graph.constant(at.start.layers.by_name[layer].weight)
    known = Correction(2 * weight, np.arange(4, dtype=np.float32))
    (plain,) = REMEDY.propose(at.study, at.start, (layer,))
    (again,) = REMEDY.propose(at.study, at.start.with_corrections({layer: known}), (layer,))
    of_plain, of_corrected = (x.result.bound.corrections[layer] for x in (plain, again))
    assert of_corrected.weight is known.weight
    # Twice the weight takes off twice as much: the network itself gives back half of it.
    (shifted,) = plain.result.graph.by_name[layer].inputs[:1]
    shift = plain.result.graph.producers[shifted].inputs[1]
    more = weight.sum(axis=(2, 3)) @ plain.result.graph.constant(shift).reshape(-1)
    wanted = known.bias + 2 * of_plain.bias + more
    np.testing.assert_allclose(of_corrected.bias, wanted, rtol=1e-4, atol=1e-5)
