"""The causes that are read off figures alone."""

from __future__ import annotations

import math

import pytest

from qdebug.measure.causes.quantization import half_causes


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
