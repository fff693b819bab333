"""What layers cost at the outputs, against brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import qdebug
from qdebug.analyse.effect import curves, leave_out
from qdebug.analyse.effect import effects as effect
from qdebug.analyse.effect.screening import Screened, screened
from qdebug.errors import BackendError
from qdebug.metrics.effect import EffectMode
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


def test_the_metric_of_the_first_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where layers are left out on samples with much noise, the curve's tell what each gains."""
    exact = compared(effect="exact", metric="top1")
    for name, value in (("_PASSES", 20), ("_PASSES_OF_COMPARE", 0), ("CHEAP_MACS", 0.0)):
        monkeypatch.setattr(effect, name, value)
    result = compared(metric="top1")
    assert result.effect is not None and result.effect.samples < 48
    assert result.curve is not None and result.curve.samples == 48
    gains = {x.name: x.effect.metric_gain for x in result.layers if x.effect}
    measured = [name for name, gain in gains.items() if gain is not None]
    assert measured == [x.name for x in result.layers[:3]]
    expected = {x.name: x.effect.metric_gain for x in exact.layers if x.effect}
    assert [gains[n] for n in measured] == [expected[n] for n in measured]


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
    name, plain = compared(effect="none").layers[0].name, leave_out._planned

    def failing(bound: BoundPlan, kernels: Any, high: effect.High) -> onnx.ModelProto:
        names = {n for n, p in bound.precisions.items() if p is not Precision.FP32}
        if high == (names - {name} if alone else {name}):
            raise BackendError("out of memory")
        return plain(bound, kernels, high)

    monkeypatch.setattr(leave_out, "_planned", failing)
    result = compared(effect="exact")
    effects = {x.name: x.effect for x in result.layers if x.effect}
    missing = [n for n, found in effects.items() if (found.alone if alone else found.gain) is None]
    assert missing == [name]
    assert result.effect is not None
    assert result.effect.layers == result.effect.of_layers - (not alone)
    assert result.effect.grouped_layers == 0


def test_effects_on_int8_kernels_are_those_of_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a run takes longer than opening a session; sums that round elsewhere change some codes,
    and shares of the noise by some hundredths. Kernels whose noise is another, as of those that
    saturate, are not used."""
    as_written = compared()
    literal = gains(as_written)
    assert gains(compared(effect="exact")) == literal
    monkeypatch.setattr(effect, "_RUNS_PAY_MACS", 0.0)
    fast = compared()
    on_kernels = gains(fast)
    assert on_kernels != literal
    # So are the sets of layers of the curve, which cost as much.
    assert fast.curve is not None and as_written.curve is not None
    assert fast.curve.planned != as_written.curve.planned
    assert fast.curve.planned == pytest.approx(as_written.curve.planned, abs=0.3)
    assert on_kernels == pytest.approx(literal, abs=0.03 * sum(literal.values()))
    leading, same = (sorted(x, key=x.__getitem__)[-2:] for x in (literal, on_kernels))
    assert leading == same
    monkeypatch.setattr(effect, "CLOSE_DB", -1.0)
    assert gains(compared()) == pytest.approx(literal, rel=1e-5)


def gains(result: qdebug.CompareResult) -> dict[str, float]:
    """Of all layers, in no order."""
    return {x.name: x.effect.gain or 0.0 for x in result.layers if x.effect}


_ANY = SimpleNamespace(layers=())


@pytest.mark.parametrize(
    ("layers", "precise"), [(50, (2, 25)), (110, (2, 16)), (188, (2, 8)), (300, (2, 8))]
)
def test_opening_sessions_is_work_too(
    layers: int, precise: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small layers: 7e6 MACs each."""
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: layers * 7e6)
    amounts = effect._amounts(
        _ANY,
        SimpleNamespace(count=8),
        layers,
        EffectMode.FAST,
    )
    assert amounts.left_out == 8
    assert (amounts.alone, amounts.leaders) == precise
    work = 0.5 * layers * amounts.alone + 0.8 * amounts.leaders * 8
    assert work + layers * 7e8 / (layers * 7e6) <= max(40 * 8, layers + 0.8 * 8 * 8 + 100)


