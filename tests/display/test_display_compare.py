"""The table, the reasons and the opening sentence of a comparison, from results that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qdebug
from qdebug.display.blocks import Line, Table
from qdebug.display.compare import view
from qdebug.display.summary import sentence
from qdebug.results.compare import AT_OUTPUTS, Cause, CompareResult, TaskResult
from qdebug.results.curve import CurvePoint, Order
from qdebug.results.summary import Elsewhere, Finding, Origin, RestoredMetric

DATA = Path(__file__).parents[2] / "calib_data"


@pytest.fixture(scope="module")
def result() -> CompareResult:
    return qdebug.compare(
        str(DATA / "digits_cnn.onnx"), inputs=str(DATA / "digits_holdout.npz"), samples=8
    )


def with_causes(result: CompareResult, causes: dict[int, list[Cause]]) -> CompareResult:
    """With these causes of the layers at these places, and none of the others."""
    layers = [replace(x, causes=tuple(causes.get(k, ()))) for k, x in enumerate(result.layers)]
    return replace(result, layers=tuple(layers))


def cause(label: str, share: float) -> Cause:
    return Cause(label, share, f"{label} it is", "Do.", AT_OUTPUTS, brief=f"{label} it is")


@pytest.mark.parametrize(
    ("order", "head"),
    [(Order.EFFECT, "gain dB"), (Order.TOGETHER, "together")],
)
def test_a_column_shows_what_the_rows_are_ordered_by(
    result: CompareResult, order: Order, head: str
) -> None:
    assert result.curve is not None
    points = (CurvePoint(1, 20.0, 0.4), CurvePoint(2, 19.0, 0.3, rises=False))
    curve = replace(result.curve, order=order, points=points)
    for detailed in (False, True):
        blocks = view(replace(result, curve=curve), detailed=detailed)
        table = next(block for block in blocks if isinstance(block, Table))
        heads = [column.head for column in table.columns]
        assert heads.count(head) == 1
        if order is Order.TOGETHER:
            assert [row[heads.index(head)] for row in table.rows[:3]] == ["40%", "–", "–"]


def test_a_curve_that_does_not_fit_has_no_column(result: CompareResult) -> None:
    assert result.curve is not None
    curve = replace(result.curve, order=Order.TOGETHER, fits=False)
    text = str(view(replace(result, curve=curve)))
    assert "'together'" not in text and "together: the part" not in text
    assert "together: the part" in str(view(replace(result, curve=replace(curve, fits=True))))


def test_the_layers_that_the_opening_names_are_explained_first(result: CompareResult) -> None:
    assert result.summary is not None
    many = {k: [cause(f"cause-{k}", 0.9)] for k in range(14)}
    named = tuple(result.layers[k].name for k in (12, 13))
    summary = replace(result.summary, layers=named)
    blocks = view(replace(with_causes(result, many), summary=summary), top=10)
    told = [b.text for b in blocks if isinstance(b, Line) and b.text.startswith("cause-")]
    assert [text.split(",")[0] for text in told] == ["cause-12", "cause-13", "cause-0"]


@pytest.mark.parametrize(
    ("shares", "opens"), [((0.45, 0.5), "A cause (clipping): "), ((0.6, 0.4), "Main cause (cl")]
)
def test_the_main_cause_is_the_largest(
    result: CompareResult, shares: tuple[float, float], opens: str
) -> None:
    """A fault stands before rounding of a larger share: it is not called the main cause."""
    summary: Any = result.summary
    summary = replace(summary, layers=(result.layers[0].name,), cause="clipping")
    causes = [cause("clipping", shares[0]), cause("rounding", shares[1])]
    told = sentence(replace(with_causes(result, {0: causes}), summary=summary))
    assert summary.finding is not Finding.NOTHING_LOST and opens in told


def test_layers_named_in_spite_of_a_negative_gain(result: CompareResult) -> None:
    summary: Any = result.summary
    effect: Any = result.layers[1].effect
    lower = replace(result.layers[1], effect=replace(effect, output_share=-0.3))
    layers = (result.layers[0], lower, *result.layers[2:])
    data = Elsewhere(Origin.DATA, None, "its labels are not those of the network")
    for named, elsewhere, told in (
        (layers[1:2], None, True),
        (layers[:1], None, False),
        (layers[1:2], data, False),  # then the first sentence names no layers
    ):
        other = replace(summary, layers=tuple(x.name for x in named), elsewhere=elsewhere)
        legend = str(view(replace(result, layers=layers, summary=other)))
        assert "A negative gain: " in legend and ("help only together" in legend) is told


def test_layers_that_others_mask_are_explained_where_they_stand_above_larger_gains(
    result: CompareResult,
) -> None:
    summary: Any = result.effect
    effects: list[Any] = [layer.effect for layer in result.layers]
    order = replace(result.curve, order=Order.EFFECT) if result.curve else None
    for alone, told in ((1.0, True), (0.01, False)):
        first = replace(effects[0], alone=alone * summary.noise, output_share=0.01)
        second = replace(effects[1], alone=0.1 * summary.noise, output_share=0.4)
        layers = [replace(result.layers[0], effect=first), replace(result.layers[1], effect=second)]
        legend = str(view(replace(result, layers=(*layers, *result.layers[2:]), curve=order)))
        assert ("as much harm alone as all together" in legend) is told


def test_a_lower_sqnr_is_told_as_what_speaks_against_it(result: CompareResult) -> None:
    task = RestoredMetric("top1", 0.9, 0.98, 1.0)
    scored = TaskResult("top1", 1.0, 0.9, higher_is_better=True)
    summary: Any = result.summary
    summary = replace(summary, layers=(result.layers[0].name,), metric=task)
    summary = replace(summary, sqnr_db=20.0, restored_sqnr_db=18.0)
    for restored, says in (
        (0.98, "takes top1 to 0.9800, although it lowers the SQNR from 20.0 to 18.0 dB"),
        (1.0, "takes top1 to 1.0000, that of FP32, although it lowers the SQNR"),
        (0.85, "does not help: it lowers the SQNR from 20.0 to 18.0 dB, and takes top1 to 0.8500"),
    ):
        with_metric = replace(summary, metric=replace(task, restored=restored))
        told = sentence(replace(result, metric=scored, summary=with_metric, cures=()))
        assert says in told and "even lowers" not in told and "Less noise" not in told
