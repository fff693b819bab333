"""Causes are weighed by what they do to the outputs, not to the layer's own."""

from __future__ import annotations

import pytest
from channel_ranges import compared

from qdebug.results.compare import AT_OUTPUTS
from qdebug.wording import option


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("scales", ["in", "tensor"])
def test_scales_that_do_not_suit_the_narrow_channels_are_the_main_cause(
    op_type: str, scales: str
) -> None:
    layer = compared(op_type, scales).layers[0]
    assert layer.name == "middle"
    main = layer.causes[0]
    assert (main.label, main.share_of) == ("weight-range", AT_OUTPUTS)
    assert main.share is not None and main.share > 0.9
    if scales == "in":
        wrong = {"Conv": 1, "ConvTranspose": 0, "Gemm": 1, "MatMul": 0}[op_type]
        assert f"axis {wrong}" in main.evidence and f"axis {1 - wrong}" in main.remedy
    assert "--weights" not in main.remedy and "when quantizing the FP32 model" in main.remedy


def test_one_scale_before_a_batch_normalization() -> None:
    """FP32 has it folded, so that what is stored differs from the weight of the reference: neither
    the ranges of the channels nor the codes that are used can be read from that one."""
    result = compared("Conv", "tensor", "BatchNormalization")
    assert result.layers[0].causes[0].label == "weight-range"
    fix, mended = result.cures[0], compared("Conv", "out", "BatchNormalization", effect="none")
    assert fix.name == "weights per-channel" and fix.helps
    assert fix.sqnr_db == pytest.approx(mended.outputs[0].metrics.sqnr_db, abs=1)


def test_without_effects_they_are_weighed_at_the_layer() -> None:
    """There rounding the input looks as important, since the wide channels are all that shows."""
    main = compared("Conv", "tensor", effect="none").layers[0].causes[0]
    assert main.share_of == "its own error" and main.share is not None and main.share < 0.9


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_scales_that_suit_are_not_blamed(op_type: str) -> None:
    labels = {c.label for c in compared(op_type, "out").layers[0].causes}
    assert labels <= {"rounding", "weight-rounding"}


def test_a_setting_of_a_plan_is_the_advice() -> None:
    layer = compared("Conv", None, weights="per-tensor").layers[0]
    assert layer.causes[0].label == "weight-range" and layer.causes[0].share_of == AT_OUTPUTS
    assert option("weights", "per-channel") in layer.causes[0].remedy
