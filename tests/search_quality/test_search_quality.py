"""How good the search is, counted in evaluations and in cost, on problems with a known answer."""

from __future__ import annotations

import math
import random
from itertools import chain, combinations
from statistics import mean

import pytest
from synthetic import BASE, Predicate, additive, layers, names_of, problem, search

from qdebug.decide.search.find import Outcome
from qdebug.decide.search.problem import SearchProblem

OTHERS = ("rank", "ddmin", "prefix", "suffix")


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


@pytest.mark.parametrize("measured", [False, True], ids=["verdicts", "noise"])
@pytest.mark.parametrize("ranking", ["flat", "useless", "good"])
@pytest.mark.parametrize("count", [10, 50, 100, 300])
def test_planted_culprits_are_found_within_the_bound(
    count: int, ranking: str, measured: bool
) -> None:
    """At most 2·k·log2(n/k) + 2k + 10 evaluations on average."""
    seeds = 8 if count < 100 else 4 if count < 300 else 1
    for culprits in (1, 2, 3, 5):
        evaluations = []
        for seed in range(seeds):
            of, predicate, spoilt = planted(count, culprits, seed, ranking, measured)
            result = search(predicate, of)
            assert names_of(result.pins) == spoilt
            assert result.minimal
            evaluations.append(result.evaluations)
        bound = 2 * culprits * math.log2(count / culprits) + 2 * culprits + 10
        print(f"n={count} k={culprits}: {mean(evaluations):.1f} of {bound:.1f}")
        assert mean(evaluations) <= bound
        if ranking == "good" and count > 12:
            assert mean(evaluations) <= 3 * culprits + 5


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


@pytest.mark.parametrize("deviation", [0.0, 0.1], ids=["additive", "roughly"])
@pytest.mark.parametrize("share", [0.03, 0.3])
@pytest.mark.parametrize("count", [30, 60])
def test_no_other_strategy_finds_a_cheaper_set(count: int, share: float, deviation: float) -> None:
    evaluations: dict[str, list[int]] = {name: [] for name in ("auto", *OTHERS)}
    for seed in range(6 if count == 30 else 3):
        cost = {}
        for strategy in evaluations:
            of, predicate = many(count, share, seed, True, deviation)
            result = search(predicate, of, strategy)
            cost[strategy] = result.cost
            evaluations[strategy].append(result.evaluations)
        assert cost["auto"] <= min(cost.values()) * (1 + 1e-9)
    print({name: mean(counts) for name, counts in evaluations.items()})
    assert mean(evaluations["auto"]) < 0.7 * mean(evaluations["ddmin"])


@pytest.mark.parametrize("measured", [False, True], ids=["verdicts", "noise"])
@pytest.mark.parametrize("count", [5, 9, 12])
def test_up_to_12_layers_the_set_is_the_cheapest(count: int, measured: bool) -> None:
    evaluations = []
    for seed in range(20):
        of, predicate = many(count, (0.02, 0.1, 0.3, 0.5)[seed % 4], seed, measured)
        result = search(predicate, of)
        costs = {item.name: min(item.costs.values()) for item in of.items}
        sets = chain.from_iterable(combinations(costs, k) for k in range(count + 1))
        cheapest = min(sum(costs[n] for n in s) for s in sets if predicate.judge(frozenset(s)))
        assert result.cost == pytest.approx(cheapest)
        assert result.minimal
        evaluations.append(result.evaluations)
    print(f"n={count}: {mean(evaluations):.1f} evaluations on average, {max(evaluations)} at most")
    assert mean(evaluations) <= 5 * count


def test_the_proof_asks_for_the_largest_cheaper_sets_only() -> None:
    """Where half of 10 layers at one cost are needed, whichever: the proof excludes 4 of 10."""
    names = layers(10)
    predicate = Predicate(lambda raised: len(raised) >= 5)
    result = search(predicate, problem(names))
    assert (len(result.pins), result.minimal) == (5, True)
    assert result.evaluations < math.comb(10, 4) + 25


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
    assert result.evaluations <= 60


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
        assert result.evaluations <= 25 * count
