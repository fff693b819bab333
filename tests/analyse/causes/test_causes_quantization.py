"""The causes that are read off figures alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from qdebug.analyse.causes.calibration import Fitted, RangeFit
from qdebug.analyse.causes.quantization import (
    OperandPart,
    WeightPart,
    bf16_causes,
    half_causes,
    inherited_cause,
    rounding_causes,
)
from qdebug.formats.base import Format
from qdebug.formats.registry import FP8_E4M3, INT8
from qdebug.results.compare import Cause, Cure, to_try
from qdebug.wording import part_of


@pytest.mark.parametrize(("form", "other"), [(INT8, "FP8"), (FP8_E4M3, "INT8")])
def test_the_other_format_of_8_bits_is_advised_where_it_is_clearly_better(
    form: Format, other: str
) -> None:
    for better, told in ((2.9, False), (3.0, True), (-5.0, False)):
        part = replace(operand("x", 1.0), format=form, other_db=better)
        (cause,) = rounding_causes([part], None, RangeFit({}))
        assert (f"{other} would add 3.0 dB less noise" in cause.evidence) == told
        assert (f"{other} suits such a tensor" in cause.remedy) == told


def test_bf16_is_told_whether_fp16_would_do() -> None:
    for largest, tiny, says in (
        (10.0, 0.0, "Try FP16, which costs the same"),
        (10.0, 0.5, "or try FP16"),
        (1e5, 0.0, "Keep the layer in FP32."),
    ):
        (cause,) = bf16_causes(largest, tiny)
        assert (cause.label, cause.share) == ("bf16-rounding", 1.0)
        assert says in cause.remedy


def labels(*figures: float) -> list[tuple[str, float | None]]:
    return [(cause.label, cause.share) for cause in half_causes(*figures)]


@pytest.mark.parametrize(
    ("largest", "tiny", "sums", "expected"),
    [
        (1e5, 0.0, 0.0, [("fp16-overflow", 1.0)]),
        (1.0, 0.5, 0.0, [("fp16-underflow", 0.5)]),
        (1.0, 0.0, 0.9, [("fp16-sums", 0.9)]),
        (1.0, 0.001, 0.01, []),
    ],
)
def test_one_cause_of_an_fp16_layer(
    largest: float, tiny: float, sums: float, expected: list[tuple[str, float]]
) -> None:
    assert labels(largest, tiny, sums, 60.0 if sums else math.inf) == expected


def test_a_share_of_all_values_is_written_as_one() -> None:
    (cause,) = half_causes(1e-6, 0.999, 0.0, math.inf)
    assert cause.evidence.startswith("100% of the non-zero values are below")
    (of_bf16,) = bf16_causes(1e-6, 1.0)
    assert "100% of the non-zero values are below" in of_bf16.evidence


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        (0.0, [("fp16-overflow", 1.0), ("fp16-underflow", None)]),
        (0.75, [("fp16-sums", 0.75), ("fp16-overflow", 0.25), ("fp16-underflow", None)]),
    ],
    ids=["at the output", "inside only"],
)
def test_overflow_does_not_hide_other_causes(
    sums: float, expected: list[tuple[str, float | None]]
) -> None:
    assert labels(1e5, 0.5, sums, 60.0 if sums else math.inf) == expected


def test_underflow_does_not_hide_what_inexact_sums_add() -> None:
    found = labels(1.0, 0.4, 0.7, 60.0)
    assert [label for label, _ in found] == ["fp16-sums", "fp16-underflow"]
    assert sum(share or 0 for _, share in found) <= 1.0 + 1e-9


def operand(tensor: str, energy: float, **more: Any) -> OperandPart:
    given = {"largest": 10.0, "rms": 2.0, "clipped": 0.0, "clipped_energy": 0.0, **more}
    return OperandPart(tensor, energy, (-10.0, 10.0), 10 / 127, **given)


def test_a_label_stands_once_and_shares_of_its_own_error_make_no_more_than_the_whole() -> None:
    """A product of two activations, both rounded, one clipped too, and a weight."""
    parts = [operand("a", 3.0), operand("b", 4.0, largest=12.0, clipped=0.1, clipped_energy=0.25)]
    causes = rounding_causes(parts, WeightPart(3.0, 16, 1.0), RangeFit({}))
    found = {cause.label: cause.share for cause in causes}
    assert len(found) == len(causes)
    assert found == pytest.approx({"rounding": 0.6, "weight-rounding": 0.3, "clipping": 0.1})
    rounding = next(cause for cause in causes if cause.label == "rounding")
    assert "'a'" in rounding.evidence and "'b'" in rounding.evidence
    assert {cause.share_of for cause in causes} == {"its own error"}
    inherited = inherited_cause(1e-6, 1e-2, 1e-2)
    assert inherited is not None and inherited.share_of == "the error at its output"


@pytest.mark.parametrize(("filled", "label"), [(9.9, "mixed-scales"), (0.5, "stale-calibration")])
def test_the_scale_of_what_was_joined_serves_a_part_that_is_taken_out(
    filled: float, label: str
) -> None:
    """Boxes and scores that a detector joins, sorts and takes apart keep one scale."""
    fit = RangeFit({"joined": Fitted(10.0, filled, calibrated=False, clips=False, is_input=False)})
    of = {"largest": 0.5, "rms": 0.1, "compared": 0.5, "calibrated": False}
    (cause,) = rounding_causes([operand("scores", 1.0, **of, taken_from="joined")], None, fit)
    assert cause.label == label
    (cause,) = rounding_causes([operand("alone", 1.0, **of)], None, fit)
    assert cause.label == "stale-calibration"
    (cause,) = rounding_causes(
        [operand("soft", 1.0, **of)], None, RangeFit({}, fixed=frozenset({"soft"}))
    )
    assert cause.label == "rounding"


def test_leaving_int8_is_the_last_advice() -> None:
    parts = [operand("a", 1.0), operand("b", 1.0, in_eighth=0.999)]
    causes = [
        *rounding_causes(parts, WeightPart(1.0, 16, 1.0), RangeFit({})),
        inherited_cause(1e-6, 1e-4, 1e-2),
    ]
    assert {c.label for c in causes if c} == {
        *("rounding", "coarse-step", "weight-rounding", "amplification")
    }
    for cause in causes:
        assert cause is not None
        before, _, after = cause.remedy.lower().partition("in fp32")
        assert "qdebug calibrate" in before and "qdebug repair" in before and after
    half = inherited_cause(1e-6, 1e-4, 1e-2, repairable=False)
    assert half is not None and "calibrate" not in half.remedy


def test_more_scales_are_a_flag_only_where_qdebug_quantizes() -> None:
    for planned in (True, False):
        part = WeightPart(1.0, 1, 30.0, planned=planned)
        (cause,) = rounding_causes([], part, RangeFit({}))
        assert cause.label == "weight-range" and ("weights" in cause.remedy) == planned


@pytest.mark.parametrize("normalized", [False, True])
def test_normalization_is_to_be_folded_only_where_there_is_one(normalized: bool) -> None:
    part = operand("between", 3.0, inner=True, before_normalization=normalized)
    (cause,) = rounding_causes([part], None, RangeFit({}))
    assert ("BatchNormalization" in cause.remedy) == normalized


def test_one_output_channel_cannot_have_more_scales() -> None:
    (cause,) = rounding_causes([], WeightPart(1.0, 1, 1.0, divisible=False), RangeFit({}))
    assert cause.label == "weight-rounding" and "per-channel" not in cause.remedy
    assert "1 scales" not in cause.evidence


@pytest.mark.parametrize(("across", "label"), [(0, "weight-range"), (None, "weight-rounding")])
def test_scales_along_another_axis_than_the_output_channels(across: int | None, label: str) -> None:
    part = WeightPart(1.0, 16, 9.16, planned=False, across=across)
    (cause,) = rounding_causes([], part, RangeFit({}))
    assert cause.label == label and ("axis 0, which is not" in cause.evidence) == (across == 0)
    assert "--weights" not in cause.remedy


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (0.25, "a quarter of it"),
        (0.19, "a fifth of it"),
        (0.04, "4% of it"),
        (1.02, "as large as it"),
        (2.5, "2.5 times it"),
    ],
)
def test_parts_in_words(ratio: float, told: str) -> None:
    assert part_of(ratio, "it") == told


def test_a_wide_range_costs_a_floating_point_format_only_digits_of_small_values() -> None:
    """Steps grow with the values: neither outliers nor a range too wide make them coarse."""
    fp8 = {"format": FP8_E4M3, "full_digits": 0.5, "in_eighth": 1.0, "spread": 100.0}
    for largest, rms, tiny, label in (
        (1.0, 0.8, 0.0, "rounding"),
        (9.5, 0.1, 0.95, "fp8-underflow"),
    ):
        part = replace(operand("x", 1.0, largest=largest, rms=rms), tiny_energy=tiny, **fp8)
        (cause,) = rounding_causes([part], None, RangeFit({}))
        assert cause.label == label
        assert cause.share == pytest.approx(tiny or 1.0)
    plain = replace(operand("x", 1.0, largest=9.5), in_eighth=1.0)
    (cause,) = rounding_causes([plain], None, RangeFit({}))
    assert cause.label == "coarse-step" and "qdebug repair" in cause.remedy


def test_channels_of_unlike_range_are_a_fault_where_the_layer_suffers() -> None:
    """Values that lie close together beside a few large ones are one all the same: these make up
    the signal."""
    unlike, outlier = {"spread": 20.0}, {"in_eighth": 1.0}
    for more, local_db, label in (
        (unlike, 23.0, "coarse-step"),
        (unlike, 39.0, "rounding"),
        (outlier, 39.0, "coarse-step"),
    ):
        part = replace(operand("x", 1.0, largest=9.5), local_db=local_db, **more)
        (cause,) = rounding_causes([part], None, RangeFit({}))
        assert cause.label == label


def cure(gain: float, *, helps: bool) -> Cure:
    return Cure("method mse", "--method mse", ("clipping",), 3, 16, 20.0, 20 + gain, helps, None)


def test_what_was_not_measured_is_a_suggestion_and_what_was_no_cure_is_told() -> None:
    cause = Cause("clipping", 0.9, "it clips", f"{to_try('a wider range')} Else pin it.")
    assert cause.remedy == "Try a wider range: not measured. Else pin it."
    helped = cause.measured(cure(5.0, helps=True), 16).remedy
    assert helped.endswith(
        ": 25.0 dB at the outputs in place of 20.0 dB. Try a wider range. Else pin it."
    )
    for gain, doubt in ((0.6, "is no cure"), (1.2, "may be chance")):
        told = cause.measured(cure(gain, helps=False), 500).remedy
        assert told.endswith(f"20.0 dB (on 16 of the 500 samples), which {doubt}. Else pin it.")
    plain = Cause("rounding", 0.9, "", "Keep the layer in FP32.")
    assert plain.measured(cure(5.0, helps=True), 16).remedy.endswith("Keep the layer in FP32.")
