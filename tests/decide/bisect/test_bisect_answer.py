"""Whether a lower precision is worth it, by what an answer costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qdebug.decide.bisect.answer import hardly_worth
from qdebug.decide.bisect.result import CostSummary
from qdebug.types import Precision

COST = CostSummary(
    unit="INT8 MACs",
    base=50.0,
    plan=95.0,
    all_pinned=200.0,
    all_pinned_to=Precision.FP32,
    alternative=100.0,
    alternative_to=Precision.FP16,
)


def test_what_saves_next_to_nothing_is_said_not_to_be_worth_it() -> None:
    assert COST.saved_share == pytest.approx(0.05)
    said = hardly_worth(COST, Precision.INT8)
    assert said.startswith(
        "INT8 is hardly worth it here: with these pins it saves 5% of what every"
    )
    assert "layer in FP16 costs, in INT8 MACs" in said
    assert "nothing of what" in hardly_worth(replace(COST, plan=100.0), Precision.INT8)


def test_a_profile_may_show_that_even_without_pins() -> None:
    timed = replace(COST, unit="ms", base=94.0)
    assert "costs (with nothing pinned 6%), in time by the profile" in hardly_worth(
        timed, Precision.INT8
    )


@pytest.mark.parametrize("cost", [replace(COST, plan=60.0), replace(COST, alternative=None)])
def test_what_saves_enough_or_is_not_known_is_not(cost: CostSummary) -> None:
    assert hardly_worth(cost, Precision.INT8) == ""
