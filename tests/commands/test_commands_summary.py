"""What the leading layers cost together, against runs of plans that keep them in FP32."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from half_networks import Builder

import qdebug
from qdebug.display.compare import view
from qdebug.display.summary import REASONS, sentence
from qdebug.plan.plan import PrecisionPlan
from qdebug.results.summary import Finding, Summary, common_cause, joint_share
from qdebug.types import Precision

DATA = Path(__file__).parents[2] / "calib_data"
MODEL, INPUTS = str(DATA / "digits_cnn.onnx"), str(DATA / "digits_holdout.npz")
HOW = {"inputs": INPUTS, "calib_data": str(DATA / "digits_calib.npz"), "samples": 48}


def compared(model: Any = MODEL, **more: Any) -> qdebug.CompareResult:
    return qdebug.compare(model, **{**HOW, **more})


def summary_of(result: qdebug.CompareResult) -> Summary:
    assert result.summary is not None
    return result.summary


def pinned(summary: Summary, model: Any = MODEL, **more: Any) -> qdebug.CompareResult:
    """The same with the layers that the summary names in FP32."""
    precision = Precision(more.pop("precision", "int8"))
    plan = PrecisionPlan(precision, layers=dict.fromkeys(summary.layers, Precision.FP32))
    return compared(model, effect="none", plan=plan, **more)


def test_what_is_restored_is_what_a_run_with_these_layers_in_fp32_has() -> None:
    result = compared(weights="per-tensor", metric="top1")
    found = summary_of(result)
    assert found.layers == tuple(x.name for x in result.layers[: len(found.layers)])
    assert (found.samples, found.of_layers, found.cause) == (48, 14, "weight-range")
    again = pinned(found, weights="per-tensor", metric="top1")
    assert found.sqnr_db == pytest.approx(result.outputs[0].metrics.sqnr_db)
    assert found.restored_sqnr_db == pytest.approx(again.outputs[0].metrics.sqnr_db, abs=0.01)
    rest = 10 ** ((result.outputs[0].metrics.sqnr_db - again.outputs[0].metrics.sqnr_db) / 10)
    assert found.output_share == pytest.approx(1 - rest, abs=1e-3)
    assert result.metric and again.metric and found.metric
    assert found.metric.planned == result.metric.candidate
    assert found.metric.restored == again.metric.candidate
    assert found.metric.reference == result.metric.reference
    text = sentence(result)
    assert all(name in text for name in found.layers) and f"{found.metric.restored:.4f}" in text
    assert view(result)[0].text == text
    assert text.removesuffix(".") in result.headline()
    assert found.layers[0] in result._repr_html_().partition("</div>")[0]
    assert qdebug.CompareResult.from_dict(result.to_dict()).summary == found


def test_an_error_that_no_few_layers_make_is_not_pinned_on_them() -> None:
    result = compared(str(DATA / "digits_encoder.onnx"), samples=16)
    found = summary_of(result)
    assert len(found.layers) == 5 and found.of_layers == 26
    assert found.restored is not None and 0.5 < found.restored < 0.75
    again = pinned(found, str(DATA / "digits_encoder.onnx"), samples=16)
    assert found.restored_sqnr_db == pytest.approx(again.outputs[0].metrics.sqnr_db, abs=0.01)


def test_nothing_is_restored_where_nothing_is_lost() -> None:
    encoder = str(DATA / "digits_encoder.onnx")
    result = compared(encoder, precision="fp16", metric="top1", samples=4)
    found = summary_of(result)
    assert (found.layers, found.output_share, found.restored_sqnr_db) == ((), None, None)
    assert found.sqnr_db >= 60 and found.metric is not None and found.metric.restored is None
    assert f"{found.sqnr_db:.1f} dB" in sentence(result)


def test_without_effects_or_layers_there_is_no_summary() -> None:
    plain = compared(effect="none")
    assert plain.summary is None and sentence(plain) == ""
    assert view(plain)[0].style == "title"
    assert compared(plan=PrecisionPlan(Precision.FP32)).summary is None


def squares(largest: float) -> Any:
    """x → √(Σ(c x)²) of a wide row, behind a linear layer; the squares leave FP16 where the values
    do not."""
    build = Builder(3)
    x = build.linear("x", 8, 16)
    wide = build.add("Mul", x, build.constant(largest))
    root = build.add("Sqrt", build.add("ReduceSum", build.add("Mul", wide, wide), keepdims=1))
    return build.model({"x": ["n", 8]}, [build.add("Div", wide, root)])


@pytest.mark.parametrize(("largest", "layers"), [(2000.0, 3), (1e6, 5)])
def test_an_overflow_is_cured_by_the_layers_that_hand_it_on(largest: float, layers: int) -> None:
    """No single one gains anything; the outputs are 0, or NaN where the values overflow too."""
    values = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    result = qdebug.compare(squares(largest), inputs={"x": values}, precision="fp16")
    found = summary_of(result)
    assert len(found.layers) == layers and found.cause == "fp16-overflow"
    assert {x.name for x in result.layers if x.rank <= layers} == set(found.layers)
    if largest > 1e5:
        assert math.isnan(found.sqnr_db) and found.output_share is None
        assert "NaN" in sentence(result)
    else:
        assert found.sqnr_db == pytest.approx(0) and found.output_share == pytest.approx(1)
    assert found.restored_sqnr_db is not None and found.restored_sqnr_db > 60


def test_shares_and_causes_that_are_none() -> None:
    assert joint_share(2.0, 0.5) == 0.75
    assert joint_share(1.0, 2.0) == -1.0
    assert joint_share(math.inf, 0.5) is None and joint_share(1.0, math.inf) is None
    assert joint_share(0.0, 0.0) is None
    assert common_cause([("a", 0.2), ("b", 0.3), ("a", 0.2)]) == "a"
    assert common_cause([("a", 0.53), ("b", 0.1), ("b", 0.1)]) == "a"
    assert common_cause([("a", 0.5), ("b", 0.5)]) == "" and common_cause([]) == ""
    assert common_cause([("", 0.6), ("a", 0.3)]) == ""
    assert common_cause([("a", -0.1), ("b", 0.0)]) == ""


def test_a_figure_that_does_not_move_is_no_gain() -> None:
    result = compared(weights="per-tensor", metric="top1")
    found = summary_of(result)
    assert found.metric is not None and f"SQNR from {found.sqnr_db:.1f} to" in sentence(result)

    def said(
        after: float,
        restored: float,
        planned: float = 0.984,
        higher_is_better: bool | None = True,
        p_value: float = 0.001,
    ) -> str:
        metric = replace(found.metric, planned=planned, restored=restored, reference=0.986)
        part = 1 - 10 ** ((20.0 - after) / 10)
        changed = {"sqnr_db": 20.0, "restored_sqnr_db": after, "restored": part}
        other = replace(found, metric=metric, **changed)
        task = replace(
            result.metric,
            reference=0.986,
            candidate=planned,
            higher_is_better=higher_is_better,
            uncertainty=replace(result.metric.uncertainty, p_value=p_value),
        )
        return sentence(replace(result, summary=other, metric=task))

    moved = said(30.0, 0.984)
    assert "leaves top1 at 0.9840" in moved and "SQNR from 20.0 to 30.0 dB" in moved
    assert "leaves the SQNR at 20.0 dB" in said(20.0, 0.985)
    assert "top1 to 0.9850" in said(20.0, 0.985)
    assert "leaves the SQNR" in said(20.0, 0.984) and "leaves top1" in said(20.0, 0.984)
    exact = said(math.inf, 0.985)
    assert "SQNR from 20.0 dB to exact" in exact and "exact dB" not in exact
    worse, little = said(18.0, 0.984), said(22.0, 0.984)
    few = "spread over many layers"
    assert worse.count(few) == little.count(few) == 1
    higher = said(30.0, 0.986, planned=0.99)
    assert "better than FP32" in higher and "0.9900 against 0.9860" in higher
    # Less noise, and a worse score: nobody is advised to pin these.
    for text in (said(30.0, 0.97), higher):
        assert "Less noise does not improve top1" in text and ", but takes top1 to 0.9" in text
    assert ", but takes top1 to 0.9700, which may be chance." in said(30.0, 0.97, p_value=0.3)
    assert "are not what" not in moved
    lower = said(30.0, 0.97, higher_is_better=False)
    assert "better than FP32 in top1: 0.9840 against 0.9860" in lower and "but takes" not in lower
    unknown = said(30.0, 0.97, higher_is_better=None)
    assert "better than FP32" not in unknown and "nearer to FP32's" in unknown


def test_a_single_layer_is_told_where_it_gives_more_than_several_together() -> None:
    """Errors that offset each other: of one sample the first layer gains more alone."""
    data = np.load(INPUTS)["input"][7:8]
    result = compared(inputs={"input": data}, calib_data={"input": data}, samples=None)
    found = summary_of(result)
    gains = [x.gain_db or 0.0 for x in result.layers]
    assert found.layers == (result.layers[0].name,) and gains[0] == max(gains)
    assert found.restored_sqnr_db is not None
    assert found.restored_sqnr_db - found.sqnr_db == pytest.approx(gains[0], abs=0.01)


def test_what_the_summary_and_the_table_say_of_one_layer_is_the_same() -> None:
    """All samples took part in both."""
    result = compared(calib_data={"input": np.load(INPUTS)["input"][:8] * 255}, metric="top1")
    found = summary_of(result)
    first = result.layers[0]
    assert found.layers == (first.name,) and found.cause == "stale-calibration"
    assert found.restored_sqnr_db is not None and first.gain_db is not None
    assert found.restored_sqnr_db - found.sqnr_db == pytest.approx(first.gain_db, abs=0.05)
    assert f"{first.gain_db:+.1f}" in view(result)[6].rows[0]


def test_every_cause_of_the_simulation_has_a_clause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "causes.md").read_text()
    labels = {line.strip("#` ") for line in page.splitlines() if line.startswith("### `")}
    assert labels - {"not-as-planned", "kernel", "reference-mismatch"} == set(REASONS)


def test_what_the_error_is() -> None:
    """Five layers that give back half are never called none."""

    def finding(layers: int, restored: float, cause: str = "") -> Finding:
        names = tuple(f"layer{k}" for k in range(layers))
        summary = Summary(10, names, 40, None, cause, 20.0, 25.0, restored=restored)
        return summary.finding

    assert finding(5, 0.51) is finding(1, 0.9) is finding(10, 0.7) is Finding.FEW_LAYERS
    assert finding(5, 0.49) is finding(10, 0.6) is finding(11, 0.9) is Finding.SPREAD
    assert finding(20, 0.96) is Finding.FEW_LAYERS and finding(21, 0.99) is Finding.SPREAD
    assert finding(5, 0.4, "weight-range") is Finding.ONE_CAUSE
    assert finding(5, 0.4, "rounding") is Finding.SPREAD
    assert Summary(10, (), 40, None, "", 70.0, None).finding is Finding.NOTHING_LOST


def test_one_cause_in_many_layers_is_named_with_its_cure() -> None:
    result = compared(weights="per-tensor", metric="top1")
    found = replace(summary_of(result), restored=0.3)
    text = sentence(replace(result, summary=found))
    assert "spread over many layers, most of it for one cause" in text
    assert "per-channel" in text


def test_layers_that_are_nearly_all_are_no_advice() -> None:
    result = compared(weights="per-tensor", metric="top1")
    found = summary_of(result)
    few = replace(found, restored=0.9)

    def said(of_layers: int, after: float = 30.0) -> str:
        other = replace(few, of_layers=of_layers, restored_sqnr_db=after, layers=("a", "b", "c"))
        return sentence(replace(result, summary=other))

    assert "No small group of layers makes the error: keeping 3 of 4" in said(4)
    assert "No small group" not in said(5) and "Keeping 3 of 5" in said(5)
    assert "The error comes from all quantized layers (a, b and c)" in said(3, math.inf)


def test_better_than_fp32_is_said_as_such() -> None:
    result = compared(weights="per-tensor", metric="top1")
    found = summary_of(result)
    assert found.metric is not None

    def said(restored: float) -> str:
        metric = replace(found.metric, planned=0.8, restored=restored, reference=0.986)
        return sentence(replace(result, summary=replace(found, metric=metric)))

    assert "to 0.9900, better than FP32," in said(0.99)
    assert "to 0.9860, that of FP32," in said(0.986)
    assert "FP32," not in said(0.985).partition("takes top1 to 0.9850")[2]
