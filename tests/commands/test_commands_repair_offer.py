"""What a repair without a target offers where the remedies do not suffice: layers to pin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qdebug
from qdebug.display.blocks import Line
from qdebug.display.repair import view

DATA = Path(__file__).parents[2] / "calib_data"


def repaired(**settings: Any) -> Any:
    """With a remedy that this network has no use for."""
    return qdebug.repair(
        DATA / "digits_cnn.onnx", calib_data=DATA / "digits_calib.npz",
        inputs=DATA / "digits_holdout.npz", samples=100, weights="per-tensor", cache=False,
        **{"metric": "top1", "only": "split", **settings},
    )  # fmt: skip


def test_layers_that_give_the_loss_back_are_offered_and_not_pinned() -> None:
    result = repaired()
    mixed = result.mixed
    assert result.proof.recovered == 0 and not result.pinned
    assert 0 < len(mixed.pinned) < mixed.candidates // 2
    assert mixed.recovered > 0.75 and 0 < mixed.added_cost < 0.5
    (said,) = [b.text for b in view(result) if isinstance(b, Line) and "alone gives" in b.text]
    assert f"{len(mixed.pinned)} of {mixed.candidates} layers in FP16" in said
    # What it says to write does that.
    again = repaired(max_drop=float(f"{mixed.allowed:.2g}"))
    assert again.passed and set(again.pinned) <= set(mixed.pinned)


@pytest.mark.parametrize("settings", [{"pin": False}, {"metric": None}, {"only": "rounding"}])
def test_nothing_is_offered_where_nothing_is_missing_or_wanted(settings: dict[str, Any]) -> None:
    assert repaired(**settings).mixed is None


@pytest.fixture(scope="module")
def dear() -> Any:
    return repaired(pin_to="fp32").mixed


def test_beside_a_dear_offer_stands_what_gives_back_most_for_its_cost(dear: Any) -> None:
    less = dear.trade_off
    assert dear.added_cost > 0.1 and set(less.pinned) < set(dear.pinned) and less.to == "FP32"
    assert less.recovered / less.added_cost > 1.2 * dear.recovered / dear.added_cost
    assert 0 < less.recovered < dear.recovered and less.allowed > dear.allowed
    result = repaired(pin_to="fp32", max_drop=float(f"{less.allowed:.3g}"))
    assert result.holds is False or len(result.pinned) <= len(less.pinned)


def test_that_nearly_all_layers_must_leave_the_low_precision_is_said(dear: Any) -> None:
    result = repaired()
    assert not dear.hardly_worth and not result.mixed.hardly_worth
    layers = tuple(f"layer {k}" for k in range(11))
    told = {}
    for count in (10, 11):
        mixed = replace(dear, pinned=layers[:count], trade_off=None)
        text = str(view(replace(result, mixed=mixed)))
        told[count] = "With nearly all layers in FP32, INT8 is hardly worth it here." in text
    assert told == {10: False, 11: True}  # of 14
    assert "Most for its cost, of the sets tried: " in str(view(replace(result, mixed=dear)))
