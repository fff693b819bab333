"""Gate conditions."""

from __future__ import annotations

import math

import pytest

from qdebug.errors import MetricError
from qdebug.results.conditions import check_condition, parse_condition, parse_value_condition

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
    ("text", "code"),
    [
        ("", "SYNTAX"),
        ("output.cosine", "SYNTAX"),
        ("output.cosine=0.9", "SYNTAX"),
        ("output.cosine>=", "SYNTAX"),
        ("output.cosine>=0.9 or true", "SYNTAX"),
        ("metric.top1>=0.9", "NAME"),
        ("output.cosine>=high", "SYNTAX"),
        ("output.cosine>=nan", "SYNTAX"),
        ("output.cosine>==0.9", "SYNTAX"),
        ("outputs.cosine>=0.9", "NAME"),
        ("output.cosin>=0.9", "NAME"),
        ("output>=0.9", "NAME"),
        ("tensor.cosine>=0.9", "NAME"),
        ("layer.input_clipped_fraction<=0.1", "NOT-MEASURED"),
    ],
)
def test_what_is_not_a_condition(text: str, code: str) -> None:
    with pytest.raises(MetricError) as caught:
        parse_condition(text, NAMES)
    assert caught.value.code == f"QD-METRIC-CONDITION-{code}"


@pytest.mark.parametrize("text", ["", "mean>=1", "share>=x", "a.share>=1"])
def test_what_is_not_a_condition_on_values(text: str) -> None:
    with pytest.raises(MetricError) as caught:
        parse_value_condition(text, ("share", "count"))
    assert caught.value.code.startswith("QD-METRIC-CONDITION-")
    assert caught.value.message.startswith("fail_on: ")


def test_the_nearest_is_suggested() -> None:
    with pytest.raises(MetricError) as caught:
        parse_condition("output.cosin>=0.9", NAMES)
    assert "'output.cosine'?" in caught.value.hint


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
