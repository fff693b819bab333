"""Bias correction, the refit and ranges: what they must achieve on networks that they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from repair_networks import IMAGES, NETWORKS, Builder

from qdebug.decide.remedies.bias_correction import missing_shift
from qdebug.decide.remedies.ranges import lower_by_more_than_chance
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.remedy import apart_from_heads
from qdebug.decide.remedies.walk import Walk
from qdebug.network.prepare import Model
from qdebug.plan.plan import TensorRange

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "SiLU": lambda y: y / (1 + np.exp(-y)),
    "HardSwish": lambda y: y * np.clip(y / 6 + 0.5, 0, 1),
    "Relu": lambda y: np.maximum(y, 0),
}
CORRECTING = ("bias-correction", "least-squares")


@pytest.mark.parametrize("network", ["digits_cnn", "digits_encoder"])
def test_no_missing_shift_is_left(network: str, bundled: Callable[[str], Any]) -> None:
    at = bundled(network)
    remedy = REMEDIES["bias-correction"]
    (proposal,) = remedy.propose(at.study, at.start, remedy.layers(at.start))
    assert proposal.layers == remedy.layers(at.start)
    before = [np.abs(missing_shift(site)).max() for site in Walk(at.study, at.start)]
    after = [np.abs(missing_shift(site)).max() for site in Walk(at.study, proposal.result)]
    assert np.median(before) > 1e-4
    assert np.median(after) < 1e-2 * np.median(before)
    assert max(after) < 0.05 * max(before)  # behind an activation three iterations leave a little


def test_the_bias_takes_off_what_the_outputs_lack(bundled: Callable[[str], Any]) -> None:
    """In the whole network with Q/DQ, executed at once."""
    at = bundled("digits_cnn")
    remedy = REMEDIES["bias-correction"]
    (proposal,) = remedy.propose(at.study, at.start, remedy.layers(at.start))
    feeds = Walk(at.study, at.start).feeds

    def mean(backend: Any, proto: Any) -> Any:
        session = backend.open(proto, ())
        return np.concatenate([session.run(one)["logits"] for one in feeds]).mean(axis=0)

    exact = mean(at.study.backend, at.start.graph.proto)
    before = mean(at.study.simulation, at.start.proto())
    after = mean(at.study.simulation, proposal.result.proto())
    assert np.abs(after - exact).max() < 0.05 * np.abs(before - exact).max()


def test_the_changed_layers_have_less_error(bundled: Callable[[str], Any]) -> None:
    at = bundled("digits_cnn")
    remedy = REMEDIES["least-squares"]
    (proposal,) = remedy.propose(at.study, at.start, remedy.layers(at.start))
    corrections = proposal.result.bound.corrections
    assert proposal.layers
    assert set(corrections) == set(proposal.layers)
    for site in Walk(at.study, proposal.result, frozenset(proposal.layers)):
        corrected = site.error()
        kept = {k: v for k, v in corrections.items() if k != site.layer.name}
        site.network = replace(
            proposal.result, bound=replace(proposal.result.bound, corrections=kept)
        )
        assert corrected < site.error(), site.layer.name
        site.network = proposal.result  # what the layers behind it were fitted to


def one_convolution(behind: str) -> Model:
    """Most of whose values are where a SiLU gives nothing."""
    made = Builder()
    weight = made.constant(made.rng.normal(size=(4, 3, 1, 1)))
    y = made.add("Conv", "x", weight, made.constant(np.full(4, -3.0)))
    if behind == "SiLU":
        return made.model(IMAGES, made.add("Mul", y, made.add("Sigmoid", y)))
    if behind == "another tensor":
        return made.model(IMAGES, made.add("Relu", made.add("Add", y, made.conv("x", 3, 4))))
    return made.model(IMAGES, made.add(behind, y))


@pytest.mark.parametrize("behind", ["SiLU", "HardSwish", "Relu"])
def test_a_bias_is_that_of_least_error_behind_the_activation(
    behind: str, case: Callable[..., Any]
) -> None:
    at = case(one_convolution(behind))
    known = at.start.bound.plan.tensors
    narrow = at.start.with_ranges({t: TensorRange(0.5 * x.amax) for t, x in known.items()})
    (site,) = Walk(at.study, narrow)
    pairs = list(zip(site.targets, site.outputs(), strict=True))
    plain = np.mean([(t - o).mean(axis=(0, 2, 3)) for t, o in pairs], axis=0)

    def error(shift: Any) -> float:
        behind_it = ACTIVATIONS[behind]
        shifted = [(behind_it(t), behind_it(o + shift.reshape(-1, 1, 1))) for t, o in pairs]
        return sum(float(np.square(x - y).sum()) for x, y in shifted)

    assert error(missing_shift(site)) < 0.95 * error(plain)


def test_what_another_tensor_is_added_to_counts_as_it_is(case: Callable[..., Any]) -> None:
    at = case(one_convolution("another tensor"))
    first, *_ = Walk(at.study, at.start)
    assert first.activation is None


@pytest.mark.parametrize("network", ["digits_cnn", "digits_encoder"])
def test_ranges_by_the_outputs_error_are_best_on_the_samples_they_saw(
    network: str, bundled: Callable[[str], Any]
) -> None:
    at = bundled(network)
    remedy = REMEDIES["ranges"]
    wide = {t: TensorRange(3 * x.amax) for t, x in at.start.bound.plan.tensors.items()}
    start = at.start.with_ranges(wide)
    proposals = list(remedy.propose(at.study, start, remedy.layers(start)))
    noise = [at.noise(p.result) for p in proposals]
    assert noise[0] <= 1.15 * min(noise)
    assert noise[0] < 0.3 * at.noise(start)
    methods = {p.what for p in proposals}
    assert {"minmax", "mse"} <= methods


def test_what_is_less_by_chance_is_not_less() -> None:
    rng = np.random.default_rng(0)
    before = rng.lognormal(size=30)
    assert lower_by_more_than_chance(0.9 * before, before)
    assert not lower_by_more_than_chance(before, before)
    assert not lower_by_more_than_chance(0.9999 * before, before)
    one = before.copy()
    one[int(np.argmax(before))] *= 0.2  # a single lucky execution
    assert not lower_by_more_than_chance(one, before)
    assert not lower_by_more_than_chance(np.where(before > 1, np.inf, 0.0), before)
    assert lower_by_more_than_chance(before[:1] * 0.5, before[:1])


@pytest.mark.parametrize("name", ["bias-correction", "least-squares"])
def test_output_heads_are_a_group_of_their_own(name: str, bundled: Callable[[str], Any]) -> None:
    start = bundled("digits_cnn").start
    layers = REMEDIES[name].layers(start)
    groups = REMEDIES[name].groups(start, layers)
    assert groups == apart_from_heads(start, layers)
    assert [len(g) for g in groups] == [len(layers) - 1, 1]


@pytest.mark.parametrize("name", ["ranges", *CORRECTING])
def test_a_repeated_proposal_is_the_same(name: str, case: Callable[..., Any]) -> None:
    at = case(NETWORKS["depthwise-silu"]())
    remedy = REMEDIES[name]
    found = [
        [p.result.proto() for p in remedy.propose(at.study, at.start, remedy.layers(at.start))]
        for _ in range(2)
    ]
    assert found[0] == found[1]
