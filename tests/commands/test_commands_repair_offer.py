"""What a repair without a target offers where the remedies do not suffice: layers to pin."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qdebug
from qdebug.decide.repair.offer import rounded_up
from qdebug.display.blocks import Line
from qdebug.display.repair import view

DATA = Path(__file__).parents[2] / "calib_data"


SETTING = re.compile(r"max_drop=(\S+) allows that")


def repaired(**settings: Any) -> Any:
    """With a remedy that this network has no use for."""
    return qdebug.repair(
        DATA / "digits_cnn.onnx", calib_data=DATA / "digits_calib.npz",
        inputs=DATA / "digits_holdout.npz", weights="per-tensor",
        **{"metric": "top1", "only": "equalization", "samples": 100, "cache": False, **settings},
    )  # fmt: skip


def last_line(result: Any) -> str:
    """What is said of the offer."""
    (said,) = [b.text for b in view(result) if isinstance(b, Line) and "alone gives" in b.text]
    return said


def test_layers_that_give_the_loss_back_are_offered_and_not_pinned() -> None:
    result = repaired()
    mixed = result.mixed
    assert result.proof.recovered == 0 and not result.pinned
    assert 0 < len(mixed.pinned) < mixed.candidates // 2
    assert mixed.recovered > 0.75 and 0 < mixed.added_cost < 0.5
    said = last_line(result)
    assert f"{len(mixed.pinned)} of {mixed.candidates} layers in FP16" in said
    # Nothing was kept for a later search, so that it may find other layers.
    assert "tried first" not in said and "save_plan='plan.yaml'" in said


@pytest.mark.parametrize("samples", [58, 74, 150, 300])
def test_the_setting_on_screen_gives_what_is_offered_or_cheaper(samples: int) -> None:
    """Each of the sets, with the figure as it is written."""
    result = repaired(samples=samples, pin_to="fp32", cache=True)
    offers = [o for o in (result.mixed, result.mixed.trade_off) if o is not None]
    said = last_line(result)
    written = [float(number) for number in SETTING.findall(said)]
    assert len(written) == len(offers) and said.endswith("these layers are tried first.")
    for number, offer in zip(written, offers, strict=True):
        again = repaired(samples=samples, pin_to="fp32", cache=True, max_drop=number)
        assert again.passed, number
        cost = again.pinning.cost
        assert cost.plan / cost.base - 1 <= offer.added_cost + 1e-9


@pytest.mark.parametrize(
    ("allowed", "up"),
    [(0.15333, 0.16), (0.15, 0.15), (0.1 + 0.2, 0.3), (0.0231, 0.024), (0.996, 1.0), (12.1, 13.0)],
)
def test_a_limit_is_rounded_away_from_zero(allowed: float, up: float) -> None:
    assert rounded_up(allowed) == up
    assert rounded_up(-allowed) == rounded_up(0.0) == 0.0


@pytest.mark.parametrize("settings", [{"pin": False}, {"metric": None}, {"only": "least-squares"}])
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


@pytest.mark.parametrize(("saved", "says"), [(0.11, ""), (0.09, "9% of"), (-0.01, "nothing of")])
def test_that_next_to_nothing_is_saved_is_said(dear: Any, saved: float, says: str) -> None:
    """By cost, as of pins that were searched for: not by the number of layers."""
    result = repaired()
    assert not dear.hardly_worth and not result.mixed.hardly_worth
    cost = 1 + dear.added_cost
    assert dear.saved_share == pytest.approx(1 - cost * 292874 / 1133096)  # MACs in INT8
    mixed = replace(dear, saved_share=saved, trade_off=None)
    assert mixed.hardly_worth is bool(says)
    told = f"INT8 is hardly worth it here: with these layers it saves {says} what every layer in"
    assert (told in last_line(replace(result, mixed=mixed))) is bool(says)
    fewer = last_line(replace(result, mixed=dear))
    assert "Most for the cost, of the sets tried: 1 layer in FP32, which gives back " in fewer
