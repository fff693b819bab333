"""What a repair without a target offers where the remedies do not suffice: layers to pin."""

from __future__ import annotations

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