@pytest.mark.parametrize(("layers", "samples"), [(50, 16), (100, 500), (300, 8), (300, 40)])
@pytest.mark.parametrize("on_kernels", [False, True])
def test_the_work_is_bounded(
    layers: int, samples: int, on_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In passes of one sample through the FP32 model; of a network that is not tiny. The least,
    every layer alone on 2 samples and 8 left out, may be more than is paid for."""
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: 1e9)
    subset = SimpleNamespace(count=samples)
    amounts = effect._amounts(_ANY, subset, layers, EffectMode.FAST, on_kernels=on_kernels)
    left_out = (0.3 if on_kernels else 0.8) * amounts.left_out
    work = 0.5 * layers * amounts.alone + left_out * amounts.leaders
    passes, of_compare = (11, 2) if on_kernels else (40, 5)
    paid = max(passes * min(samples, 16), of_compare * samples)
    nearly_all = 3 / 4
    assert work <= max(paid / nearly_all, layers + 8 * left_out)
    assert amounts.alone >= min(samples, 2) and amounts.leaders >= 8


def test_the_work_on_a_large_model_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute or so for 109 million parameters, by MACs and not by passes."""
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: 1.1e10)
    subset = SimpleNamespace(count=16)
    amounts = effect._amounts(_ANY, subset, 96, EffectMode.FAST)
    work = 0.5 * 96 * amounts.alone + 0.8 * amounts.leaders * amounts.left_out
    assert work * 1.1e10 <= 3.5e12
    assert amounts.leaders >= 8 and amounts.left_out >= 4
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: 8.7e10)
    assert effect._amounts(_ANY, subset, 192, EffectMode.FAST).left_out == 4


def test_the_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network that takes longer than its multiply-accumulates tell: a minute or so."""
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: 1e9)
    subset, work = SimpleNamespace(count=16), {}
    for seconds in (0.0, 0.03125, 0.5):
        amounts = effect._amounts(_ANY, subset, 40, EffectMode.FAST, pass_s=seconds)
        left_out = 0.8 * amounts.leaders * amounts.left_out
        work[seconds] = 0.5 * 40 * amounts.alone + left_out
    assert work[0.03125] == work[0.0] and work[0.5] * 0.5 <= 60 * 1.15


@pytest.mark.parametrize(
    ("layers", "samples", "macs", "groups"),
    [
        (384, 6, 1.9e11, 64),  # 1.5 billion weights: 24 times the work of all else
        (192, 8, 8.7e10, 56),  # 0.7 billion
        (192, 16, 4e10, None),  # 0.3 billion: two and a half times
        (96, 16, 1.1e10, None),
        (90, 6, 1.9e11, None),  # groups would not take less than half
        (384, 5000, 1.9e11, None),  # the comparison takes longer
        (156, 2, 1.15e10, None),  # few samples do not make a model large
        (240, 1, 4e8, None),
        (1536, 4, 1.9e11, 80),
    ],
)
def test_layers_of_a_huge_model_are_measured_in_groups(
    layers: int,
    samples: int,
    macs: float,
    groups: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: macs)
    subset = SimpleNamespace(count=samples)
    amounts = effect._amounts(_ANY, subset, layers, EffectMode.FAST)
    assert amounts.groups == groups
    assert amounts.leaders >= 8 and amounts.left_out >= min(samples, 4)
    assert effect._amounts(_ANY, subset, layers, EffectMode.EXACT).groups is None


def test_what_a_search_starts_from_where_layers_are_measured_in_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group's noise is divided by the layers' own errors, or evenly."""
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: 1.9e11)
    assert effect._fitting_alone(_ANY, SimpleNamespace(count=6), 384) == (1, 64)
    rating = effect.Rating({"a": 0.5}, {("b", "c"): 0.4, ("d", "e"): 0.2})
    estimated = rating.noise({"a": 9.0, "b": 3.0, "c": 1.0})
    assert estimated == pytest.approx({"a": 0.5, "b": 0.3, "c": 0.1, "d": 0.1, "e": 0.1})


