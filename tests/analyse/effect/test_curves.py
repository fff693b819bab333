"""Curves of what the first layers give back in FP32, against plans that keep them in FP32."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import detectors
import numpy as np
import pytest
from half_networks import Builder

import qdebug
from qdebug.analyse.compared import Choice, Compared, ranked
from qdebug.analyse.effect import curves
from qdebug.analyse.effect.leader import leader_first
from qdebug.analyse.summary import _off_db, _uncertain
from qdebug.commands.compare import command
from qdebug.display.blocks import Facts, Table
from qdebug.display.compare import view
from qdebug.display.summary import sentence
from qdebug.metrics.candidate import CLOSE_DB
from qdebug.metrics.effect import EffectMode
from qdebug.plan.plan import PrecisionPlan
from qdebug.results.curve import Curve, Figure, Order
from qdebug.results.summary import HOLDS, Finding
from qdebug.results.words import decibel
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
    """Pinning the second by effect undoes what the first one gains; by the error alone it does
    not."""
    result = compared()
    curve = curve_of(result)
    assert curve.order is Order.ALONE
    assert curve.rises["alone"] > curve.rises["effect"] + 0.05
    alone = [x.effect.alone for x in result.layers if x.effect]
    assert alone == sorted(alone, reverse=True) and len(alone) == 14
    assert [x.rank for x in result.layers] == [*range(1, 20)]
    gains = sorted(result.layers[:14], key=lambda x: -(x.output_share or 0.0))
    by_effect = pinned([x.name for x in gains[:3]]).outputs[0].metrics.sqnr_db
    assert curve.points[2].value > by_effect


def test_a_curve_rises_and_fits_the_figures_of_all_samples() -> None:
    """Points that fall are not shown; of fewer samples it has gains; where the layers of the
    summary gain another figure on all samples, none is shown. The result keeps them all."""
    yardstick = curves._Yardstick(Figure.SQNR, 0.01, 0.0)
    noise = {1: 0.012, 2: 0.005, 3: 0.006, 5: 0.001}
    points = yardstick.points({k: curves._Value(x, x) for k, x in noise.items()})
    assert [(p.layers, p.rises) for p in points] == [(1, False), (2, True), (3, False), (5, True)]
    result = compared()
    curve, summary = curve_of(result), result.summary
    assert summary is not None and summary.output_share is not None
    of_few = replace(result, samples=480, summary=replace(summary, samples=480))
    text = dict(next(block for block in view(of_few) if isinstance(block, Facts)).rows)
    first = f"first 1: {curve.points[0].value - curve.planned:+.1f}, "
    assert "on 48 of the 480 samples" in text["kept in FP32"] and first in text["kept in FP32"]
    assert decibel(curve.planned) not in text["kept in FP32"]
    for restored, fits in ((summary.output_share, True), (0.2, False)):
        choice = Choice(summary.layers, holds=True, restored=restored)
        state: Any = SimpleNamespace(result=of_few, choice=choice)
        assert (_off_db(state, summary) <= CLOSE_DB) is fits
        assert [*_uncertain(state, 9.0)] == []  # other samples
        state = SimpleNamespace(result=result, choice=choice)
        assert bool([*_uncertain(state, _off_db(state, summary))]) is not fits
    assert replace(curve, fits=False).shown == () and curve.shown


def test_runs_are_apart_by_what_they_leave() -> None:
    """Of next to no noise a few decibels more or less say nothing."""
    assert curves.apart_db(0.5, 0.75, 0.01) == pytest.approx(10 * math.log10(2))
    assert curves.apart_db(-0.5, 0.25, 0.01) == pytest.approx(10 * math.log10(2))
    assert curves.apart_db(0.99999, 1.0, 0.01) == 0
    assert curves.apart_db(0.99, 1.0, 0.01) == pytest.approx(20)


def test_the_table_and_the_curve_have_one_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where effects had another one, the table has that of the curve, and a note says how far
    they were off."""

    def other(compared: Compared, mode: EffectMode) -> Compared:
        found = ranked(compared, mode)
        layers = [
            replace(x, effect=replace(x.effect, output_share=(x.output_share or 0.0) - 0.4))
            if x.effect
            else x
            for x in found.result.layers
        ]
        return found.found(layers=tuple(layers))

    monkeypatch.setattr(command, "ranked", other)
    result = compared(samples=12)
    curve, first = curve_of(result), result.layers[0]
    assert first.gain_db == pytest.approx(curve.points[0].value - curve.planned, abs=1e-9)
    assert sum("a single layer gains is uncertain" in note for note in result.notes) == 1


