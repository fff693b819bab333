"""A whole search: its outcomes, its budget, and the two precisions of `auto`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import FP16, FP32, Predicate, additive, layers, names_of, needing, problem, search

from qdebug.config.strategies import STRATEGIES
from qdebug.decide.search.find import Outcome, find
from qdebug.decide.search.journal import Journal
from qdebug.decide.search.oracle import Oracle
from qdebug.decide.search.problem import Item, Measurement, Pins, PinTo, SearchProblem, pins_of
from qdebug.decide.search.strategies import load_strategy
from qdebug.types import Precision

LAYERS = layers(20)


def test_nothing_is_needed_where_the_target_holds_already() -> None:
    result = search(Predicate(lambda raised: True), problem(LAYERS))
    assert result.outcome is Outcome.NOTHING_NEEDED
    assert (result.pins, result.cost, result.minimal) == (frozenset(), 0.0, True)
    assert result.achieved == result.baseline is not None
    assert (result.ceiling, result.evaluations) == (None, 1)


def test_what_raising_everything_does_not_reach_is_impossible() -> None:
    result = search(Predicate(lambda raised: False), problem(LAYERS))
    assert result.outcome is Outcome.IMPOSSIBLE
    assert result.achieved is None
    assert result.ceiling is not None and not result.ceiling.passed
    assert (result.evaluations, result.minimal) == (2, False)
    assert "every layer raised" in result.reason


def test_without_layers_to_raise_a_failing_target_is_impossible() -> None:
    result = search(Predicate(lambda raised: False), problem([]))
    assert (result.outcome, result.evaluations) == (Outcome.IMPOSSIBLE, 1)


def test_pins_that_are_always_there_are_part_of_every_candidate() -> None:
    always = pins_of({"head": FP32})
    of = SearchProblem(problem(LAYERS).items, always=always, pin_to=PinTo.FP16)
    predicate = needing(["head", LAYERS[2]])
    result = search(predicate, of)
    assert result.pins == always | pins_of({LAYERS[2]: FP16})
    assert all(always <= pins for pins in predicate.calls)
    assert (result.cost, result.minimal) == (1.0, True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_spent_budget_returns_the_cheapest_that_passed(strategy: str) -> None:
    few = LAYERS[:10]
    for budget in range(1, 12):
        predicate = needing([few[4], few[9]])
        result = search(predicate, problem(few), strategy, budget)
        assert result.evaluations <= budget
        if result.outcome is not Outcome.UNFINISHED:
            continue
        passing = [p for p in predicate.calls if predicate.judge(frozenset(names_of(p)))]
        if passing:
            assert result.achieved is not None and result.achieved.passed
            assert len(result.pins) == min(map(len, passing))
        else:
            assert (result.achieved, result.pins) == (None, frozenset())
        assert f"limit of {budget}" in result.reason


def test_the_last_evaluation_allowed_may_complete_the_proof() -> None:
    complete = search(needing(LAYERS[4:6]), problem(LAYERS))
    limited = search(needing(LAYERS[4:6]), problem(LAYERS), "auto", complete.evaluations)
    assert limited == complete


NOISE = {name: 2.0 ** -((7 * i) % 20) for i, name in enumerate(LAYERS)}
"""The noisiest layers, in this order: 0, 3, 6, 9, 12, 15, 18."""


@pytest.mark.parametrize(("budget", "pinned"), [(2, 10), (3, 5), (4, 5), (5, 3), (20, 3)])
def test_a_search_that_may_end_soon_halves_its_answer(budget: int, pinned: int) -> None:
    """Three of 20 layers are needed: 10 pass, 5 do, 2 do not, 3 do; only then all are tried."""
    predicate = additive(NOISE, threshold=0.3)
    of = problem(LAYERS, estimates=list(NOISE.values()))
    result = search(predicate, of, max_evaluations=budget, hurried=True)
    assert len(result.pins) == pinned
    assert result.achieved is not None and result.achieved.passed
    assert (result.ceiling is None) == (budget < 20)


def test_where_half_of_the_layers_fail_everything_is_tried_next() -> None:
    predicate = additive(NOISE, threshold=1e-5)
    of = problem(LAYERS, estimates=list(NOISE.values()))
    result = search(predicate, of, max_evaluations=4, hurried=True)
    assert [len(pins) for pins in predicate.calls] == [0, 10, 20, 15]
    assert len(result.pins) == 20
    impossible = search(Predicate(lambda raised: False), of, hurried=True)
    assert (impossible.outcome, impossible.evaluations) == (Outcome.IMPOSSIBLE, 3)


@pytest.mark.parametrize("pin_to", [PinTo.FP16, PinTo.AUTO, PinTo.LADDER])
def test_a_search_that_may_end_soon_finds_the_same_when_it_does_not(pin_to: PinTo) -> None:
    of = problem(LAYERS, estimates=list(NOISE.values()), pin_to=pin_to)
    of = replace(of, items=tuple(replace(i, raised_noise={FP16: 0.0}) for i in of.items))
    patient = search(additive(NOISE, threshold=0.1), of)
    hurried = search(additive(NOISE, threshold=0.1), of, hurried=True)
    assert hurried.pins == patient.pins
    assert hurried.evaluations <= patient.evaluations + 12


class Levels:
    """INT8 noise of each layer, the share of it that FP16 leaves, and a threshold."""

    def __init__(self, int8: Mapping[str, float], fp16: Mapping[str, float], most: float) -> None:
        self._int8, self._fp16, self._most = int8, fp16, most
        self.calls: list[Pins] = []

    def __call__(self, sets: Sequence[Pins]) -> Iterator[Measurement]:
        for pins in sets:
            self.calls.append(pins)
            at = dict(pins)
            noise = sum(
                x * {FP32: 0.0, FP16: self._fp16.get(n, 1e-4)}.get(at.get(n, Precision.INT8), 1.0)
                for n, x in self._int8.items()
            )
            yield Measurement(noise, noise <= self._most, noise, slack=self._most - noise)


INT8 = {name: 1.0 if i in (3, 7, 12) else 1e-3 for i, name in enumerate(LAYERS)}


@pytest.mark.parametrize("strategy", ["auto", "ddmin"])
@pytest.mark.parametrize(
    ("fp16", "in_fp32"),
    [({}, []), ({LAYERS[7]: 0.9}, [7]), ({LAYERS[i]: 0.9 for i in (3, 7, 12)}, [3, 7, 12])],
    ids=["none", "one", "all"],
)
def test_auto_takes_fp16_where_it_suffices(
    strategy: str, fp16: dict[str, float], in_fp32: list[int]
) -> None:
    of = problem(LAYERS, estimates=list(INT8.values()), pin_to=PinTo.AUTO)
    oracle = Oracle(Levels(INT8, fp16, 0.1))
    result = find(of, oracle, load_strategy(strategy))
    expected = {LAYERS[i]: FP32 if i in in_fp32 else FP16 for i in (3, 7, 12)}
    assert dict(result.pins) == expected
    assert result.minimal
    assert result.cost == sum(3.0 if p is FP32 else 1.0 for p in expected.values())
    for name, precision in expected.items():
        assert (left_out := oracle.known(result.pins - {(name, precision)}))
        assert not left_out.passed
        if precision is FP32:
            lowered = result.pins - {(name, FP32)} | {(name, FP16)}
            assert (m := oracle.known(lowered)) and not m.passed


def test_auto_raises_a_layer_that_has_only_fp32() -> None:
    of = SearchProblem((Item("a", {FP32: 1.0}), Item("b", {FP32: 1.0})))
    result = search(needing(["b"]), of)
    assert result.pins == pins_of({"b": FP32})
    assert result.minimal


def test_a_candidate_that_cannot_be_built_has_failed_and_is_remembered() -> None:
    """Layers 4 and 5 only build together."""

    def evaluate(sets: Sequence[Pins]) -> Iterator[Measurement]:
        for pins in sets:
            raised = names_of(pins)
            if (LAYERS[4] in raised) != (LAYERS[5] in raised):
                yield Measurement(None, False, failure="no kernel for this pattern")
            else:
                yield Measurement(None, LAYERS[4] in raised)

    result = find(problem(LAYERS), Oracle(evaluate), load_strategy("auto"))
    assert names_of(result.pins) == set(LAYERS[4:6])
    assert result.minimal
    assert any(e.measurement.failure for e in result.history)


def test_what_the_evaluation_raises_ends_the_search_and_the_journal_goes_on(tmp_path: Path) -> None:
    contributions = {name: 1.0 if i in (3, 9) else 0.01 for i, name in enumerate(LAYERS)}
    complete = search(additive(contributions, 0.5), problem(LAYERS))
    calls: list[Pins] = []
    for fails_at in (3, 5, None):
        predicate = additive(contributions, 0.5)

        def evaluate(
            sets: Sequence[Pins], inner: Predicate = predicate, last: int | None = fails_at
        ) -> Iterator[Measurement]:
            for pins, measurement in zip(sets, inner(sets), strict=True):
                if last is not None and len(inner.calls) == last:
                    raise KeyboardInterrupt
                calls.append(pins)
                yield measurement

        with Journal(tmp_path / "journal", {"model": "m"}) as journal:
            oracle = Oracle(evaluate, journal=journal)
            if fails_at is not None:
                with pytest.raises(KeyboardInterrupt):
                    find(problem(LAYERS), oracle, load_strategy("auto"))
                continue
            resumed = find(problem(LAYERS), oracle, load_strategy("auto"))
    assert (resumed.pins, resumed.evaluations) == (complete.pins, complete.evaluations)
    assert [e.pins for e in resumed.history] == [e.pins for e in complete.history] == calls
    assert [e.replayed for e in resumed.history].count(True) == 6


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.floats(0.05, 0.9), st.sampled_from(["auto", "ddmin", "rank"]))
def test_whatever_the_predicate_what_is_said_of_two_precisions_is_true(
    seed: int, share: float, strategy: str
) -> None:
    """Verdicts at random for every assignment of INT8, FP16 and FP32 to four layers."""
    names = layers(4)

    def judge(pins: Pins) -> bool:
        if pins == pins_of(dict.fromkeys(names, FP32)):
            return True
        return bool(pins) and random.Random(repr((seed, sorted(pins)))).random() < share

    def evaluate(sets: Sequence[Pins]) -> list[Measurement]:
        return [Measurement(None, judge(pins)) for pins in sets]

    of = problem(names, pin_to=PinTo.AUTO)
    result = find(of, Oracle(evaluate), load_strategy(strategy))
    assert result.outcome is Outcome.FOUND
    assert judge(result.pins)
    neighbours = [result.pins - {pin} for pin in result.pins]
    neighbours += [result.pins - {(n, FP32)} | {(n, FP16)} for n, p in result.pins if p is FP32]
    evaluated = {e.pins: e.measurement.passed for e in result.history}
    shown = [n in evaluated and not evaluated[n] for n in neighbours]
    assert result.minimal == all(shown)
    assert result.minimal or strategy == "rank"


def test_an_infinite_estimate_is_the_first_to_be_suspected() -> None:
    estimates = [float("inf") if i == 7 else 0.01 for i in range(len(LAYERS))]
    contributions = {n: 5.0 if i == 7 else 0.01 for i, n in enumerate(LAYERS)}
    result = search(additive(contributions, 0.5), problem(LAYERS, estimates=estimates))
    assert names_of(result.pins) == {LAYERS[7]}
    assert result.evaluations <= 5


class Trap:
    """A dear pair is needed, or one cheap layer of which nothing tells."""

    DEAR, CHEAP = LAYERS[:2], LAYERS[15]

    def __init__(self) -> None:
        self.problem = problem(LAYERS, [10.0 if n in self.DEAR else 1.0 for n in LAYERS])
        self.predicate = Predicate(lambda raised: raised >= {*self.DEAR} or raised == {self.CHEAP})


def test_no_answer_is_dearer_than_what_was_seen_to_pass_before() -> None:
    blind = search(Trap().predicate, Trap().problem)
    assert names_of(blind.pins) == {*Trap.DEAR} and blind.cost == 20
    trap = Trap()
    oracle = Oracle(trap.predicate)
    assert oracle.ask(pins_of({Trap.CHEAP: FP16})).passed
    told = find(trap.problem, oracle, load_strategy("auto"))
    assert names_of(told.pins) == {Trap.CHEAP} and told.minimal
    assert told.evaluations == blind.evaluations + 1


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_with_sets_tried_before_a_search_ends_no_dearer(seed: int) -> None:
    rng = random.Random(seed)
    names = layers(rng.randint(6, 24))
    noise = {n: rng.lognormvariate(0, 2) for n in names}
    of = problem(names, [rng.uniform(0.5, 8) for _ in names], [*noise.values()])
    predicate = additive(noise, rng.uniform(0.02, 0.4) * sum(noise.values()), deviation=0.5)
    oracle = Oracle(predicate)
    tried = [pins_of({n: FP16 for n in names if rng.random() < 0.6}) for _ in range(4)]
    passed = [p for p, m in zip(tried, oracle.ask_all(tried), strict=True) if m.passed]
    result = find(of, oracle, load_strategy("auto"))
    if result.outcome is Outcome.FOUND:
        seen = [e.pins for e in oracle.history if e.measurement.passed]
        assert result.cost == min(map(of.cost, [*passed, *seen])) and result.minimal
