"""What a search may pin."""

from __future__ import annotations

import pytest

from qdebug.decide.search.problem import PinTo, pins_of
from qdebug.decide.search.space import SearchSpace, search_space
from qdebug.errors import UsageError
from qdebug.plan.cost import Costs
from qdebug.types import Precision

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
BASE = {"conv": INT8, "norm": FP16, "fc": INT8, "end": FP32}
COSTS = Costs("ms", {name: {INT8: 1.0, FP16: 2.0, FP32: 4.0} for name in BASE})


def levels(space: SearchSpace) -> dict[str, list[Precision]]:
    return {item.name: list(item.costs) for item in space.problem.items}


def test_layers_may_be_pinned_to_whatever_is_above_their_precision() -> None:
    space = search_space(BASE, COSTS, {})
    assert space.problem.pin_to is PinTo.AUTO
    assert levels(space) == {"conv": [FP16, FP32], "norm": [FP32], "fc": [FP16, FP32]}
    assert space.problem.items[0].costs == {FP16: 1.0, FP32: 3.0}
    assert space.everything() == pins_of({"conv": FP32, "norm": FP32, "fc": FP32})
    assert space.total(frozenset()) == 1 + 2 + 1 + 4


def test_without_int8_layers_there_is_only_fp32_to_pin_to() -> None:
    space = search_space({"norm": FP16, "end": FP32}, COSTS, {})
    assert space.problem.pin_to is PinTo.FP32
    assert levels(space) == {"norm": [FP32]}


def test_what_the_user_pins_and_excludes() -> None:
    space = search_space(BASE, COSTS, {}, pin_to=PinTo.FP16, pin=["conv", "end"], never_pin=["fc"])
    assert (levels(space), space.problem.always) == ({}, pins_of({"conv": FP16}))
    assert space.never_pinned == ("fc",)
    dearer = space.priced(Costs("ms", {name: {INT8: 9.0, FP16: 1.0, FP32: 4.0} for name in BASE}))
    assert dearer.problem.always == space.problem.always
    assert search_space(BASE, COSTS, {}).priced(dearer.costs).problem.items[0].costs[FP16] == 0.0


def test_contradictions_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        search_space(BASE, COSTS, {}, pin=["conv"], never_pin=["conv"])
    assert caught.value.code == "QD-USAGE-PIN-CONFLICT"
    for named in (list(BASE), []):
        with pytest.raises(UsageError) as caught:
            search_space(BASE if named else {"end": FP32}, COSTS, {}, never_pin=named)
        assert caught.value.code == "QD-USAGE-NOTHING-TO-PIN"


@pytest.mark.parametrize(
    ("start", "pin_to", "why"),
    [
        (INT8, PinTo.W8, "W8 quantizes weights alone"),
        (Precision.W8, PinTo.INT8, "no ranges, which INT8 needs"),
        (Precision.W8, PinTo.W8, "all of them run in W8"),
        (FP16, PinTo.INT8, "all of them run in INT8, or in more bits"),
    ],
)
def test_why_nothing_is_raised(start: Precision, pin_to: PinTo, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        search_space({"conv": start}, COSTS, {}, pin_to=pin_to)
