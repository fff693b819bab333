"""Numbers as they are shown: a rounded value must not contradict its verdict."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from qdebug.results.conditions import Condition
from qdebug.results.words import apart, decibel, in_decibels, score, telling_decimals


def at_least(bound: float, operator: str = ">=") -> Condition:
    return Condition(f"metric{operator}{bound}", "metric", "", operator, bound)


def test_a_value_that_fails_is_not_shown_as_the_bound() -> None:
    assert telling_decimals([0.97999, 0.98], at_least(0.98), 4) == 5
    assert telling_decimals([0.95, 0.9829], at_least(0.98), 4) == 4
    assert telling_decimals([34.96, 60.0], at_least(35.0), 1) == 2
    assert telling_decimals([0.98], at_least(0.98, ">"), 4) == 4


@given(
    st.lists(st.integers(0, 350), min_size=1, max_size=8),
    st.integers(0, 350),
    st.sampled_from([">=", "<=", ">", "<"]),
)
def test_what_is_read_off_the_digits_is_the_verdict(
    right: list[int], bound: int, operator: str
) -> None:
    condition = at_least(bound / 350, operator)
    values = [r / 350 for r in right]
    decimals = telling_decimals(values, condition, 4)
    shown = at_least(float(score(condition.bound, decimals)), operator)
    for value in values:
        assert shown.holds_for(float(score(value, decimals))) == condition.holds_for(value)


def test_tiny_scores_keep_digits_and_samples_are_counted() -> None:
    assert score(0.00012345) == "0.00012" and score(0.98) == "0.9800" and score(0.0) == "0.0000"
    assert apart(-0.004, 250, is_share=True) == "0.0040 (1 sample)"
    assert apart(0.004, 250, is_share=False) == "0.0040"


def test_an_error_of_nothing_but_zeros_is_no_number_of_decibels() -> None:
    assert in_decibels(-math.inf) == decibel(-math.inf) == "no signal"
    assert in_decibels(math.inf) == "exact" and in_decibels(-3.25) == "-3.2 dB"
