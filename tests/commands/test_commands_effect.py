"""What layers cost at the outputs, against brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdebug
from qdebug.analyse.effect import curves
from qdebug.analyse.effect import effects as effect
from qdebug.errors import BackendError
from qdebug.execute import variants
from qdebug.plan.plan import BoundPlan, PrecisionPlan
from qdebug.plan.planfile import read_plan
from qdebug.types import Precision

DATA = Path(__file__).parents[2] / "calib_data"
MODEL, INPUTS = str(DATA / "digits_cnn.onnx"), str(DATA / "digits_holdout.npz")
HOW = {"inputs": INPUTS, "calib_data": str(DATA / "digits_calib.npz"), "weights": "per-tensor"}


def noise(result: qdebug.CompareResult) -> float:
    return sum(10 ** (-o.metrics.sqnr_db / 10) for o in result.outputs) / len(result.outputs)


def compared(**more: object) -> qdebug.CompareResult:
    return qdebug.compare(MODEL, samples=48, **{**HOW, **more})


def test_exact_effects_are_those_of_brute_force(tmp_path: Path) -> None:
    """Plans with one layer in FP32, or all others, lowered and run from the inputs."""
    file = str(tmp_path / "plan.yaml")
    result = compared(effect="exact", save_plan=file)
    assert result.effect is not None
    assert (result.effect.samples, result.effect.alone_samples) == (48, 48)
    assert result.effect.layers == result.effect.of_layers == 14
    whole = noise(result)
    assert result.effect.noise == pytest.approx(whole, rel=1e-3)
    plan, names = read_plan(file), [layer.name for layer in result.layers if layer.effect]
    for layer in (*result.layers[:2], result.layers[13]):
        assert layer.effect is not None
        high = replace(plan, layers={layer.name: Precision.FP32})
        rest = noise(qdebug.compare(MODEL, inputs=INPUTS, samples=48, plan=high, effect="none"))
        assert layer.effect.gain == pytest.approx(whole - rest, abs=0.005 * whole)
        assert layer.output_share == pytest.approx(1 - rest / whole, abs=0.005)
        others = replace(plan, layers={n: Precision.FP32 for n in names if n != layer.name})
        alone = noise(qdebug.compare(MODEL, inputs=INPUTS, samples=48, plan=others, effect="none"))
        assert layer.effect.alone == pytest.approx(alone, rel=0.02)


@pytest.mark.parametrize("rest", ["fp16", "int8 with fp16", "int8 and fp16"])
def test_effects_in_fp16_and_in_mixed_precisions_are_those_of_brute_force(
    rest: str, tmp_path: Path
) -> None:
    """Everything in FP16; INT8 with all else in FP16; every other layer in FP16 instead of INT8."""
    file = str(tmp_path / "plan.yaml")
    how: dict[str, object] = {"plan": PrecisionPlan(Precision.FP16)}
    if rest != "fp16":
        plan = PrecisionPlan(Precision.INT8)
        if rest == "int8 with fp16":
            plan = replace(plan, fallback_precision=Precision.FP16)
        else:
            planned = [x.name for x in compared(effect="none").layers if x.precision == "int8"]
            plan = replace(plan, layers=dict.fromkeys(planned[::2], Precision.FP16))
        how = {"plan": plan, "calib_data": HOW["calib_data"]}
    result = qdebug.compare(MODEL, inputs=INPUTS, samples=16, effect="exact", save_plan=file, **how)
    whole, used = noise(result), read_plan(file)
    assert result.effect is not None
    assert result.effect.of_layers == (14 if rest == "int8 and fp16" else 19)
    assert result.effect.noise == pytest.approx(whole, rel=1e-3)
    for layer in (result.layers[0], result.layers[2]):
        assert layer.effect is not None
        pins = {**used.layers, layer.name: Precision.FP32}
        high = replace(used, layers=pins)
        left = noise(qdebug.compare(MODEL, inputs=INPUTS, samples=16, plan=high, effect="none"))
        assert layer.effect.gain == pytest.approx(whole - left, abs=0.01 * whole)


def test_layers_stand_in_the_order_of_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other order gives back more."""
    monkeypatch.setattr(curves, "_FASTER", 1.0)
    result = compared()
    shares = [layer.output_share for layer in result.layers[:14]]
    assert None not in shares
    assert {layer.output_share for layer in result.layers[14:]} == {None}  # they run in FP32
    assert shares == sorted(shares, reverse=True, key=lambda s: s or 0.0)
    plain = compared(effect="none")
    assert plain.effect is None and {layer.effect for layer in plain.layers} == {None}
    local = [layer.local_sqnr_db for layer in plain.layers]
    assert local == sorted(local, key=lambda v: math.inf if v is None else v)
    assert [x.name for x in plain.layers] != [x.name for x in result.layers]


def test_the_metric_of_each_layer() -> None:
    """What it gains is what a run with the layer in FP32 has more."""
    result = compared(effect="exact", metric="top1")
    gained = [x for x in result.layers if x.effect and x.effect.metric_gain is not None]
    assert gained == list(result.layers[:14])
    assert result.metric is not None
    for layer in gained[:2]:
        plan = PrecisionPlan(Precision.INT8, layers={layer.name: Precision.FP32})
        pinned = compared(plan=plan, effect="none", metric="top1").metric
        assert pinned is not None and layer.effect is not None
        gain = pinned.candidate - result.metric.candidate
        assert layer.effect.metric_gain == pytest.approx(gain)