def test_layers_that_lower_the_figure_are_not_named() -> None:
    result = compared()
    summary = result.summary
    assert summary is not None
    lower = replace(summary, restored_sqnr_db=summary.sqnr_db - 2, restored=-0.5)
    told = sentence(replace(result, summary=lower))
    assert "do not raise the SQNR" in told and summary.layers[0] not in told.partition("Main")[0]

    def restored(names: Any) -> float:
        return 0.5 if "a" in names else 0.1

    effects = [SimpleNamespace(output_share=x) for x in (0.4, -0.2, -0.1)]
    layers = [SimpleNamespace(name=n, effect=e) for n, e in zip("abc", effects, strict=True)]
    state: Any = SimpleNamespace(result=SimpleNamespace(layers=layers))
    assert curves._helping(["a", "b", "c"], state, restored) == ("a",)


def test_a_score_is_followed_where_it_falls() -> None:
    """Of a metric without a loss."""

    def top1(outputs: Any, labels: Any) -> float:
        return float((outputs["logits"].argmax(1) == labels["labels"]).mean())

    result = compared(weights="per-tensor", metric=top1, samples=500)
    curve = curve_of(result)
    assert curve.figure is Figure.SCORE and curve.samples < 500
    assert curve.planned < 0.85 < curve.reference
    assert result.summary is not None and result.summary.metric is not None
    few = result.summary.layers
    assert len(few) <= 2
    task = result.summary.metric
    assert task.restored is not None
    assert (task.restored - task.planned) / (task.reference - task.planned) > HOLDS - 0.1


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


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where so few samples are left that they tell nothing, or no time, all else is as it was."""
    most = curve_of(compared()).runs
    assert most <= curves._MOST_RUNS
    monkeypatch.setattr(curves, "_ENOUGH_SAMPLES", 0)
    fewer = curve_of(compared())
    assert fewer.samples < 48
    monkeypatch.setattr(curves, "_ANY_TIME_S", 0.0)
    monkeypatch.setattr(curves, "_OF_THEIR_TIME", 0.0)
    none = compared()
    assert none.curve is None and none.summary is not None and not none.failed


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
    assert {x.effect.loss_share for x in result.layers if x.effect} == {None}
    curve = curve_of(result)
    assert curve.figure is Figure.SQNR and "loss" not in curve.rises
    assert curve == curve_of(without)
    assert [x.name for x in result.layers] == [x.name for x in without.layers]
    assert result.summary is not None and without.summary is not None
    assert result.summary.layers == without.summary.layers
    assert result.summary.restored == without.summary.restored


def test_a_layer_that_gains_nothing_does_not_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the samples of the curve it gives back most; on all of them another one gives back nearly
    everything."""
    monkeypatch.setattr(curves, "_ENOUGH_SAMPLES", 0)
    monkeypatch.setattr(curves, "_fastest", lambda rises, margin: Order.MERGED)
    monkeypatch.setattr(curves, "_rise", lambda names, restored: 0.5)
    before = compared()
    first, second = (x.name for x in before.layers[:2])
    gains = {first: -0.04, second: 0.95}

    def other(compared: Compared, mode: EffectMode) -> Compared:
        found = ranked(compared, mode)
        layers = [
            replace(x, effect=replace(x.effect, output_share=gains.get(x.name, 0.01)))
            if x.effect
            else x
            for x in found.result.layers
        ]
        return found.found(layers=tuple(layers))

    monkeypatch.setattr(command, "ranked", other)
    after = compared()
    assert curve_of(after).samples < after.samples and curve_of(after).order is Order.MERGED
    assert [x.name for x in after.layers[:2]] == [second, first]
    assert after.summary is not None and after.summary.layers[0] == second


