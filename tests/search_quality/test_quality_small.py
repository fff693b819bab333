"""Up to 12 layers the answer is the cheapest set, also where raising a layer can hurt."""

from __future__ import annotations

import random
from itertools import chain, combinations
from statistics import mean

import pytest
from synthetic import Predicate, additive, layers, names_of, problem, search

from qdebug.decide.search.find import SearchResult
from qdebug.decide.search.problem import SearchProblem


def uneven(count: int, seed: int, deviation: float) -> tuple[SearchProblem, Predicate]:
    """Layers of different noise and cost; the noise of every set is off the sum by a factor of
    e^±deviation, so that raising a layer may make it larger; estimates off by e^±1."""
    rng, names = random.Random(seed), layers(count)
    weights = [rng.lognormvariate(0, 1.5) for _ in names]
    noise = {n: x / sum(weights) for n, x in zip(names, weights, strict=True)}
    predicate = additive(noise, (0.02, 0.1, 0.3, 0.5)[seed % 4], deviation)
    costs = [rng.lognormvariate(0, 1) for _ in names]
    return problem(names, costs, [x * rng.lognormvariate(0, 1) for x in noise.values()]), predicate


def cheaper_sets(of: SearchProblem, cost: float) -> list[frozenset[str]]:
    """All sets that cost less."""
    costs = {item.name: min(item.costs.values()) for item in of.items}
    sets = chain.from_iterable(combinations(costs, k) for k in range(len(costs) + 1))
    return [frozenset(s) for s in sets if sum(costs[n] for n in s) < cost * (1 - 1e-9)]


def asked(result: SearchResult) -> set[frozenset[str]]:
    return {frozenset(names_of(evaluation.pins)) for evaluation in result.history}


@pytest.mark.parametrize(
    ("deviation", "each"), [(0.05, 2.2), (0.1, 2.2), (0.2, 3.5)], ids=["5%", "10%", "20%"]
)
@pytest.mark.parametrize("count", [6, 9, 12])
def test_where_raising_a_layer_can_hurt(count: int, deviation: float, each: float) -> None:
    """All but one optimal, in at most `each` evaluations for each layer on average; the search
    says how many cheaper sets it left out."""
    evaluations, missed = [], 0
    for seed in range(20 if count < 12 else 12):
        of, predicate = uneven(count, seed, deviation)
        result = search(predicate, of)
        cheaper = cheaper_sets(of, result.cost)
        missed += any(predicate.judge(s) for s in cheaper)
        evaluations.append(result.evaluations)
        assert result.cheaper_left == len(set(cheaper) - asked(result))
    print(f"n={count}: {mean(evaluations):.1f} evaluations, {max(evaluations)} at most; {missed}")
    assert missed <= 1
    assert mean(evaluations) <= each * count


def test_verdicts_without_any_order_end_within_the_budget() -> None:
    """One set in twenty passes, at random, whatever its noise: nothing helps but asking."""
    for seed in range(5):
        of, predicate = uneven(12, seed, 0.1)
        full = len(of.items)

        def judge(raised: frozenset[str], seed: int = seed, full: int = full) -> bool:
            lucky = random.Random(repr((seed, sorted(raised)))).random() < 0.05
            return len(raised) == full or (lucky and bool(raised))

        predicate.judge = judge
        result = search(predicate, of)
        assert judge(frozenset(names_of(result.pins))) and result.minimal
        assert result.evaluations <= 25 * full
        left = set(cheaper_sets(of, result.cost)) - asked(result)
        assert result.cheaper_left == len(left)
