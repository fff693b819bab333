"""Every strategy: what it finds, in how many evaluations, and that it claims no more."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Predicate, additive, layers, names_of, needing, problem, search

from qdebug.config.strategies import STRATEGIES
from qdebug.decide.search.find import Outcome
from qdebug.decide.search.strategies import MODULES, load_strategy
from qdebug.errors import UsageError


def test_the_registry_is_read_without_numpy_and_loads_each() -> None:
    code = "import sys, qdebug.decide.search.strategies; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numpy" not in done.stdout.split()
    assert list(MODULES) == list(STRATEGIES)
    assert [load_strategy(name).__name__ for name in STRATEGIES] == list(STRATEGIES)


every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
LAYERS = layers(16)


@pytest.mark.parametrize(
    ("strategy", "culprits", "found", "evaluations"),
    [
        # Each count includes the two evaluations with nothing and with everything raised.
        ("prefix", [0], 1, 6),
        ("prefix", [4], 5, 6),
        ("prefix", [4, 9], 10, 6),
        ("suffix", [15], 1, 6),
        ("suffix", [4, 9], 12, 6),
        ("rank", [0], 1, 3),  # without estimates the order is that of the network
        ("rank", [4], 5, 8),
        ("rank", [4, 9], 10, 9),
        ("ddmin", [4], 1, 7),
        ("ddmin", [4, 9], 2, 26),
        ("auto", [4], 1, 8),
        ("auto", [15], 1, 7),
        ("auto", [4, 9], 2, 14),
        ("auto", [4, 9, 10], 3, 18),
        ("exhaustive", [4], 1, 9),  # by eights, of which nothing is one
    ],
)
def test_the_number_of_evaluations(
    strategy: str, culprits: list[int], found: int, evaluations: int
) -> None:
    predicate = needing([LAYERS[i] for i in culprits])
    result = search(predicate, problem(LAYERS), strategy)
    assert result.outcome is Outcome.FOUND
    assert names_of(result.pins) >= {LAYERS[i] for i in culprits}
    assert (len(result.pins), result.evaluations) == (found, evaluations)


@pytest.mark.parametrize("culprits", [[4], [4, 9], [0, 1, 2, 15]])
def test_auto_with_a_good_ranking_asks_for_little_more_than_the_proof(culprits: list[int]) -> None:
    estimates = [1.0 if i in culprits else 0.01 for i in range(16)]
    contributions = dict(zip(LAYERS, estimates, strict=True))
    predicate = additive(contributions, threshold=0.3)
    result = search(predicate, problem(LAYERS, estimates=estimates))
    assert names_of(result.pins) == {LAYERS[i] for i in culprits}
    assert result.minimal
    proof = len(culprits) if len(culprits) > 1 else 0  # of one: that nothing fails is known
    assert result.evaluations == 3 + proof


@pytest.mark.parametrize(
    ("culprits", "singly", "in_blocks"),
    [
        (range(40, 48), 55, 27),  # a block
        (range(40, 44), 32, 23),  # half of one
        ([*range(40, 48), *range(80, 88)], 94, 61),
        ([3, 40, 77], 26, 31),  # of layers that do not go together it asks for some more
    ],
)
def test_layers_of_a_block_are_found_together(
    culprits: Sequence[int], singly: int, in_blocks: int
) -> None:
    names = layers(96)
    wanted = {names[i] for i in culprits}
    plain = problem(names)
    items = tuple(replace(x, block=f"block {i // 8}") for i, x in enumerate(plain.items))
    for of, evaluations in ((plain, singly), (replace(plain, items=items), in_blocks)):
        result = search(needing(sorted(wanted)), of)
        assert (names_of(result.pins), result.minimal) == (wanted, True)
        assert result.evaluations == evaluations


def test_blocks_are_not_asked_for_where_single_layers_are_predicted() -> None:
    contributions = dict(zip(layers(96), [1.0] * 2 + [1e-3] * 94, strict=True))
    plain = problem(layers(96), estimates=list(contributions.values()))
    items = tuple(replace(x, block=f"block {i // 8}") for i, x in enumerate(plain.items))
    counts = [
        search(additive(contributions, 0.3), of).evaluations
        for of in (plain, replace(plain, items=items))
    ]
    assert counts[0] == counts[1] < 8


verdicts = st.integers(2, 6).flatmap(
    lambda n: st.tuples(st.just(n), st.frozensets(st.integers(1, 2**n - 2)), st.booleans())
)


@settings(max_examples=150)
@given(verdicts, st.sampled_from(sorted(STRATEGIES)), st.integers(0, 99))
def test_whatever_the_predicate_the_answer_passes_and_minimal_is_true(
    verdict: tuple[int, frozenset[int], bool], strategy: str, seed: int
) -> None:
    """Predicates without any order in them, with and without a noise that is as random."""
    count, passing, noisy = verdict
    names, rng = layers(count), random.Random(seed)
    bit = {name: 1 << i for i, name in enumerate(names)}

    def judge(raised: frozenset[str]) -> bool:
        bits = sum(bit[name] for name in raised)
        return bits == 2**count - 1 or bits in passing

    def noise(raised: frozenset[str]) -> float:
        return random.Random(repr((seed, sorted(raised)))).lognormvariate(0, 2)

    predicate = Predicate(judge, noise if noisy else None, 1.0 if noisy else None)
    costs = [rng.choice([0.0, 1.0, rng.random()]) for _ in names]
    estimates = [rng.choice([0.0, rng.random()]) for _ in names]
    of = problem(names, costs, estimates)
    result = search(predicate, of, strategy)
    chosen = frozenset(names_of(result.pins))
    assert result.outcome is Outcome.FOUND
    assert judge(chosen)
    assert result.pins in predicate.calls
    if strategy in ("auto", "ddmin", "exhaustive"):
        assert result.minimal
    if result.minimal:
        assert not any(judge(chosen - {name}) for name in chosen)
    again = search(Predicate(judge, predicate.noise, predicate.threshold), of, strategy)
    assert again == result


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(1e-3, 10)), min_size=1, max_size=7),
    st.floats(0.01, 0.9), st.booleans(), st.booleans(),
)  # fmt: skip
def test_few_layers_get_the_cheapest_set(
    rows: list[tuple[float, float]], share: float, measured: bool, estimated: bool
) -> None:
    names = layers(len(rows))
    costs, noise = [c for c, _ in rows], [x for _, x in rows]
    predicate = additive(dict(zip(names, noise, strict=True)), share * sum(noise))
    if not measured:
        predicate.noise = None
    result = search(predicate, problem(names, costs, noise if estimated else None))
    sets = chain.from_iterable(combinations(range(len(rows)), k) for k in range(len(rows) + 1))
    cheapest = min(
        sum(costs[i] for i in s) for s in sets if predicate.judge(frozenset(names[i] for i in s))
    )
    assert result.cost == pytest.approx(cheapest)


@every_strategy
def test_two_layers_that_only_matter_together(strategy: str) -> None:
    """Raising one of the two does not help at all, and no model says so."""
    one, two = LAYERS[3], LAYERS[11]
    predicate = Predicate(lambda raised: one in raised and two in raised)
    result = search(predicate, problem(LAYERS), strategy)
    assert {one, two} <= names_of(result.pins)
    assert (
        (len(result.pins) == 2) == result.minimal == (strategy in ("auto", "ddmin", "exhaustive"))
    )


def test_of_two_layers_either_of_which_helps_the_cheaper_one_is_raised() -> None:
    dear, cheap = LAYERS[3], LAYERS[11]
    predicate = Predicate(lambda raised: dear in raised or cheap in raised)
    costs = [5.0 if name == dear else 1.0 for name in LAYERS]
    assert names_of(search(predicate, problem(LAYERS, costs)).pins) == {cheap}


def test_the_exhaustive_search_of_many_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="17 layers") as caught:
        search(needing(["/layer.3/Conv"]), problem(layers(17)), "exhaustive")
    assert caught.value.code == "QD-USAGE-TOO-MANY-LAYERS"
