"""The oracle: every set once, in order, within the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.decide.search.oracle import BudgetSpent, Evaluation, Oracle
from qdebug.decide.search.problem import (
    CandidateVerdict,
    Item,
    Measurement,
    Pins,
    PinTo,
    SearchProblem,
    pins_of,
)
from qdebug.types import Precision

FP16, FP32 = Precision.FP16, Precision.FP32


class Counted:
    """Passes when a set holds layer "0"; keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[list[Pins]] = []

    def __call__(self, sets: list[Pins]) -> list[Measurement]:
        self.calls.append(list(sets))
        return [Measurement(float(len(s)), ("0", FP16) in s, seconds=1.0) for s in sets]


def pins(*layers: int) -> Pins:
    return pins_of({str(i): FP16 for i in layers})


sets = st.frozensets(st.integers(0, 3)).map(lambda layers: pins(*layers))


@given(st.lists(st.lists(sets, max_size=5), max_size=6))
def test_every_set_is_evaluated_once_in_the_order_asked(batches: list[list[Pins]]) -> None:
    evaluate = Counted()
    oracle = Oracle(evaluate)
    for batch in batches:
        answers = oracle.ask_all(batch)
        assert [a.value for a in answers] == [float(len(s)) for s in batch]
    asked = list(dict.fromkeys(s for batch in batches for s in batch))
    assert [s for call in evaluate.calls for s in call] == asked
    assert [e.pins for e in oracle.history] == asked
    assert oracle.evaluations == len(asked)


def test_the_limit_of_evaluations_is_exact_and_what_was_done_is_kept() -> None:
    evaluate = Counted()
    seen: list[Evaluation] = []
    oracle = Oracle(evaluate, max_evaluations=3, on_evaluation=seen.append)
    oracle.ask(pins(0))
    with pytest.raises(BudgetSpent, match=r"\b3\b"):
        oracle.ask_all([pins(0), pins(1), pins(2), pins(3)])
    assert [e.pins for e in seen] == [pins(0), pins(1), pins(2)]
    assert oracle.ask(pins(2)).value == 1.0, "what is known costs nothing"
    with pytest.raises(BudgetSpent):
        oracle.ask(pins())
    assert sum(map(len, evaluate.calls)) == 3


def test_the_time_limit_is_checked_before_each_call() -> None:
    now = iter([0.0, 4.0, 11.0])
    oracle = Oracle(Counted(), time_limit_s=10, clock=lambda: next(now))
    oracle.ask(pins(1))
    oracle.ask(pins(1))
    with pytest.raises(BudgetSpent, match=r"\b10 s\b"):
        oracle.ask(pins(2))


def test_the_time_limit_leaves_time_for_what_follows() -> None:
    now = iter([0.0, 4.0, 5.0])
    oracle = Oracle(
        Counted(),
        time_limit_s=10,
        reserve_s=lambda history: 5.5 if history else 2.0,
        clock=lambda: next(now),
    )
    oracle.ask(pins(1))
    with pytest.raises(BudgetSpent, match=r"\b10 s\b.*\b5.5 s\b"):
        oracle.ask(pins(2))


def test_a_time_limit_that_is_over_before_the_search_says_what_it_took() -> None:
    now = iter([0.0, 13.0])
    oracle = Oracle(Counted(), time_limit_s=10, clock=lambda: next(now))
    with pytest.raises(BudgetSpent, match=r"\b10 s\b.*\b13 s\b"):
        oracle.ask(pins(1))


def test_verdicts() -> None:
    assert Measurement(1.0, True).verdict is CandidateVerdict.PASS
    assert Measurement(0.5, False).verdict is CandidateVerdict.FAIL
    assert Measurement(None, False, failure="no kernel").verdict is CandidateVerdict.FAILED_TO_BUILD
    with pytest.raises(ValueError):
        Measurement(None, True, failure="no kernel")
    assert Measurement(None, False, noise=float("inf")).known_noise is None


def test_a_problem_knows_its_costs() -> None:
    items = (Item("a", {FP16: 1.0, FP32: 3.0}), Item("b", {FP32: 2.0}))
    problem = SearchProblem(items, always=pins_of({"c": FP32}))
    assert problem.cost(pins_of({"a": FP16, "b": FP32, "c": FP32})) == 3.0
    with pytest.raises(ValueError, match=r"^b: .*fp16"):
        SearchProblem(items, pin_to=PinTo.FP16)
    with pytest.raises(ValueError):
        SearchProblem(items, always=pins_of({"a": FP32}))
