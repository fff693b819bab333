"""Curves of what the first layers give back in FP32, against plans that keep them in FP32."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from half_networks import Builder

import qdebug
from qdebug.analyse.effect.sets import Outcome, Yardstick
from qdebug.display.blocks import Facts
from qdebug.display.compare import view
from qdebug.display.summary import sentence
from qdebug.plan.plan import PrecisionPlan
from qdebug.results.curve import Curve, Figure, Order
from qdebug.results.summary import Finding
from qdebug.types import Precision

DATA = Path(__file__).parents[3] / "calib_data"
MODEL = str(DATA / "digits_cnn.onnx")
HOW: dict[str, Any] = {
    "inputs": str(DATA / "digits_holdout.npz"),
    "calib_data": str(DATA / "digits_calib.npz"),
}


def compared(**more: Any) -> qdebug.CompareResult:
    return qdebug.compare(MODEL, **{**HOW, "samples": 48, **more})


def curve_of(result: qdebug.CompareResult) -> Curve:
    assert result.curve is not None
    return result.curve


def pinned(names: Any, **more: Any) -> qdebug.CompareResult:
    plan = PrecisionPlan(Precision.INT8, layers=dict.fromkeys(names, Precision.FP32))
    return compared(plan=plan, effect="none", **more)


def test_points_are_what_plans_with_the_first_layers_in_fp32_give() -> None:
    result = compared()
    curve = curve_of(result)
    assert (curve.figure, curve.samples, curve.reference) == (Figure.SQNR, 48, math.inf)
    assert curve.planned == pytest.approx(result.outputs[0].metrics.sqnr_db, abs=0.01)
    assert [p.layers for p in curve.points][:3] == [1, 2, 3] and curve.points[-1].layers == 13
    names = [x.name for x in result.layers]
    gain = result.layers[0].gain_db
    assert gain == pytest.approx(curve.points[0].value - curve.planned, abs=1e-9)
    assert not any("uncertain by" in note for note in result.notes)
    assert curve.names == tuple(names[:13])
    for point in (curve.points[0], curve.points[2]):
        value = pinned(names[: point.layers]).outputs[0].metrics.sqnr_db
        assert point.value == pytest.approx(value, abs=0.05)
        rest = 10 ** ((curve.planned - value) / 10)
        assert point.restored == pytest.approx(1 - rest, abs=0.01)
    again = qdebug.CompareResult.from_dict(result.to_dict())
    assert again.curve == curve
    facts = next(block for block in view(result) if isinstance(block, Facts))
    assert "▁" in dict(facts.rows)["kept in FP32"]


def test_the_order_whose_first_layers_give_back_most_is_taken() -> None:
    """Pinning the second by effect undoes what the first one gains."""
    result = compared()
    curve = curve_of(result)
    assert curve.order is Order.TOGETHER
    assert curve.rises["together"] > curve.rises["effect"] + 0.05
    assert [x.rank for x in result.layers] == [*range(1, 20)]
    gains = sorted(result.layers[:14], key=lambda x: -(x.output_share or 0.0))
    by_effect = pinned([x.name for x in gains[:3]]).outputs[0].metrics.sqnr_db
    assert curve.points[2].value > by_effect


def test_a_curve_of_fewer_samples_has_standard_errors_and_gains() -> None:
    """Of all samples there is no doubt. Points that fall are not shown; where the layers of the
    summary gain another figure on all samples, none is."""
    result = compared()
    curve, summary = curve_of(result), result.summary
    assert {p.std for p in curve.points} == {0.0}
    assert summary is not None and curve.fits
    few = replace(curve, samples=12, points=(replace(curve.points[0], rises=False), *curve.points))
    of_few = replace(result, curve=few)
    text = dict(next(block for block in view(of_few) if isinstance(block, Facts)).rows)
    first = f"first 1: {curve.points[0].value - curve.planned:+.1f}, "
    assert "on 12 of the 48 samples" in text["kept in FP32"] and first in text["kept in FP32"]
    assert replace(curve, fits=False).shown == () and curve.shown


def test_standard_errors_are_those_of_draws() -> None:
    """Of 50 of 4000 samples: what they give back is within three of what all do."""
    rng = np.random.default_rng(0)
    planned, rest = rng.exponential(size=4000), rng.uniform(0.2, 0.6, size=4000)
    yardstick = Yardstick(Figure.SQNR, planned[:50], np.zeros(50), 1 - 50 / 4000)
    found = yardstick.point(1, Outcome(planned[:50] * rest[:50], planned[:50] * rest[:50]), 0.0)
    assert found is not None and found.std is not None and found.std > 0
    truth = 1 - float((planned * rest).sum() / planned.sum())
    assert abs(found.restored - truth) < 3 * found.std


def test_layers_that_lower_the_figure_are_not_named() -> None:
    result = compared()
    summary = result.summary
    assert summary is not None
    lower = replace(summary, restored_sqnr_db=summary.sqnr_db - 2, restored=-0.5)
    told = sentence(replace(result, summary=lower))
    assert "do not raise the SQNR" in told and summary.layers[0] not in told.partition("Main")[0]


def norms() -> Any:
    """Two LayerNorms, written out, each of which overflows in FP16 by itself."""
    b = Builder(3)
    x = b.normalized(b.add("Mul", b.linear("x", 16, 32), b.constant(600.0)), 32)
    y = b.normalized(b.add("Mul", b.linear(x, 32, 32), b.constant(600.0)), 32)
    return b.model({"x": ["n", 16]}, [b.linear(y, 32, 8)])


def test_sets_grow_where_several_layers_break_the_outputs_each_by_itself() -> None:
    """No single layer gains anything, nor do all of one norm; the eight of both give all."""
    values = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    result = qdebug.compare(norms(), inputs={"x": values}, precision="fp16")
    summary = result.summary
    assert summary is not None and summary.sqnr_db < 6
    assert summary.restored_sqnr_db is not None and summary.restored_sqnr_db > 60
    assert summary.finding is Finding.FEW_LAYERS
    kinds = sorted(x.op_type for x in result.layers if x.name in summary.layers)
    assert kinds == ["Add"] * 2 + ["Pow"] * 2 + ["ReduceMean"] * 2 + ["Sqrt"] * 2
    for left_out in summary.layers[:2]:
        rest = dict.fromkeys({*summary.layers} - {left_out}, Precision.FP32)
        plan = PrecisionPlan(Precision.FP16, layers=rest)
        again = qdebug.compare(norms(), inputs={"x": values}, plan=plan, effect="none")
        assert again.outputs[0].metrics.sqnr_db < 12


def test_nothing_is_tried_where_nothing_is_lost() -> None:
    result = qdebug.compare(MODEL, precision="fp16", metric="top1", inputs=HOW["inputs"], samples=4)
    assert result.curve is None and result.summary is not None and not result.summary.layers


def distances(outputs: Any, reference: Any) -> Any:
    return np.abs(outputs["logits"] - reference["logits"]).mean(axis=1)


def nearness(outputs: Any, reference: Any) -> float:
    return -float(distances(outputs, reference).mean())


nearness.loss = distances  # type: ignore[attr-defined]


def sureness(outputs: Any, reference: Any) -> float:
    """Of a classifier that is sure of every sample: the score stays, the loss moves by nothing."""
    return 1.0


def next_to_nothing(outputs: Any, reference: Any) -> Any:
    return 1e-19 * distances(outputs, reference)


sureness.loss = next_to_nothing  # type: ignore[attr-defined]


def test_a_loss_of_next_to_nothing_decides_nothing() -> None:
    """All is as without the metric: the order, the curve, and the layers that are named."""
    result, without = compared(metric=sureness), compared()
    curve = curve_of(result)
    assert curve.figure is Figure.SQNR and curve == curve_of(without)
    assert [x.name for x in result.layers] == [x.name for x in without.layers]
    assert result.summary is not None and without.summary is not None
    assert result.summary.layers == without.summary.layers
    assert result.summary.restored == without.summary.restored


@pytest.mark.parametrize("cluster", [None, "local:2"])
def test_a_loss_ranks_layers_as_brute_force_does(cluster: str | None) -> None:
    """What pinning a layer takes off the loss; the same with workers."""
    result = compared(effect="exact", metric=nearness, cluster=cluster)
    curve = curve_of(result)
    assert curve.figure is Figure.LOSS and curve.reference == 0
    assert result.metric is not None
    assert curve.planned == pytest.approx(-result.metric.candidate, rel=1e-3)
    for layer in result.layers[:2]:
        task = pinned([layer.name], metric=nearness).metric
        assert task is not None and layer.effect is not None
        gained = task.candidate - result.metric.candidate
        assert layer.effect.metric_gain == pytest.approx(gained, abs=0.005)
