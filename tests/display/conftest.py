"""Results made by hand, and consoles like a terminal and like a pipe."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qdebug.display.compare import run_file_line, view
from qdebug.display.terminal import print_view
from qdebug.metrics.tensor import Metrics
from qdebug.result import ModelRef
from qdebug.results.compare import (
    CompareResult,
    Divergence,
    LayerResult,
    OutputResult,
    TaskResult,
    TensorResult,
)
from qdebug.results.conditions import Checked
from qdebug.types import Precision, Skipped

FINE = Metrics(
    max_abs_err=0.5,
    mean_abs_err=0.1,
    rmse=0.2,
    sqnr_db=31.25,
    cosine=0.999,
    ref_amax=6.0,
    cand_amax=6.1,
    clipped_fraction=None,
    nan_count=0,
    inf_count=0,
    worst_sample=3,
    worst_sample_sqnr_db=30.5,
    worst_channel=None,
    worst_channel_sqnr_db=None,
    worst_part_sqnr_db=31.25,
)
NAN = math.nan
BROKEN = Metrics(
    max_abs_err=NAN,
    mean_abs_err=NAN,
    rmse=NAN,
    sqnr_db=NAN,
    cosine=NAN,
    ref_amax=1e5,
    cand_amax=6e4,
    clipped_fraction=None,
    nan_count=2,
    inf_count=7,
    worst_sample=0,
    worst_sample_sqnr_db=NAN,
    worst_channel=None,
    worst_channel_sqnr_db=None,
    worst_part_sqnr_db=NAN,
)


def layer(
    name: str, *, local: float | None = 20.0, metrics: Metrics = FINE, op: str = "Conv"
) -> LayerResult:
    """An INT8 layer."""
    return LayerResult(name, op, Precision.INT8, f"{name}:out", (name,), metrics, local, 0.25)


def result(
    layers: Sequence[LayerResult],
    outputs: Sequence[OutputResult] = (OutputResult("out", FINE),),
    **more: Any,
) -> CompareResult:
    """A comparison; layers are ranked as given."""
    ranked = tuple(
        LayerResult(**{**vars(x), "rank": rank}) for rank, x in enumerate(layers, start=1)
    )
    tensors = (*outputs, *(TensorResult(x.tensor, x.metrics) for x in ranked))
    values: dict[str, Any] = {
        "model": ModelRef("folder/net.onnx", "0" * 64),
        "backend": "simulation",
        "precision": "int8",
        "samples": 12,
        "local_samples": 12,
        "outputs": tuple(outputs),
        "layers": ranked,
        "tensors": tensors,
        "first_divergence": None,
        "skipped": (),
    }
    return CompareResult(**{**values, **more})


def show(
    found: CompareResult,
    *,
    width: int | None,
    run_file: Path | None = None,
    detailed: bool = False,
) -> str:
    """What is printed: on a terminal of `width` columns, or into a pipe when it is None."""
    file = io.StringIO()
    console = Console(
        file=file,
        force_terminal=width is not None,
        width=width or 4096,
        highlight=False,
        color_system="truecolor" if width else None,
    )
    print_view(console, [*view(found, detailed=detailed), run_file_line(run_file)])
    return file.getvalue()


class Kit:
    """What the tests of this folder share."""

    fine, broken = FINE, BROKEN
    layer, result, show = staticmethod(layer), staticmethod(result), staticmethod(show)
    Checked, OutputResult = Checked, OutputResult
    TaskResult, Divergence, Skipped = TaskResult, Divergence, Skipped


@pytest.fixture
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def plain() -> Callable[[str], str]:
    """Text without the codes of a terminal."""
    from rich.text import Text

    return lambda text: Text.from_ansi(text).plain
