"""The noise model, its link to the verdict, the cheapest set, and the trade-off list."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from synthetic import FP16, additive, layers, problem, search

from qdebug.decide.search.knapsack import cheapest
from qdebug.decide.search.model import Link, NoiseModel
from qdebug.decide.search.oracle import Evaluation
from qdebug.decide.search.pareto import pareto
from qdebug.decide.search.problem import Measurement, pins_of

positive = st.floats(1e-4, 1e4)


@given(st.lists(st.floats(1e-3, 1e2), min_size=1, max_size=8), st.data())
def test_the_model_learns_contributions_that_are_measured(
    x: list[float], data: st.DataObject
) -> None:
    """Layers are left out one by one, whatever was estimated before."""
    estimates = [v * 10 ** data.draw(st.floats(-1, 1)) for v in x]
    base = 1e-6
    model = NoiseModel(estimates, base + sum(x), base)
    for i, value in enumerate(x):
        model.observe(np.arange(len(x)) != i, base + value)
    assert model.contributions == pytest.approx(x, rel=0.1)
    none = np.zeros((1, len(x)), np.bool_)
    assert float(model.predict(none)[0]) == pytest.approx(base + sum(x), rel=0.1)
    assert model.deviation(none)[0] < 0.1


def test_the_model_starts_from_the_estimates_scaled_to_what_was_measured() -> None:
    model = NoiseModel([1.0, 3.0, 0.0], 0.0601, 0.0001)
    assert model.contributions == pytest.approx([0.01, 0.03, 0.02], rel=0.02)
    model.observe(np.array([True, False, True]), 0.0031)
    assert model.contributions[1] == pytest.approx(0.003, rel=0.1)
    assert model.contributions[[0, 2]].sum() == pytest.approx(0.057, rel=0.1)


def measured(noise: float, bound: float, logarithmic: bool = False) -> Measurement:
    slack = 10 * math.log10(bound / noise) if logarithmic else bound - noise
    return Measurement(slack, slack >= 0, noise, slack=slack)


@given(positive, positive, st.lists(positive, max_size=3), st.booleans())
def test_the_link_interpolates_slack(
    low: float, bound: float, more: list[float], logarithmic: bool
) -> None:
    """Exact where slack is linear in noise or in dB; always between what passed and failed."""
    link = Link()
    for noise in (bound / (1 + low), bound * 3, *more):
        link.observe(measured(noise, bound, logarithmic))
    assert link.passing * (1 - 1e-9) <= link.threshold() <= link.failing * (1 + 1e-9)
    if not logarithmic and not more:
        assert link.threshold() == pytest.approx(bound)


def test_the_link_sees_that_slack_is_in_decibels() -> None:
    link = Link()
    for noise in (1e-6, 1e-3, 1.0):
        link.observe(measured(noise, 1e-2, logarithmic=True))
    assert link.threshold() == pytest.approx(1e-2)


def test_without_slack_or_order_the_link_stays_in_the_middle() -> None:
    link = Link()
    link.observe(Measurement(None, True, 1e-4))
    link.observe(Measurement(None, False, 1e-2))
    link.observe(Measurement(None, False, math.inf))
    link.observe(Measurement(None, False, failure="no kernel"))
    assert link.threshold() == pytest.approx(1e-3)
    link.observe(Measurement(None, True, 1.0))
    assert link.threshold() == pytest.approx(1e-1)


@given(
    st.lists(st.tuples(st.floats(0, 10), positive), min_size=1, max_size=8),
    st.floats(0, 1), st.lists(st.integers(0, 255), max_size=4),
)  # fmt: skip
@example([(1.0, 1.0), (1.0, 6144.0), (1.0, 2047.0001)], 1.0, [])
def test_the_cheapest_set(rows: list[tuple[float, float]], share: float, bits: list[int]) -> None:
    costs, noise = np.array(rows).T
    count, allowed = len(rows), share * float(noise.sum())
    failed = [(b >> np.arange(count)) & 1 == 1 for b in bits]
    found = cheapest(costs, noise, allowed, failed)
    everyone = (np.array(flags) for flags in product([False, True], repeat=count))
    valid = [
        s for s in everyone
        if noise[~s].sum() <= allowed and all((s & ~f).any() for f in failed)
    ]  # fmt: skip
    if found is None:
        assert not [s for s in valid if noise[~s].sum() <= allowed * (1 - 1e-9)]
        return
    assert noise[~found].sum() <= allowed * (1 + 1e-9) + 1e-300
    assert all((found & ~f).any() for f in failed)
    best = min((costs[s].sum() for s in valid), default=math.inf)
    assert costs[found].sum() <= best * 1.002 + 1e-4


@example([(1, 2e-309), (2, 0.0)])
@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0, 1)), min_size=1, max_size=12))
def test_no_point_of_the_list_is_beaten(rows: list[tuple[int, float]]) -> None:
    names = layers(7)
    history = [
        Evaluation(pins_of(dict.fromkeys(names[i % 2 : i % 2 + k], FP16)), Measurement(x, True, x))
        for i, (k, x) in enumerate(rows)
    ]
    points = pareto(problem(names), history)
    costs, noise = [p.cost for p in points], [p.noise for p in points]
    assert costs == sorted(set(costs)) and noise == sorted(set(noise), reverse=True)
    for evaluation in history:
        cost, x = float(len(evaluation.pins)), evaluation.measurement.noise or 0.0
        assert any(p.cost <= cost and p.noise <= x for p in points)
    assert sum(p.knee for p in points) <= 1


def test_the_knee_is_where_more_cost_stops_to_pay() -> None:
    names = layers(10)
    contributions = {name: 1.0 if i < 3 else 1e-4 for i, name in enumerate(names)}
    result = search(
        additive(contributions, 1e-3), problem(names, None, list(contributions.values()))
    )
    (knee,) = [p for p in result.pareto if p.knee]
    assert knee.cost == 3
    assert result.pareto[0].cost == 0 and result.pareto[-1].cost == 10


def test_candidates_without_noise_are_not_listed() -> None:
    history = [
        Evaluation(frozenset(), Measurement(None, False, math.nan)),
        Evaluation(pins_of({layers(1)[0]: FP16}), Measurement(None, False, failure="no kernel")),
    ]
    assert pareto(problem(layers(1)), history) == ()


def test_a_measurement_tells_of_neighbours_too() -> None:
    """All layers are thought to add the same; the first ten, measured, add next to nothing."""
    model = NoiseModel([1.0] * 40, 40.0, 0.0)
    raised = np.arange(40) >= 10  # only the first ten are left low
    model.observe(raised, 0.1)
    found = model.contributions
    assert found[:10].max() < found[10] < found[20] < found[39]
