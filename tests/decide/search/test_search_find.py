"""A whole search: its outcomes, its budget, and the precisions of `auto` and `ladder`."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import FP16, FP32, Predicate, additive, layers, names_of, needing, problem, search

from qdebug.decide.search.find import Budget, Outcome, find
from qdebug.decide.search.problem import Item, Measurement, Pins, PinTo, SearchProblem
from qdebug.types import Precision

LAYERS = layers(20)


def pins_of(raised: Mapping[str, Precision]) -> Pins:
    return frozenset(raised.items())


def test_nothing_is_needed_where_the_target_holds_already() -> None:
    result = search(Predicate(lambda raised: True), problem(LAYERS))
    assert result.outcome is Outcome.NOTHING_NEEDED
    assert (result.pins, result.cost, result.minimal) == (frozenset(), 0.0, True)
    assert result.achieved == result.baseline is not None
    assert (result.ceiling, len(result.history)) == (None, 1)


def test_what_raising_everything_does_not_reach_is_impossible() -> None:
    result = search(Predicate(lambda raised: False), problem(LAYERS))
    assert result.outcome is Outcome.IMPOSSIBLE
    assert result.achieved is None
    assert result.ceiling is not None and not result.ceiling.passed
    assert (len(result.history), result.minimal) == (2, False)
    assert "every layer raised" in result.reason


def test_without_layers_to_raise_a_failing_target_is_impossible() -> None:
    result = search(Predicate(lambda raised: False), problem([]))
    assert (result.outcome, len(result.history)) == (Outcome.IMPOSSIBLE, 1)


def test_pins_that_are_always_there_are_part_of_every_candidate() -> None:
    always = pins_of({"head": FP32})
    of = SearchProblem(problem(LAYERS).items, always=always, pin_to=PinTo.FP16)
    predicate = needing(["head", LAYERS[2]])
    result = search(predicate, of)
    assert result.pins == always | pins_of({LAYERS[2]: FP16})
    assert all(always <= pins for pins in predicate.calls)
    assert (result.cost, result.minimal) == (1.0, True)


def test_a_spent_budget_returns_the_cheapest_that_passed() -> None:
    few = LAYERS[:10]
    for budget in range(1, 12):
        predicate = needing([few[4], few[9]])
        result = search(predicate, problem(few), budget)
        assert len(result.history) <= budget
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
    limited = search(needing(LAYERS[4:6]), problem(LAYERS), len(complete.history))
    assert limited == complete


@pytest.mark.parametrize(("reserve", "evaluations"), [(0.0, 1), (200.0, 1)])
def test_time_is_kept_for_what_follows(reserve: float, evaluations: int) -> None:
    """Of 100 s, where one evaluation took one."""
    spent = Budget(seconds=1e-9, started=time.monotonic())
    result = find(problem(LAYERS), needing(LAYERS[:2]), spent)
    assert (result.outcome, result.history) == (Outcome.UNFINISHED, ())
    slow = Budget(seconds=100.0, started=time.monotonic(), reserve=reserve)
    predicate = needing(LAYERS[:2])

    def measured(pins: Pins) -> Measurement:
        return Measurement(None, predicate(pins).passed, seconds=1.0)

    result = find(problem(LAYERS), measured, slow)
    assert (result.outcome is Outcome.UNFINISHED) == (reserve > 100)


class Levels:
    """INT8 noise of each layer, the share of it that FP16 leaves, and a threshold."""

    def __init__(self, int8: Mapping[str, float], fp16: Mapping[str, float], most: float) -> None:
        self._int8, self._fp16, self._most = int8, fp16, most

    def __call__(self, pins: Pins) -> Measurement:
        at = dict(pins)
        noise = sum(
            x * {FP32: 0.0, FP16: self._fp16.get(n, 1e-4)}.get(at.get(n, Precision.INT8), 1.0)
            for n, x in self._int8.items()
        )
        return Measurement(noise, noise <= self._most, noise, slack=self._most - noise)


INT8 = {name: 1.0 if i in (3, 7, 12) else 1e-3 for i, name in enumerate(LAYERS)}


@pytest.mark.parametrize("pin_to", [PinTo.AUTO, PinTo.LADDER])
@pytest.mark.parametrize(
    ("fp16", "in_fp32"),
    [({}, []), ({LAYERS[7]: 0.9}, [7]), ({LAYERS[i]: 0.9 for i in (3, 7, 12)}, [3, 7, 12])],
    ids=["none", "one", "all"],
)
def test_each_pin_is_lowered_to_the_cheapest_precision_that_holds(
    pin_to: PinTo, fp16: dict[str, float], in_fp32: list[int]
) -> None:
    of = problem(LAYERS, estimates=list(INT8.values()), pin_to=pin_to)
    result = find(of, Levels(INT8, fp16, 0.1))
    expected = {LAYERS[i]: FP32 if i in in_fp32 else FP16 for i in (3, 7, 12)}
    assert dict(result.pins) == expected
    assert result.minimal
    assert result.cost == sum(3.0 if p is FP32 else 1.0 for p in expected.values())


def test_a_precision_that_costs_nothing_is_where_the_ladder_starts() -> None:
    """Half of the noise is gone with all layers in FP8; then one layer less needs FP16."""
    fp8 = Precision.FP8
    noise = {"a": 4.0, "b": 2.0, "c": 1.0, "d": 1.0}
    left = {Precision.INT8: 1.0, fp8: 0.5, FP16: 0.01}

    def evaluate(pins: Pins) -> Measurement:
        at = dict(pins)
        total = sum(x * left[at.get(n, Precision.INT8)] for n, x in noise.items())
        return Measurement(total, total <= 2.2, total)

    items = tuple(Item(n, {fp8: 0.0, FP16: 1.0}, x) for n, x in noise.items())
    result = find(SearchProblem(items, pin_to=PinTo.LADDER), evaluate)
    assert dict(result.pins)["a"] is FP16 and result.cost == 1.0
    assert result.minimal and evaluate(result.pins).passed


def test_auto_raises_a_layer_that_has_only_fp32() -> None:
    of = SearchProblem((Item("a", {FP32: 1.0}), Item("b", {FP32: 1.0})))
    result = search(needing(["b"]), of)
    assert result.pins == pins_of({"b": FP32})
    assert result.minimal


def test_a_candidate_that_cannot_be_built_has_failed_and_is_remembered() -> None:
    """Layers 4 and 5 only build together."""

    def evaluate(pins: Pins) -> Measurement:
        raised = names_of(pins)
        if (LAYERS[4] in raised) != (LAYERS[5] in raised):
            return Measurement(None, False, failure="no kernel for this pattern")
        return Measurement(None, LAYERS[4] in raised)

    result = find(problem(LAYERS), evaluate)
    assert names_of(result.pins) == set(LAYERS[4:6])
    assert result.minimal
    assert any(e.measurement.failure for e in result.history)


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.floats(0.05, 0.9))
def test_whatever_the_predicate_what_is_said_of_two_precisions_is_true(
    seed: int, share: float
) -> None:
    """Verdicts at random for every assignment of INT8, FP16 and FP32 to four layers."""
    names = layers(4)

    def judge(pins: Pins) -> bool:
        if pins == pins_of(dict.fromkeys(names, FP32)):
            return True
        return bool(pins) and random.Random(repr((seed, sorted(pins)))).random() < share

    result = find(problem(names, pin_to=PinTo.AUTO), lambda pins: Measurement(None, judge(pins)))
    assert result.outcome is Outcome.FOUND
    assert judge(result.pins)
    assert result.minimal and not any(judge(result.pins - {pin}) for pin in result.pins)


def test_an_infinite_estimate_is_the_first_to_be_suspected() -> None:
    estimates = [float("inf") if i == 7 else 0.01 for i in range(len(LAYERS))]
    contributions = {n: 5.0 if i == 7 else 0.01 for i, n in enumerate(LAYERS)}
    result = search(additive(contributions, 0.5), problem(LAYERS, estimates=estimates))
    assert names_of(result.pins) == {LAYERS[7]}
    assert len(result.history) <= 5


def test_no_answer_is_dearer_than_a_set_that_was_tried_first() -> None:
    """A dear pair is needed, or one cheap layer of which nothing tells."""
    dear, cheap = set(LAYERS[:2]), LAYERS[15]
    of = problem(LAYERS, [10.0 if n in dear else 1.0 for n in LAYERS])

    def predicate() -> Predicate:
        return Predicate(lambda raised: raised >= dear or raised == {cheap})

    blind = search(predicate(), of)
    assert names_of(blind.pins) == dear and blind.cost == 20
    told = search(predicate(), of, first=[pins_of({cheap: FP16})])
    assert names_of(told.pins) == {cheap} and told.minimal
    assert len(told.history) == len(blind.history) + 1


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_nothing_cheaper_was_seen_to_pass(seed: int) -> None:
    rng = random.Random(seed)
    names = layers(rng.randint(6, 24))
    noise = {n: rng.lognormvariate(0, 2) for n in names}
    of = problem(names, [rng.uniform(0.5, 8) for _ in names], [*noise.values()])
    predicate = additive(noise, rng.uniform(0.02, 0.4) * sum(noise.values()), deviation=0.5)
    tried = [pins_of({n: FP16 for n in names if rng.random() < 0.6}) for _ in range(4)]
    result = search(predicate, of, first=list(dict.fromkeys(tried)))
    if result.outcome is Outcome.FOUND:
        seen = [e.pins for e in result.history if e.measurement.passed]
        assert result.cost == min(map(of.cost, seen)) and result.minimal


def test_pins_that_cost_nothing_are_left_out_in_groups() -> None:
    """Of 120 layers in FP8, which costs nothing, those of most noise stay: at most 3 evaluations
    for each pinned layer."""
    fp8, names = Precision.FP8, [f"n{i}" for i in range(120)]
    noise = {name: 2.0 ** -(i / 4) for i, name in enumerate(names)}
    left = {Precision.INT8: 1.0, fp8: 0.2, FP16: 0.01}

    def evaluate(pins: Pins) -> Measurement:
        at = dict(pins)
        total = sum(x * left[at.get(n, Precision.INT8)] for n, x in noise.items())
        return Measurement(total, total <= 0.8, total)

    items = tuple(Item(n, {fp8: 0.0, FP16: 1.0}, x) for n, x in noise.items())
    result = find(SearchProblem(items, pin_to=PinTo.LADDER), evaluate)
    assert evaluate(result.pins).passed and 0 < len(result.pins) < 60
    assert len(result.history) <= 3 * len(result.pins)
