"""What a person sees of a search: no two figures for one thing without a word on why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qdebug
from qdebug.display.bisect import checked_line, proves_nothing, view
from qdebug.display.blocks import Facts, Line, Table

DATA = Path(__file__).parents[2] / "calib_data"


@pytest.fixture(scope="module")
def result() -> Any:
    return qdebug.bisect(
        DATA / "digits_cnn.onnx", inputs=DATA / "digits_holdout.npz", samples=60, batch_size=6,
        weights="per-tensor", target="output.sqnr_db>=10", cache=False,
    )  # fmt: skip


def test_held_out_samples_that_pass_with_nothing_pinned_prove_nothing(result: Any) -> None:
    held_out = result.verified_on
    assert result.layers and not held_out.baseline.passed
    assert proves_nothing(result, "nothing pinned") == ""
    easy = replace(held_out, baseline=replace(held_out.baseline, passed=True))
    checks = tuple(easy if check is held_out else check for check in result.checks)
    said = proves_nothing(replace(result, checks=checks), "nothing pinned")
    assert f"{held_out.samples} held-out samples" in said and "nothing pinned" in said
    searched = tuple(replace(check, used_in_search=True) for check in checks)
    assert proves_nothing(replace(result, checks=searched), "nothing pinned") == ""


def test_a_metric_beside_the_target_has_lines_of_its_own() -> None:
    """FP32's top1 stood among decibels without its name, and that of the answer nowhere."""
    found = qdebug.bisect(
        DATA / "digits_cnn.onnx", inputs=DATA / "digits_holdout.npz", samples=60, batch_size=6,
        weights="per-tensor", target="output.sqnr_db>=10", metric="top1", cache=False,
    )  # fmt: skip
    (rows,) = [b.rows for b in view(found) if isinstance(b, Facts)]
    assert "FP32" not in dict(rows)
    told = [text for name, text in rows if name == "top1"]
    assert len(told) == len(found.checks) + 1 == 2
    assert told[0].endswith(f"{found.samples} searched samples")
    for check, text in zip(found.checks, told[1:], strict=True):
        assert check.answer.metric is not None and check.baseline.metric is not None
        assert text.startswith(f"{check.reference_metric:.4f} in FP32 (95%")
        assert f", {check.answer.metric:.4f} with the answer, " in text
        assert f" {check.baseline.metric:.4f} with nothing pinned" in text
        assert f"{check.samples} {check.on}" in text
        line = checked_line(found, check, "nothing pinned")
        assert "FP32" not in line and f"{check.answer.value:.1f}" in line
    assert found.checks[0].baseline.metric != found.checks[0].answer.metric


@pytest.mark.parametrize("times", [1, 5])
def test_that_every_layer_is_pinned_is_a_sentence_where_these_are_many(
    result: Any, times: int
) -> None:
    layers = result.layers * times
    every = replace(result, layers=layers, candidates=len(layers))
    blocks = view(every)
    (facts,) = [dict(b.rows) for b in blocks if isinstance(b, Facts)]
    assert every.pins_everything and "every layer" not in facts["cost"]
    said = f"Every layer that may be pinned is: {len(layers)}, to FP16."
    assert (said in [b.text for b in blocks if isinstance(b, Line)]) == (len(layers) > 12)
    listed = [len(b.rows) for b in blocks if isinstance(b, Table) and b.columns[0].head == "layer"]
    assert listed == ([] if len(layers) > 12 else [len(layers)])
