"""Another way to quantize is measured before any layer is kept in FP32: what it gives is what a run
with that setting has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from channel_ranges import compared as of_others
from onnx import helper

import qdebug
from qdebug.analyse import cures
from qdebug.display.summary import sentence
from qdebug.errors import BackendError
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.results.compare import Cure
from qdebug.results.summary import HALF
from qdebug.run.outputs import OutputEvaluator
from qdebug.types import Precision
from qdebug.wording import option

DATA = Path(__file__).parents[2] / "calib_data"
MODEL, INPUTS = str(DATA / "digits_cnn.onnx"), str(DATA / "digits_holdout.npz")
HOW: dict[str, Any] = {
    "inputs": INPUTS,
    "calib_data": str(DATA / "digits_calib.npz"),
    "samples": 48,
}


def sqnr_of(result: qdebug.CompareResult) -> float:
    return result.outputs[0].metrics.sqnr_db


def test_a_scale_for_each_channel_is_measured_before_any_layer_is_pinned() -> None:
    result = qdebug.compare(MODEL, **HOW, weights="per-tensor", metric="top1")
    again = qdebug.compare(MODEL, **HOW, effect="none", metric="top1")
    cure = result.cures[0]
    assert (cure.name, cure.layers, cure.samples, cure.helps) == (
        "weights per-channel",
        14,
        48,
        True,
    )
    assert cure.what == option("weights", "per-channel")
    assert cure.sqnr_db == pytest.approx(sqnr_of(again))
    assert cure.before_sqnr_db == pytest.approx(sqnr_of(result))
    assert again.metric is not None and cure.metric == again.metric.candidate
    assert not any(c.helps and c.sqnr_db > cure.sqnr_db for c in result.cures[1:])
    text = sentence(result)
    assert text.index(cure.what) < text.index("eeping ")  # pinning comes last
    main = result.layers[0].causes[0]
    assert main.label in cure.causes and main.remedy.startswith(cure.advice(result.samples))


def test_it_is_told_only_where_it_helps() -> None:
    result = qdebug.compare(MODEL, **HOW)  # a good range, and a scale for each channel
    assert result.cures and not any(cure.helps for cure in result.cures)
    assert all(option("method") in cure.what for cure in result.cures)
    assert not any(cure.what in sentence(result) for cure in result.cures)
    harmful = replace(result.cures[0], helps=True, sqnr_db=90.0)
    assert harmful.what in sentence(replace(result, cures=(harmful,)))


@pytest.mark.parametrize("effect", ["none", "fast"])
def test_nothing_is_tried_where_nothing_is_lost_or_nothing_was_measured(effect: str) -> None:
    precision = "int8" if effect == "none" else "fp32"
    result = qdebug.compare(
        MODEL, **HOW, effect=effect, precision=precision, allow_unquantized=True
    )
    assert result.cures == ()


@pytest.mark.parametrize(("factor", "label"), [(8.0, "stale-calibration"), (0.1, "clipping")])
def test_ranges_that_do_not_fit_are_compared_with_those_of_the_samples(
    factor: float, label: str
) -> None:
    """Ranges of a file, all of them `factor` times as wide as those of minmax."""
    chosen = qdebug.calibrate(MODEL, calib_data=INPUTS, samples=48, method="minmax").chosen
    wide = {t: TensorRange(np.max(r.amax) * factor) for t, r in chosen.ranges.items()}
    plan = PrecisionPlan(Precision.INT8, tensors=wide)
    how = {"inputs": INPUTS, "samples": 48}
    result = qdebug.compare(MODEL, **how, plan=plan)
    cure = result.cures[0]
    assert (cure.name, cure.helps) == ("ranges of these samples", True)
    again = qdebug.compare(MODEL, **how, effect="none")
    assert cure.sqnr_db == pytest.approx(sqnr_of(again), abs=0.5)
    assert any(c.label in (label, "stale-calibration") for c in result.layers[0].causes)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("scales", ["in", "tensor"])
def test_a_model_of_others_is_told_what_it_would_be_with_other_scales(
    op_type: str, scales: str
) -> None:
    cure = of_others(op_type, scales).cures[0]
    assert (cure.name, cure.layers, cure.helps) == ("weights per-channel", 1, True)
    assert "per-channel" not in cure.what  # an option that is refused for it
    right = of_others(op_type, "out")
    assert cure.sqnr_db == pytest.approx(sqnr_of(right), abs=0.01)
    assert all(c.name != cure.name for c in right.cures)


def test_another_calibrator_is_the_cure_of_ranges_that_a_few_values_stretch() -> None:
    """One pixel of one sample of 48 is a hundred times as large as any other value."""
    images = {k: v[:48].copy() for k, v in np.load(INPUTS).items() if v.ndim == 4}
    (name,) = images
    images[name][7, 0, 0, 0] = 100 * np.abs(images[name]).max()
    result = qdebug.compare(MODEL, inputs=images)
    cure = result.cures[0]
    assert cure.helps and cure.name.startswith("method ")
    method = cure.name.removeprefix("method ")
    again = qdebug.compare(MODEL, inputs=images, effect="none", method=method)
    assert cure.sqnr_db == pytest.approx(sqnr_of(again))
    assert cure.samples == 48 and cure.before_sqnr_db == pytest.approx(sqnr_of(result))


def test_what_helps_on_a_few_samples_only_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is best on the few is run on all, and must help there."""
    asked = []

    def refuted(_: object, __: object, cure: Cure, ___: object) -> Cure:
        asked.append(cure.name)
        return replace(cure, helps=False)

    monkeypatch.setattr(cures, "_on_all", refuted)
    result = qdebug.compare(MODEL, **HOW, weights="per-tensor")
    assert asked[0] == "weights per-channel" and not result.cures[0].helps
    assert "weights per-channel" in [cure.name for cure in result.cures]
    assert "cheapest" not in sentence(result)
    tried = {c.remedy for x in result.layers for c in x.causes if "Measured" in c.remedy}
    assert all(", which " in remedy and "not measured" not in remedy for remedy in tried)


