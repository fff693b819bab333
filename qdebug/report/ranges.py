"""Show and serialise the dynamic ranges that `ranges` found."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.measure.ranges import RangesResult, TensorDynamics
from qdebug.report.coverage import print_coverage
from qdebug.report.octaves import print_octaves
from qdebug.report.tables import name_table, print_table
from qdebug.report.view import counted, number, printable, share

_SORTED = {
    "crest": "hardest to quantize first, by crest factor (amax / rms)",
    "amax": "largest amax first",
    "name": "by name",
    "order": "in the order of execution",
    "growth": "by growth: range of all samples / range of their first half",
}


def print_ranges(console: Console, result: RangesResult, *, top: int, detailed: bool) -> None:
    """The first `top` tensors in a table, histograms of all when `detailed`, and coverage."""
    name = printable(result.model.name or Path(result.source.path).name)
    tensors = counted(len(result.tensors), "tensor")
    title = f"{name}: ranges of {tensors} over {counted(result.calibration.samples, 'sample')}"
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
    if result.coverage.tensors < len(result.tensors):
        over = f"of the {counted(result.coverage.tensors, 'tensor')} that INT8 layers read"
    print_coverage(console, result.coverage.coverage, over)


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
    clipping = [t for t in result.tensors if _clipped(t)]
    if clipping:
        worst = max(clipping, key=_clipped)
        notes.append(
            f"The run's own ranges clip values of {counted(len(clipping), 'tensor')}, most in "
            f"{printable(worst.name)} ({share(_clipped(worst))})."
        )
    return notes


def _broken(tensor: TensorDynamics) -> bool:
    return tensor.histogram.nan_count + tensor.histogram.inf_count > 0


def _clipped(tensor: TensorDynamics) -> float:
    """The share of its values beyond the range that the run used."""
    return tensor.planned.clipped_fraction if tensor.planned else 0.0