def test_a_leader_gives_back_something_where_another_gives_back_half() -> None:
    shares = {"a": -0.1, "b": 0.6, "c": 0.0}
    assert leader_first(("a", "c", "b"), shares) == ("b", "a", "c")
    assert leader_first(("c", "a"), shares) == ("c", "a")
    assert leader_first(("a", "b"), {"a": 0.1, "b": 0.6}) == ("a", "b")
    assert leader_first(("x", "b"), shares) == ("x", "b")  # it has no share
    assert leader_first((), shares) == ()


@pytest.mark.parametrize("cluster", [None, "local:2"])
def test_a_loss_ranks_layers_as_brute_force_does(cluster: str | None) -> None:
    """What pinning a layer takes off the loss; the same with workers."""
    result = compared(effect="exact", metric=nearness, cluster=cluster)
    curve = curve_of(result)
    assert curve.figure is Figure.LOSS and curve.reference == 0
    assert {*curve.rises} >= {"loss", "effect", "alone", "local"}
    assert result.metric is not None
    assert curve.planned == pytest.approx(-result.metric.candidate, rel=1e-3)
    for layer in result.layers[:2]:
        task = pinned([layer.name], metric=nearness).metric
        assert task is not None and layer.effect is not None
        expected = 1 - task.candidate / result.metric.candidate
        assert layer.effect.loss_share == pytest.approx(expected, abs=0.005)


def test_the_table_shows_what_it_is_ordered_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_fastest", lambda rises, margin: Order.LOSS)
    result = compared(metric=nearness)
    shares = [x.effect.loss_share or 0.0 for x in result.layers if x.effect]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.1
    table = next(block for block in view(result) if isinstance(block, Table))
    column = [c.head for c in table.columns].index("loss")
    assert table.rows[0][column] == f"{-shares[0]:+.0%}"


def test_the_order_by_the_worst_part_changes_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Conditions and JSON have the effects on all outputs, whichever order was the fastest; the
    table shows those on the worst part besides."""
    net = detectors.Builder()
    model = net.save(tmp_path / "fp32.onnx", detectors.joined(net))
    how: dict[str, Any] = {"inputs": {"image": detectors.images()}, "effect": "exact"}
    results = {}
    for order in (Order.EFFECT, Order.WORST_PART):
        monkeypatch.setattr(curves, "_fastest", lambda rises, margin, order=order: order)
        results[order] = qdebug.compare(str(model), **how)
    by_effect, by_part = results.values()
    assert {x.name: x.effect for x in by_part.layers} == {
        x.name: x.effect for x in by_effect.layers
    }
    shares = [x.effect.worst_part_share or 0.0 for x in by_part.layers if x.effect]
    assert shares == sorted(shares, reverse=True)
    first = by_part.layers[0]
    plan = PrecisionPlan(Precision.INT8, layers={first.name: Precision.FP32})
    again = qdebug.compare(str(model), plan=plan, **{**how, "effect": "none"})
    parts = [result.outputs[0].part_sqnrs_db for result in (by_part, again)]
    worst = int(np.argmin(parts[0]))
    gained = parts[1][worst] - parts[0][worst]
    assert 1 - 10 ** (-gained / 10) == pytest.approx(shares[0], abs=0.01)
    table = next(block for block in view(by_part) if isinstance(block, Table))
    column = [c.head for c in table.columns].index("part dB")
    assert table.rows[0][column] == f"{gained:+.1f}"
    assert by_effect.layers[0].effect is not None
    assert "part dB" not in str([b for b in view(by_effect) if isinstance(b, Table)])