def test_what_gives_the_metric_back_helps_whatever_the_noise_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cures, "LEAST_CURE_DB", 99.0)
    result = qdebug.compare(MODEL, **HOW, weights="per-tensor", metric="top1")
    cure, task = result.cures[0], result.metric
    assert task is not None and task.candidate < task.reference
    assert (cure.name, cure.samples, cure.helps) == ("weights per-channel", 48, True)
    assert cure.before_metric == task.candidate and cure.metric is not None
    assert (cure.metric - task.candidate) / (task.reference - task.candidate) >= HALF
    assert f"the metric at {cure.metric:.4f} in place of" in result.layers[0].causes[0].remedy


def test_a_scale_for_each_channel_needs_a_newer_opset() -> None:
    """Of the file that others have quantized, where it would help."""
    cure = Cure("weights per-channel", "", (), 1, 8, 20.0, 30.0, helps=True, metric=None)
    for opset, plan, helps, told in (
        (11, None, True, True),
        (13, None, True, False),
        (11, "a plan", True, False),
        (11, None, False, False),
    ):
        proto = helper.make_model(
            helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", opset)]
        )
        pair: Any = SimpleNamespace(
            plan=plan, model=SimpleNamespace(file=SimpleNamespace(proto=proto))
        )
        notes = [*cures._opset_note(pair, [replace(cure, helps=helps)])]
        assert bool(notes) is told
        assert not told or "convert_version(model, 13)" in notes[0]


def test_what_was_measured_is_kept_where_the_metric_refuses_the_outputs() -> None:
    """Of the best change, which is run on all samples and judged by the metric there."""

    def coarse(outputs: Any, reference: Any) -> float:
        error = float(np.abs(outputs["logits"] - reference["logits"]).mean())
        if 0 < error < 0.2:
            raise ValueError("it is made for larger errors")
        return -error

    result = qdebug.compare(MODEL, **HOW, weights="per-tensor", metric=coarse)
    cure = result.cures[0]
    assert (cure.name, cure.samples, cure.helps) == ("weights per-channel", 48, True)
    assert result.metric is not None and cure.metric is None
    assert cure.before_sqnr_db == pytest.approx(sqnr_of(result))
    assert cure.sqnr_db == pytest.approx(sqnr_of(qdebug.compare(MODEL, **HOW, effect="none")))


def test_what_does_not_run_on_all_samples_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = OutputEvaluator.evaluated

    def on_a_few(evaluator: OutputEvaluator, candidates: Any, *how: Any, **more: Any) -> Any:
        if evaluator.runner.subset.count < 48:
            return evaluated(evaluator, candidates, *how, **more)
        return {name: BackendError("it takes too much memory") for name in candidates}

    monkeypatch.setattr(OutputEvaluator, "evaluated", on_a_few)
    result = qdebug.compare(MODEL, **HOW, weights="per-tensor")
    assert result.cures[0].samples < 48 and not any(cure.helps for cure in result.cures[:2])
