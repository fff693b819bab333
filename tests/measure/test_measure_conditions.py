"""Gate conditions."""

from __future__ import annotations

import math

import pytest

from qdebug.errors import MetricError
from qdebug.measure.conditions import check_condition, parse_condition

NAMES = {"output": ("cosine", "sqnr_db"), "layer": ("local_sqnr_db",), "tensor": (), "metric": ()}


@pytest.mark.parametrize(
    ("text", "scope", "name", "operator", "bound"),
    [
        ("output.cosine>=0.99", "output", "cosine", ">=", 0.99),
        (" output.sqnr_db  >  -1e1 ", "output", "sqnr_db", ">", -10),
        ("layer.local_sqnr_db<inf", "layer", "local_sqnr_db", "<", math.inf),
        ("metric<=.5", "metric", "", "<=", 0.5),
    ],
)
def test_parse(text: str, scope: str, name: str, operator: str, bound: float) -> None:
    found = parse_condition(text, NAMES)
    assert (found.scope, found.name, found.operator, found.bound) == (scope, name, operator, bound)
    assert found.expression == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a condition"),
        ("output.cosine", "is not a condition"),
        ("output.cosine=0.9", "is not a condition"),
        ("output.cosine>=", "is not a"),
        ("output.cosine>=0.9 or true", "is not a condition"),
        ("outputs.cosine>=0.9", "unknown scope 'outputs'"),
        ("output.cosin>=0.9", "unknown metric .*'cosin'"),
        ("output>=0.9", "unknown metric"),
        ("tensor.cosine>=0.9", "unknown metric"),
        ("metric.top1>=0.9", "'metric' has no parts"),
        ("output.cosine>=high", "'high' is not a number"),
        ("output.cosine>=nan", "'nan' is not a number"),
        ("output.cosine>==0.9", "is not a number"),
    ],
)
def test_what_is_no_condition(text: str, message: str) -> None:
    with pytest.raises(MetricError, match=message) as caught:
        parse_condition(text, NAMES)
    assert "--fail-on" in caught.value.message


def test_the_nearest_is_suggested() -> None:
    with pytest.raises(MetricError) as caught:
        parse_condition("output.cosin>=0.9", NAMES)
    assert "Did you mean 'cosine'?" in caught.value.hint


@pytest.mark.parametrize(
    ("operator", "values", "worst", "passed"),
    [
        (">=", [0.9, 0.5, 0.7], 0.5, True),
        (">", [0.9, 0.5], 0.5, False),
        ("<=", [0.1, 0.5], 0.5, True),
        ("<", [0.1, 0.5], 0.5, False),
        (">=", [None, 0.6], 0.6, True),
        (">=", [math.inf], math.inf, True),
        (">=", [math.inf, -math.inf], -math.inf, False),
    ],
)
def test_the_worst_decides(
    operator: str, values: list[float | None], worst: float, passed: bool
) -> None:
    found = check_condition(parse_condition(f"output.cosine{operator}0.5", NAMES), values)
    assert (found.value, found.passed) == (worst, passed)


def test_nothing_to_check_and_nan_fail() -> None:
    condition = parse_condition("output.cosine<=1", NAMES)
    for values in ([], [None]):
        found = check_condition(condition, values)
        assert (found.value, found.passed) == (None, False)
    found = check_condition(condition, [0.5, math.nan])
    assert found.value is not None
    assert math.isnan(found.value)
    assert not found.passed
