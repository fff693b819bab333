"""How good the search is, counted in evaluations and in cost, on problems with a known answer, next
to brute force and to the search of version 1, which had a strategy for each situation."""

from __future__ import annotations

import math
import random
from itertools import chain, combinations
from statistics import mean

import pytest
from synthetic import BASE, Predicate, additive, layers, names_of, problem, search

from qdebug.decide.search.find import Outcome
from qdebug.decide.search.problem import SearchProblem

PLANTED_BEFORE = {
    ("flat", False): 18.8,
    ("flat", True): 19.5,
    ("useless", False): 21.8,
    ("useless", True): 25.1,
    ("good", False): 8.4,
    ("good", True): 7.1,
}
"""Evaluations of version 1 in the mean, by what the estimates are worth and whether noise is
measured."""
MANY_BEFORE, MANY_COST_BEFORE = 57.3, 25.08
SMALL_BEFORE = {False: 19.5, True: 13.0}


def planted(
    count: int, culprits: int, seed: int, ranking: str, measured: bool
) -> tuple[SearchProblem, Predicate, set[str]]:
    """Layers of which some ruin the result; estimates that say nothing, mislead, or help."""
    rng, names = random.Random(seed), layers(count)
    spoilt = frozenset(rng.sample(names, culprits))
    noise = {n: rng.lognormvariate(0, 1) * 0.03 / count for n in names}
    noise |= {n: rng.lognormvariate(0, 0.5) for n in sorted(spoilt)}
    estimates = {
        "flat": lambda n: 0.0,
        "useless": lambda n: rng.lognormvariate(0, 1.5),
        "good": lambda n: noise[n] * rng.lognormvariate(0, 1),
    }[ranking]

    def left(raised: frozenset[str]) -> float:
        return BASE + math.fsum(x for n, x in noise.items() if n not in raised)

    predicate = Predicate(lambda raised: spoilt <= raised, left if measured else None)
    return problem(names, None, [estimates(n) for n in names]), predicate, set(spoilt)


def test_planted_culprits_are_found_in_about_as_many_evaluations() -> None:
    """Of 10 to 300 layers, 1 to 5 are needed: in at most 1.5 × the evaluations, in the mean."""
    ratios = []
    for (ranking, measured), before in PLANTED_BEFORE.items():
        evaluations = []
        for count, seeds in ((10, 8), (50, 8), (100, 4), (300, 1)):
            for culprits in (1, 2, 3, 5):
                for seed in range(seeds):
                    of, predicate, spoilt = planted(count, culprits, seed, ranking, measured)
                    result = search(predicate, of)
                    assert names_of(result.pins) == spoilt
                    assert result.minimal
                    evaluations.append(len(result.history))
        ratios.append(mean(evaluations) / before)
        print(f"{ranking}, noise {measured}: {mean(evaluations):.1f}, {before} before")
    assert mean(ratios) <= 1.5 and max(ratios) <= 1.75


def many(
    count: int, share: float, seed: int, measured: bool, deviation: float = 0.0
) -> tuple[SearchProblem, Predicate]:
    """Layers of different noise and cost that are too noisy together; estimates off by ×e^±1."""
    rng, names = random.Random(seed), layers(count)
    noise = {n: rng.lognormvariate(0, 1.5) for n in names}
    total = sum(noise.values())
    noise = {n: x / total for n, x in noise.items()}
    predicate = additive(noise, share, deviation)
    if not measured:
        predicate.noise = None
    costs = [rng.lognormvariate(0, 1) for _ in names]
    return problem(names, costs, [x * rng.lognormvariate(0, 1) for x in noise.values()]), predicate


def test_many_layers_that_are_too_noisy_together() -> None:
    """Sets as cheap as before, within 5 %, in at most 1.5 × the evaluations; the noise of a set may
    be off the sum."""
    evaluations, costs = [], []
    for deviation in (0.0, 0.1):
        for share in (0.03, 0.3):
            for count, seeds in ((30, 6), (60, 3)):
                for seed in range(seeds):
                    of, predicate = many(count, share, seed, True, deviation)
                    result = search(predicate, of)
                    assert result.minimal
                    evaluations.append(len(result.history))
                    costs.append(result.cost)
    print(f"{mean(evaluations):.1f} evaluations, cost {mean(costs):.2f}")
    assert mean(evaluations) <= 1.5 * MANY_BEFORE
    assert mean(costs) <= 1.05 * MANY_COST_BEFORE


@pytest.mark.parametrize("measured", [False, True], ids=["verdicts", "noise"])
def test_up_to_12_layers_the_set_is_nearly_always_the_cheapest(measured: bool) -> None:
    evaluations, ratios = [], []
    for count in (5, 9, 12):
        for seed in range(20):
            of, predicate = many(count, (0.02, 0.1, 0.3, 0.5)[seed % 4], seed, measured)
            result = search(predicate, of)
            assert result.minimal
            costs = {item.name: min(item.costs.values()) for item in of.items}
            sets = chain.from_iterable(combinations(costs, k) for k in range(count + 1))
            cheapest = min(sum(costs[n] for n in s) for s in sets if predicate.judge(frozenset(s)))
            ratios.append(result.cost / cheapest)
            evaluations.append(len(result.history))
    print(f"{mean(evaluations):.1f} evaluations; {mean(ratios):.3f} of the cheapest cost")
    assert mean(evaluations) <= 1.5 * SMALL_BEFORE[measured]
    assert mean(ratios) <= 1.02
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 0.9 * len(ratios)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("measured", [False, True], ids=["verdicts", "noise"])
def test_layers_that_interact(measured: bool, seed: int) -> None:
    """Noise that only appears when two layers are both low (either one raised removes it), and
    noise that only disappears when two layers are both raised."""
    rng, names = random.Random(seed), layers(80)
    a, b, c, d = rng.sample(names, 4)

    def left(raised: frozenset[str]) -> float:
        both_low = 1.0 if a not in raised and b not in raised else 0.0
        not_both_raised = 0.0 if c in raised and d in raised else 1.0
        return BASE + both_low + not_both_raised + 1e-5 * (len(names) - len(raised))

    predicate = Predicate(lambda raised: left(raised) < 0.1, left if measured else None, 0.1)
    result = search(predicate, problem(names, None, [rng.random() for _ in names]))
    assert result.minimal
    assert names_of(result.pins) in ({a, c, d}, {b, c, d})
    assert len(result.history) <= 75


@pytest.mark.parametrize("measured", [False, True], ids=["verdicts", "noise"])
@pytest.mark.parametrize("count", [12, 30])
def test_verdicts_that_flip_at_random(count: int, measured: bool) -> None:
    """One set in ten has the wrong verdict, always the same."""
    for seed in range(10):
        of, predicate, _ = planted(count, 3, seed, "useless", measured)
        judge = predicate.judge

        def flipped(raised: frozenset[str], judge=judge, seed=seed, full=count) -> bool:
            flip = random.Random(repr((seed, sorted(raised)))).random() < 0.1
            return bool(judge(raised)) != (flip and 0 < len(raised) < full)

        predicate.judge = flipped
        result = search(predicate, of)
        assert result.outcome is Outcome.FOUND
        assert flipped(frozenset(names_of(result.pins)))
        assert result.minimal
        assert len(result.history) <= 25 * count
