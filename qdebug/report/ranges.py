"""Show and serialise the dynamic ranges that `ranges` found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.measure.ranges import PERCENTILES, Mark, RangesResult, TensorDynamics, octaves
from qdebug.report.coverage import coverage_to_json, print_coverage
from qdebug.report.numbers import finite
from qdebug.report.octaves import print_octaves
from qdebug.report.tables import name_table, print_table
from qdebug.report.view import counted, number, printable, share

RANGES_SCHEMA = "qdebug.ranges/1"
_SORTED = {
    "crest": "hardest to quantize first, by crest factor (amax / rms)",
    "amax": "largest amax first",
    "name": "by name",
    "order": "in the order of execution",
    "growth": "by growth: range of all samples / range of their first half",
}


def ranges_to_json(result: RangesResult) -> dict[str, Any]:
    """Schema qdebug.ranges/1."""
    holdout = {"path": result.holdout, "samples": result.held_out_samples}
    return {
        "schema": RANGES_SCHEMA,
        "source": {"kind": result.kind, "path": result.path},
        "model": {"path": result.model_path, "sha256": result.model_sha256},
        "calibration": {
            "path": result.calibration,
            "samples": result.samples,
            "from_cache": result.from_cache,
        },
        "holdout": holdout if result.holdout else None,
        "sort": result.sort,
        "tensors": [_tensor(t) for t in result.tensors],
        "coverage": {"tensors": result.coverage_tensors, **coverage_to_json(result.coverage)},
    }


def print_ranges(console: Console, result: RangesResult, *, top: int, detailed: bool) -> None:
    """The first `top` tensors in a table, histograms of all when `detailed`, and coverage."""
    name = printable(Path(result.model_path or result.path).name)
    tensors = counted(len(result.tensors), "tensor")
    title = f"{name}: ranges of {tensors} over {counted(result.samples, 'sample')}"
    console.print(Text(title, style="bold"))
    shown = result.tensors[:top]
    hidden = len(result.tensors) - len(shown)
    more = f"; {hidden} more in --json" if hidden else ""
    console.print(Text(f"{_SORTED[result.sort]}{more}", style="dim"))
    print_table(console, _table(console, result, shown))
    for note in _notes(result):
        console.print(Text(note, style="yellow"))
    if detailed:
        for tensor in shown:
            print_octaves(console, tensor)
    over = ""
    if result.coverage_tensors < len(result.tensors):
        over = f"of the {counted(result.coverage_tensors, 'tensor')} that INT8 layers read"
    print_coverage(console, result.coverage, over)


def _table(console: Console, result: RangesResult, shown: tuple[TensorDynamics, ...]) -> Table:
    # Where all of it is of interest the growth takes the place of a percentile.
    middle = "growth" if result.sort == "growth" else "|x| 99.9%"
    columns = ("low", "high", middle, "std", "crest", "zeros", "INT8")
    rows = [(t.name, _cells(t, middle == "growth"), "red" if _broken(t) else "") for t in shown]
    return name_table(console, ["tensor", *columns], rows, numbers=columns)


def _cells(tensor: TensorDynamics, growth: bool) -> list[str]:
    crest, zeros = tensor.crest_factor, tensor.zero_share
    return [
        number(tensor.low, 3),
        number(tensor.high, 3),
        number(tensor.growth if growth else tensor.percentile(99.9), 3),
        number(tensor.std, 3),
        "–" if math.isnan(crest) else f"{crest:.1f}",
        "–" if math.isnan(zeros) else share(zeros),
        "?" if tensor.read_by is None else str(len(tensor.read_by) or "–"),
    ]


def _notes(result: RangesResult) -> list[str]:
    notes = []
    broken = sorted(filter(_broken, result.tensors), key=lambda t: t.position)
    if broken:
        first = broken[0].histogram
        notes.append(
            f"NaN or Inf in {counted(len(broken), 'tensor')}, first in {printable(broken[0].name)} "
            f"({first.nan_count} NaN, {first.inf_count} Inf); they are left out of the ranges."
        )
    clipping = [t for t in result.tensors if t.planned_clipped_fraction]
    if clipping:
        worst = max(clipping, key=lambda t: t.planned_clipped_fraction or 0.0)
        notes.append(
            f"The run's own ranges clip values of {counted(len(clipping), 'tensor')}, most in "
            f"{printable(worst.name)} ({share(worst.planned_clipped_fraction)})."
        )
    return notes


def _broken(tensor: TensorDynamics) -> bool:
    return tensor.histogram.nan_count + tensor.histogram.inf_count > 0


def _tensor(tensor: TensorDynamics) -> dict[str, Any]:
    histogram, planned = tensor.histogram, tensor.planned
    found = {
        "name": tensor.name,
        "position": tensor.position,
        "percentiles": finite({f"{p:g}": tensor.percentile(p) for p in PERCENTILES}),
        "read_by": None if tensor.read_by is None else list(tensor.read_by),
        "planned": planned
        and {
            "amax": planned.amax,
            "method": planned.method,
            "clipped_fraction": tensor.planned_clipped_fraction,
        },
        "count": histogram.count,
        "samples": len(tensor.sample_amax),
        "nan_count": histogram.nan_count,
        "inf_count": histogram.inf_count,
        **finite(
            {
                "low": tensor.low,
                "high": tensor.high,
                "amax": tensor.amax,
                "mean": tensor.mean,
                "std": tensor.std,
                "rms": tensor.rms,
                "crest_factor": tensor.crest_factor,
                "zero_share": tensor.zero_share,
                "growth": tensor.growth,
            }
        ),
    }
    return found if tensor.marks is None else found | _detail(tensor, tensor.marks)


def _detail(tensor: TensorDynamics, marks: tuple[Mark, ...]) -> dict[str, Any]:
    by_octave = octaves(tensor.histogram)
    rows = zip(by_octave.exponents, by_octave.negative, by_octave.positive, strict=True)
    return {
        "calibrators": [_calibrator(mark) for mark in marks],
        "octaves": [{"low": 2.0**k, "negative": n, "positive": p} for k, n, p in rows],
        "zeros": by_octave.zeros,
    }


def _calibrator(mark: Mark) -> dict[str, Any]:
    return {
        "method": mark.method,
        "amax": mark.amax,
        "scale": mark.scale,
        "clipped_fraction": mark.clipped_fraction,
        "zeroed_fraction": mark.zeroed_fraction,
    }
