"""Smoothing: factors by layer, chosen on samples that the ranges were not taken from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from repair_networks import TOKENS, Builder

from qdebug.decide.remedies.channels import channel_ranges
from qdebug.decide.remedies.factors import folds
from qdebug.decide.remedies.smoothing import REMEDY
from qdebug.network.prepare import Model
from qdebug.network.samples.subset import whole


def outliers(*, residual: bool) -> Model:
    """Two layers behind a normalization that makes one channel a hundred times the others."""
    b = Builder(0, spread=0.1)
    gamma = np.ones(8)
    gamma[3] = 100
    wide = b.add("LayerNormalization", "x", b.constant(gamma), b.constant(np.zeros(8)), axis=-1)
    first, second = b.linear(wide, 8, 8), b.linear(wide, 8, 8)
    total = b.add("Add", first, second)
    return b.model(TOKENS, b.add("Add", total, wide) if residual else total)


def proposed(at: Any) -> Any:
    (proposal,) = REMEDY.propose(at.study, at.start, REMEDY.layers(at.start))
    return proposal


def test_a_normalization_takes_in_the_factors_that_its_readers_share(
    case: Callable[..., Any],
) -> None:
    at = case(outliers(residual=False))
    result = proposed(at).result
    assert [n.op_type for n in result.graph.nodes] == [n.op_type for n in at.start.graph.nodes]
    tensor = "layernormalization0_out"
    before, after = (
        channel_ranges(at.study, n.graph, {tensor: -1})[tensor].amax for n in (at.start, result)
    )
    assert before.max() / np.median(before) > 50
    assert after.max() / np.median(after) < 15
    assert at.noise(result) < 0.3 * at.noise(at.start)


def test_another_reader_of_the_normalization_leaves_one_product(case: Callable[..., Any]) -> None:
    at = case(outliers(residual=True))
    proposal = proposed(at)
    assert [n.op_type for n in proposal.result.graph.nodes].count("Mul") == 1
    assert "1 Mul inserted" in proposal.what
    assert at.noise(proposal.result) < 0.3 * at.noise(at.start)


def test_nothing_is_proposed_where_channels_are_alike(case: Callable[..., Any]) -> None:
    b = Builder(0, spread=0.0)
    at = case(b.model({"x": ("N", 64)}, b.gemm("x", 64, 64)), count=64)
    assert list(REMEDY.propose(at.study, at.start, REMEDY.layers(at.start))) == []


@pytest.mark.parametrize("count", [8, 40])
def test_ranges_are_judged_on_other_samples(count: int, case: Callable[..., Any]) -> None:
    at = case(outliers(residual=False), count=count)  # one batch, or three
    pairs = folds(at.study)
    assert len(pairs) == 2
    for seen, other in pairs:
        assert not set(seen.samples.indices) & set(other.samples.indices)
        assert sorted([*seen.samples.indices, *other.samples.indices]) == list(range(count))


def test_a_single_sample_is_its_own_judge(case: Callable[..., Any]) -> None:
    at = case(outliers(residual=False), count=1)
    ((seen, other),) = folds(replace(at.study, samples=whole(at.study.samples.samples)))
    assert seen is other
