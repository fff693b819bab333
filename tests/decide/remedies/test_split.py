"""Splitting where it is worth its work, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repair_networks import TOKENS, Builder

from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.split import REMEDY, _best, _Reading, added_macs, parts_for
from qdebug.network.prepare import Model
from qdebug.plan.rewrite.split import Split, Way, way_to


def outlier(reach: float, *, weight: float = 1.0, count: int = 1) -> Model:
    """Some of 256 channels reach further than the others, and with `weight` they matter no less in
    what reads them."""
    b = Builder(1, spread=0.0)
    hidden = b.add("Relu", b.linear("x", 8, 256))
    made, bias = (b.constants[b.nodes[i].input[1]] for i in (0, 1))
    made[:, :count] *= reach
    bias[:count] *= reach
    product = b.add("MatMul", hidden, b.constant(b.rng.normal(size=(256, 16))))
    b.constants[b.nodes[-1].input[1]][:count] *= weight
    return b.model(TOKENS, b.add("Add", product, b.constant(b.rng.normal(size=16))))


def proposed(at: Any) -> list[Any]:
    return list(REMEDY.propose(at.study, at.start, REMEDY.layers(at.start)))


@pytest.mark.parametrize("count", [1, 3])
def test_an_outlier_channel_is_split(count: int, case: Callable[..., Any]) -> None:
    at = case(outlier(8.0, count=count), count=64)
    (proposal,) = proposed(at)
    (name,) = proposal.layers
    node = proposal.result.graph.by_name[name]
    weight = proposal.result.graph.constant(node.inputs[1])
    assert weight is not None and weight.shape[0] == 288
    assert "12.5% more MACs in whole tiles" in proposal.what
    assert at.noise(proposal.result) < 0.7 * at.noise(at.start)


def test_what_was_corrected_before_stays_corrected(case: Callable[..., Any]) -> None:
    at = case(outlier(8.0), count=64)
    start = at.start
    for name in ("least-squares", "rounding"):
        remedy = REMEDIES[name]
        (proposal,) = remedy.propose(at.study, start, remedy.layers(start))
        start = proposal.result
    (proposal,) = REMEDY.propose(at.study, start, REMEDY.layers(start))
    result, (name,) = proposal.result, proposal.layers
    assert set(result.bound.corrections) == set(start.bound.corrections)
    before, after = (n.bound.corrections[name] for n in (start, result))
    values = start.graph.constant(start.layers.by_name[name].weight or "")
    assert before.weight is not None and after.weight is not None and values is not None
    assert after.bias is before.bias
    rows = {tuple(row) for row in after.weight}
    assert rows == {tuple(row) for row in before.weight} | {(0.0,) * 16}
    assert len(after.weight) > len(values)
    scales = [n.quantized(name).weight.scale for n in (start, result)]
    np.testing.assert_array_equal(*scales)
    assert at.noise(result) < 0.8 * at.noise(start)


def test_an_outlier_of_a_weight_of_one_scale_is_split(case: Callable[..., Any]) -> None:
    at = case(outlier(1.0, weight=12.0), count=64, weights="per-tensor")
    (proposal,) = proposed(at)
    kinds = [n.op_type for n in proposal.result.graph.nodes]
    assert kinds == [n.op_type for n in at.start.graph.nodes]
    assert at.noise(proposal.result) < 0.7 * at.noise(at.start)


def test_without_outliers_nothing_is_split(case: Callable[..., Any]) -> None:
    assert proposed(case(outlier(1.0), count=64)) == []


def test_channels_are_split_until_none_reaches_further() -> None:
    reach = np.array([1.0, 0.5, 0.26, 0.1, 0.0])
    np.testing.assert_array_equal(parts_for(reach, 0.5), [2, 1, 1, 1, 1])
    np.testing.assert_array_equal(parts_for(reach, 0.25), [4, 2, 2, 1, 1])
    np.testing.assert_array_equal(parts_for(reach, 0.3), [4, 2, 1, 1, 1])
    np.testing.assert_array_equal(parts_for(np.zeros(3), 0.5), [1, 1, 1])
    rng = np.random.default_rng(0)
    many = np.exp(rng.normal(size=200))
    for share in (0.7, 0.35, 0.125):
        parts = parts_for(many, share)
        assert (many / parts).max() <= share * many.max() * (1 + 1e-9)
        assert np.all(np.log2(parts) % 1 == 0)
        twice = parts > 1
        assert np.all((2 * many / parts)[twice] > share * many.max())


WAY = Way("x", "writer", ("reader",), (), True)


def test_what_adds_more_work_than_it_takes_off_noise_is_not_worth_it() -> None:
    few, many = (np.ones(320, np.int64) for _ in range(2))
    few[:32], many[:80] = 2, 2
    reading = _Reading(WAY, {(False, 0.5): few, (False, 0.35): many})
    # 10 % more work takes off 40 % of the noise, 30 % more 50 %.
    noise: dict[Any, float] = {None: 1.0, (False, 0.5): 0.6, (False, 0.35): 0.5}
    best = _best(reading, noise, 1.0)
    assert isinstance(best, Split) and best.parts is few
    assert _best(reading, noise, 3.9) is not None and _best(reading, noise, 4.1) is None
    assert _best(reading, {None: 1.0, (False, 0.5): 0.95, (False, 0.35): 0.8}, 1.0) is None
    assert _best(reading, {None: 0.0, (False, 0.5): 0.0, (False, 0.35): 0.0}, 1.0) is None


def test_the_work_that_is_added_is_that_of_both_layers(case: Callable[..., Any]) -> None:
    start = case(outlier(8.0)).start
    (way,) = [w for t in start.graph.producers if (w := way_to(start.graph, t)) is not None]
    parts = np.ones(256, np.int64)
    parts[0] = 4
    assert added_macs(start, [Split(way, parts)]) == pytest.approx(32 / 256)