def test_a_metric_that_cannot_judge_few_samples_costs_no_result() -> None:
    def picky(outputs: dict[str, np.ndarray]) -> float:
        picky.calls += 1
        if picky.calls > picky.most:
            raise ValueError("too few")
        return 1.0

    picky.calls, picky.most, picky.higher_is_better = 0, math.inf, True
    compared(metric=picky, effect="none")
    picky.most, picky.calls = picky.calls, 0  # it fails as soon as layers are judged
    result = compared(metric=picky)
    assert result.metric is not None
    assert {x.effect.metric_gain for x in result.layers if x.effect} == {None}


@pytest.mark.parametrize("alone", [False, True])
def test_a_candidate_that_cannot_be_run_costs_no_other_one(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first layer alone, or of all but it."""
    name, plain = compared(effect="none").layers[0].name, variants.lowered

    def failing(bound: BoundPlan) -> onnx.ModelProto:
        names = {n for n, p in bound.plan.layers.items() if p is Precision.FP32}
        if (len(names) == 13 and name not in names) if alone else names == {name}:
            raise BackendError("out of memory")
        return plain(bound)

    monkeypatch.setattr(variants, "lowered", failing)
    result = compared(effect="exact", cache=False)
    effects = {x.name: x.effect for x in result.layers if x.effect}
    missing = [n for n, found in effects.items() if (found.alone if alone else found.gain) is None]
    assert missing == [name]
    assert result.effect is not None
    assert result.effect.layers == result.effect.of_layers - (not alone)
    assert result.effect.grouped_layers == 0


@pytest.mark.parametrize("layers", [5, 50, 400])
@pytest.mark.parametrize("samples", [1, 16, 500])
@pytest.mark.parametrize("macs", [1e6, 1e9, 2e11])
def test_the_work_is_bounded(layers: int, samples: int, macs: float) -> None:
    """But for the least: every group alone on one sample, eight layers left out on four, and a
    curve on these."""
    found = effect.amounts(macs, layers, samples)
    assert found.groups <= layers and found.groups <= 100
    assert 1 <= found.alone_samples <= samples and 1 <= found.samples <= samples
    assert min(layers, 8) <= found.left_out <= layers
    runs = found.groups * found.alone_samples
    runs += (found.left_out + effect.CURVE_RUNS) * found.samples
    least = 100 + (8 + effect.CURVE_RUNS) * min(samples, 4)
    most = max(effect._LEAST_RUNS * macs, min(effect._MOST_MACS, effect._MOST_RUNS * macs))
    assert runs * macs <= max(7e10 + 8 * layers * macs, most, least * macs)
    if macs == 1e6 and layers < 50:
        assert found.samples == samples and found.left_out == layers


def in_groups(monkeypatch: pytest.MonkeyPatch, **samples: int) -> None:
    """Measure the 14 layers in groups, 10 at the most, and leave out three of them."""
    amounts = {"alone_samples": 48, "samples": 48, **samples}
    found = effect.Amounts(groups=10, left_out=3, **amounts)
    monkeypatch.setattr(effect, "amounts", lambda *_: found)
    monkeypatch.setattr(effect, "_FIRST_GROUPS", 4)


def test_a_gate_on_effects_measures_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    in_groups(monkeypatch)
    result = compared(fail_on=["layer.alone_sqnr_db>=10"])
    assert result.effect is not None and result.effect.grouped_layers == 0
    assert sum(x.alone_sqnr_db is not None for x in result.layers) == 14
    rest = compared(fail_on=["layer.local_sqnr_db>=10"])
    assert rest.effect is not None and rest.effect.grouped_layers > 0
    assert any("measured only in groups" in note for note in rest.notes)


def test_a_few_samples_do_not_hide_a_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders of groups, left out on 12 of 48 samples: within three standard errors of the
    truth."""
    exact = {x.name: x.output_share for x in compared(effect="exact").layers}
    in_groups(monkeypatch, alone_samples=4, samples=12)
    result = compared()
    assert result.effect is not None and result.effect.samples == 12
    measured = [x for x in result.layers if x.effect and x.effect.gain is not None]
    assert len(measured) >= 3
    for layer in measured:
        assert layer.output_share is not None and layer.effect is not None
        std = layer.effect.output_share_std
        assert std is not None
        assert abs(layer.output_share - (exact[layer.name] or 0.0)) <= 3 * std + 0.02


def test_effects_of_groups_are_those_of_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that were measured by themselves have the effects of `exact`, the others none; the
    noisiest one alone is among them."""
    exact = {x.name: x.effect for x in compared(effect="exact").layers if x.effect}
    in_groups(monkeypatch)
    result = compared()
    effects = {x.name: x.effect for x in result.layers if x.effect}
    assert result.effect is not None and result.effect.of_layers == 14
    assert len(effects) == 14 - result.effect.grouped_layers < 14
    for name, found in effects.items():
        if found.alone is not None:
            assert found.alone == pytest.approx(exact[name].alone, rel=1e-3)
    loudest = max(exact, key=lambda n: exact[n].alone or 0.0)
    assert effects[loudest].gain == pytest.approx(exact[loudest].gain, rel=1e-3)


def test_a_repeated_comparison_runs_no_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compared(metric="top1")

    def lowered(_: BoundPlan) -> onnx.ModelProto:
        raise AssertionError("it was measured before")

    monkeypatch.setattr(variants, "lowered", lowered)
    again = compared(metric="top1")
    assert again.layers == first.layers and again.curve == first.curve
    assert again.summary == first.summary


def test_a_share_may_be_gated() -> None:
    result = compared(fail_on=["layer.output_share<=0.05", "layer.alone_sqnr_db>=1"])
    worst = max(x.output_share or 0.0 for x in result.layers)
    share, alone = result.conditions
    assert (share.value, share.passed) == (worst, False)
    assert alone.passed
