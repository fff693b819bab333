"""head-shift: it restores the mean of what answers, and leaves noise and boxes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repair_networks import IMAGES, Builder

from qdebug.decide.remedies import head_shift
from qdebug.decide.remedies.head_shift import Decision, decision_of
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.network.prepare import Model
from qdebug.plan.plan import Correction


def detector(last: str) -> Model:
    """A convolution, and two heads: of boxes, and of two scores that `last` follows."""
    made = Builder()
    rng = made.rng

    def conv(x: str, ins: int, outs: int, size: int) -> str:
        weight = made.constant(rng.normal(size=(outs, ins, size, size)) / np.sqrt(ins))
        return made.add(
            "Conv", x, weight, made.constant(rng.normal(size=outs)), pads=[size // 2] * 4
        )

    features = made.add("Relu", conv("x", 3, 8, 3))
    boxes, logits = conv(features, 8, 4, 1), conv(features, 8, 2, 1)
    flat = made.add("Reshape", logits, made.constant(np.array([0, 2, -1])))
    scores = made.add(last, flat, **({"axis": 1} if last == "Softmax" else {}))
    return made.model(IMAGES, boxes, scores)


@pytest.mark.parametrize(
    ("last", "is_by"), [("Sigmoid", Decision.EACH), ("Softmax", Decision.BEST)]
)
def test_heads_of_scores_are_told_from_those_of_boxes(
    last: str, is_by: Decision, case: Callable[..., Any]
) -> None:
    at = case(detector(last))
    _, box, score = at.start.weighted()
    assert decision_of(at.start, score) is is_by and decision_of(at.start, box) is None
    assert REMEDIES["head-shift"].layers(at.start) == (score.name,)


def test_a_shift_of_the_answers_is_taken_off(case: Callable[..., Any]) -> None:
    at = case(detector("Sigmoid"), count=64)
    (name,) = REMEDIES["head-shift"].layers(at.start)
    logits = at.start.layers.by_name[name].output
    shifted = at.start.with_corrections({name: Correction(None, np.array([-0.8] * 2, np.float32))})
    reference = at.run(at.start.graph.proto, [logits])[logits]
    matters = reference > np.log(0.1 / 0.9)
    assert 0.05 < matters.mean() < 0.95

    def mean(network: Any) -> float:
        return float((at.run(network.proto(), [logits])[logits] - reference)[matters].mean())

    together, apart = REMEDIES["head-shift"].propose(at.study, shifted, (name,))
    assert mean(shifted) == pytest.approx(-0.8, abs=0.05)
    for proposal in (together, apart):
        assert abs(mean(proposal.result)) < 0.02
    bias = together.result.bound.corrections[name].bias
    assert bias is not None and bias[0] == bias[1]


def test_noise_around_no_shift_is_left_alone() -> None:
    rng = np.random.default_rng(0)

    def shift(mean: float, deviation: float, count: int) -> float:
        errors = mean + deviation * rng.standard_normal(count)
        sums = np.array([[count], [errors.sum()], [np.square(errors).sum()]], float)
        return float(head_shift._shift(sums)[0])

    assert shift(0.65, 0.8, 500) == pytest.approx(0.65, abs=0.15)
    assert shift(0.12, 0.45, 500) == 0  # surely one, but drowned
    assert shift(0.0, 0.27, 500) == 0
    assert shift(0.65, 0.8, 5) == 0  # too few positions
    assert shift(0.0, 0.0, 0) == 0
