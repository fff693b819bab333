"""Splitting where it is worth its work, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repair_networks import TOKENS, Builder

from qdebug.model.prepare import Model
from qdebug.plan.rewrite.split import Split
from qdebug.remedies.registry import REMEDIES
from qdebug.remedies.split import REMEDY, _best, _Reading, added_macs, parts_for


def outlier(reach: float, *, weight: float = 1.0, count: int = 1) -> Model:
    """Some of 32 channels reach further than the others, by the values that a constant gives them,
    and with `weight` they matter no less in what reads them."""
    b = Builder(1, spread=0.0)
    inner = b.linear("x", 8, 32)
    factors = np.ones(32)
    factors[:count] = reach
    large = b.add("Tanh", b.add("Mul", inner, b.constant(np.full(32, 1.0))))
    x = b.add("Mul", large, b.constant(factors))
    matrix = b.rng.normal(size=(32, 16))
    matrix[:count] *= weight
    product = b.add("MatMul", x, b.constant(matrix))
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
    assert weight is not None and weight.shape[0] > 32
    assert f"{weight.shape[0] - 32} channel" in proposal.what
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
    columns = {tuple(row) for row in after.weight}
    assert columns == {tuple(row) for row in before.weight} and len(after.weight) > len(values)
    scales = [n.int8(name).weight.scale for n in (start, result)]
    np.testing.assert_array_equal(*scales)
    assert at.noise(result) < 0.8 * at.noise(start)


def test_an_outlier_of_a_weight_of_one_scale_is_split(case: Callable[..., Any]) -> None:
    at = case(outlier(1.0, weight=12.0), count=64, weights="per-tensor")
    (proposal,) = proposed(at)
    kinds = [n.op_type for n in proposal.result.graph.nodes]
    assert kinds.count("Gather") == 1
    assert kinds.count("Mul") == 2  # those of the network: the activation is repeated as it is
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


def test_what_adds_more_work_than_it_takes_off_noise_is_not_worth_it() -> None:
    few, many = (np.ones(20, np.int64) for _ in range(2))
    few[:2], many[:5] = 2, 2
    reading = _Reading("x", ("layer",), {(False, 0.5): few, (False, 0.35): many})
    # 10 % more work takes off 40 % of the noise, 25 % more 50 %.
    best = _best(reading, {None: 1.0, (False, 0.5): 0.6, (False, 0.35): 0.5})
    assert isinstance(best, Split) and best.parts is few
    assert _best(reading, {None: 1.0, (False, 0.5): 0.95, (False, 0.35): 0.8}) is None
    assert _best(reading, {None: 0.0, (False, 0.5): 0.0, (False, 0.35): 0.0}) is None


def test_the_work_that_is_added_is_that_of_the_layers(case: Callable[..., Any]) -> None:
    start = case(outlier(8.0)).start
    (second,) = [x.name for x in start.weighted() if start.graph.by_name[x.name].inputs[0] != "x"]
    parts = np.ones(32, np.int64)
    parts[0] = 5
    split = Split(start.graph.by_name[second].inputs[0], (second,), parts)
    # 6 tokens: 8 · 32 and 32 · 16 products each
    assert added_macs(start, [split]) == pytest.approx(4 / 32 * 512 / (512 + 256))
