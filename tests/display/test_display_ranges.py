"""What `ranges` prints, with names and numbers of every kind."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from qdebug.calibrators.coverage import Excess, growth, stretches
from qdebug.calibrators.gather import histogram_of
from qdebug.display.ranges import view
from qdebug.display.terminal import print_view
from qdebug.result import ModelRef
from qdebug.results.calibrate import Coverage
from qdebug.results.ranges import (
    CalibrationData,
    RangesCoverage,
    RangesResult,
    RangesSource,
    TensorDynamics,
)

ODD = (
    "[red]x[/red]",
    "слой/свёртка",
    "/blocks/blocks.0/" + "deeply/" * 40 + "conv/Conv",
    "层" * 120 + "/Conv",
    "a$b$\n\x1b[31mc",
    "",
)


def dynamics(name: str, values: np.ndarray, position: int = 0) -> TensorDynamics:
    """All about [samples, n] values."""
    values = values.astype(np.float32)
    finite = np.where(np.isfinite(values), np.abs(values), 0)
    found = TensorDynamics(
        name, position, histogram_of(values, len(values)), finite.max(axis=1), ("reader",)
    )
    return replace(found, calibrators=found.calibrated())


def result(tensors: Sequence[TensorDynamics], excess: Sequence[Excess] = ()) -> RangesResult:
    amax = {t.name: t.sample_amax for t in tensors}
    coverage = Coverage(growth(amax), tuple(stretches(amax, np.arange(16))), tuple(excess))
    return RangesResult(
        source=RangesSource("model", "folder/net.onnx"),
        model=ModelRef("folder/net.onnx", "0" * 64),
        calibration=CalibrationData("data.npz", 16, False),
        sort="crest",
        tensors=tuple(tensors),
        coverage=RangesCoverage(len(tensors), coverage),
    )


@pytest.fixture
def many() -> RangesResult:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(16, 300))
    kinds = [
        values,
        np.abs(values) * 1e-30,
        np.maximum(values, 0) * 1e5,
        -np.abs(values),
        np.full((16, 2), math.nan),
        np.zeros((16, 2)),
    ]
    return result([dynamics(n, v, i) for i, (n, v) in enumerate(zip(ODD, kinds, strict=True))])


def show(found: RangesResult, width: int | None, detailed: bool = True) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=width is not None,
        width=width or 4096,
        highlight=False,
        color_system="truecolor" if width else None,
    )
    print_view(console, view(found, top=20, detailed=detailed))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(
    many: RangesResult, plain: Callable[[str], str], width: int
) -> None:
    text = plain(show(many, width))
    for line in text.splitlines():
        assert cell_len(line.rstrip()) <= width, line
    for words in ("amax/rms", "INT8", "minmax", "smaller", "nothing to show", "a$b$\\n\\x1b[31mc"):
        assert words in text


def test_a_pipe_gets_plain_text_with_whole_names(many: RangesResult) -> None:
    text = show(many, None)
    assert "\x1b" not in text and ODD[2] in text and "…" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    table = show(many, None, detailed=False)
    assert "minmax" not in table and "█" not in table


def test_histogram_rows(plain: Callable[[str], str]) -> None:
    values = np.array([[0.0, 1.0, 1.5, -3.0], [0.0, 0.0, 0.0, 0.3]])
    lines = show(result([dynamics("t", values)]), None).splitlines()
    (top,) = (line.split() for line in lines if line.startswith("       2 "))
    assert top[:3] == ["2", "█" * 6, "12%"] and top[3:5] == ["<", "minmax"]
    (one,) = (line.split() for line in lines if line.startswith("       1 "))
    assert one[:1] + one[2:] == ["1", "25%", "<", "mean-max"]
    assert any(line.split() == ["zero", "50%"] for line in lines)
    minmax = next(line for line in lines if line.startswith("minmax")).split()
    assert minmax == ["minmax", "3", "0.0236", "0", "0"]


def test_coverage(many: RangesResult) -> None:
    assert "held-out" not in show(many, None)
    one = dynamics("t", np.ones((16, 4)))
    text = show(result([one], [Excess("t", 1.5, 0.25)]), None)
    assert "1 of 1 tensor, most in t (1.5 times, 25% of the samples)" in text
    assert "stay within" in show(result([one], [Excess("t", 1.0, 0.0)]), None)
    assert "the first sample gives every tensor at least 95% of its range" in text
    late = dynamics("t", np.append(np.ones((15, 4)), np.full((1, 4), 9.0), axis=0))
    text = show(result([late]), None)
    assert "more might widen them" in text and "sample 15 by itself stretches t: amax 9" in text


def test_json(many: RangesResult) -> None:
    found = many.to_dict()
    json.dumps(found, allow_nan=False)
    by_name = {t["name"]: t for t in found["tensors"]}
    assert set(by_name) == set(ODD)
    assert by_name[""]["calibrators"] == [] and by_name[""]["zero_share"] == 1.0
    broken = by_name[ODD[4]]
    assert broken["percentiles"]["50"] is None and broken["nan_count"] == 32