@pytest.mark.usefixtures("in_groups")
def test_a_search_that_starts_from_groups_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: 1e14)
    target = {"target": "output.sqnr_db>=30", "max_evaluations": 2}
    found = qdebug.bisect(MODEL, samples=24, **{**HOW, **target})
    assert any(" of 14 layers, which were rated in " in note for note in found.notes)


@pytest.mark.usefixtures("in_groups")
def test_a_gate_on_effects_measures_every_layer() -> None:
    result = compared(effect="fast", fail_on=["layer.alone_sqnr_db>=10"])
    assert result.effect is not None and result.effect.grouped_layers == 0
    assert sum(x.alone_sqnr_db is not None for x in result.layers) == 14
    rest = compared(effect="fast", fail_on=["layer.local_sqnr_db>=10"])
    assert rest.effect is not None and rest.effect.grouped_layers > 0


@pytest.mark.usefixtures("in_groups")
def test_a_few_samples_do_not_hide_a_culprit_among_grouped_layers() -> None:
    """Leaders of groups, left out on 4 of 48 samples: within three standard errors of the truth."""
    exact = {x.name: x.output_share for x in compared(effect="exact").layers}
    result = compared(effect="fast")
    assert result.effect is not None and result.effect.samples < 48
    measured = [x.effect for x in result.layers if x.effect and x.effect.gain is not None]
    assert len(measured) == 3
    for layer in result.layers:
        if layer.effect is not None and layer.effect.gain is not None:
            share, std = layer.output_share, layer.effect.output_share_std
            assert share is not None and std is not None
            assert abs(share - (exact[layer.name] or 0.0)) <= 3 * std + 0.02


@pytest.mark.usefixtures("in_groups")
def test_effects_of_groups_are_those_of_brute_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Layers that were measured by themselves have the effects of `exact`; the others none, and
    the noisiest group makes what a plan with all other layers in FP32 gives."""
    exact, file = compared(effect="exact"), str(tmp_path / "plan.yaml")
    monkeypatch.setattr(effect, "_LEAST_ALONE", 48)
    seen: list[Screened] = []

    def kept(*given: Any) -> Screened | None:
        found = screened(*given)
        seen.extend([found] if found else [])
        return found

    monkeypatch.setattr(effect, "screened", kept)
    result = compared(effect="fast", save_plan=file)
    (found,) = seen
    assert found.alone and found.undivided
    effects = {x.name: x.effect for x in result.layers if x.effect}
    pinned = {n for n, x in effects.items() if x.gain is not None}
    assert effects.keys() == found.alone.keys() | pinned and len(pinned) == 3
    for layer in exact.layers:
        if layer.name in found.alone and layer.effect:
            assert effects[layer.name].alone == pytest.approx(layer.effect.alone, rel=1e-3)
    assert result.effect is not None
    assert result.effect.of_layers == 14 == len(effects) + result.effect.grouped_layers
    worst = max(found.undivided, key=lambda g: found.undivided[g].sum())
    high = {x.name: Precision.FP32 for x in result.layers if x.name not in worst}
    plan = replace(read_plan(file), layers=high)
    alone = noise(qdebug.compare(MODEL, inputs=INPUTS, samples=48, plan=plan, effect="none"))
    assert result.effect.group_share == pytest.approx(alone / noise(result), rel=0.02)


def test_a_share_may_be_gated() -> None:
    result = compared(fail_on=["layer.output_share<=0.05", "layer.alone_sqnr_db>=1"])
    worst = max(x.output_share or 0.0 for x in result.layers)
    share, alone = result.conditions
    assert (share.value, share.passed) == (worst, False)
    assert alone.passed
