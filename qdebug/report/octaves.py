"""A tensor's values as a text histogram: by sign and power of two, with calibrators' ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.measure.ranges import Mark, Octave, TensorDynamics
from qdebug.report.names import shorten_names
from qdebug.report.tables import print_table
from qdebug.report.view import counted, number, printable, share

_ROWS = 14
"""Octaves shown; what is smaller shares one row. INT8 has 7 below its range."""
_WIDE, _NARROW = 26, 12
"""Characters of a bar: where there are no negative values, and where there are."""
_LONGEST_LAYER = 60


def print_octaves(console: Console, tensor: TensorDynamics) -> None:
    """Name, histogram and calibrators of one tensor."""
    console.print()
    console.print(Text(printable(tensor.name), style="bold"))
    console.print(Text(_facts(tensor), style="dim"))
    if tensor.read_by:
        names = shorten_names([printable(n) for n in tensor.read_by[:3]], _LONGEST_LAYER)
        more = f" and {len(tensor.read_by) - 3} more" if len(tensor.read_by) > 3 else ""
        console.print(Text(f"read in INT8 by {', '.join(names)}{more}", style="dim"))
    if not tensor.calibrators:
        console.print("  no finite values but 0: nothing to show")
        return
    bar = "█" if console.encoding.lower().startswith("utf") else "#"
    print_table(console, _histogram(tensor, tensor.calibrators, bar))
    print_table(console, _calibrators(tensor.calibrators))


def _facts(tensor: TensorDynamics) -> str:
    histogram = tensor.histogram
    text = (
        f"{histogram.count} values of {counted(len(tensor.sample_amax), 'sample')}, std "
        f"{number(tensor.std, 3)}, growth {number(tensor.growth, 3)}"
    )
    if histogram.nan_count or histogram.inf_count:
        text += f", {histogram.nan_count} NaN, {histogram.inf_count} Inf"
    return text


def _histogram(tensor: TensorDynamics, marks: Sequence[Mark], bar: str) -> Table:
    found: Sequence[Octave] = tensor.octaves or ()
    negative, positive = sum(o.negative for o in found), sum(o.positive for o in found)
    total = negative + positive + tensor.zeros
    rest = [sum(x) for x in zip(*((o.negative, o.positive) for o in found[_ROWS:]), strict=True)]
    below, above = rest or (0, 0)
    width = _NARROW if negative and positive else _WIDE
    most = max([below, above, tensor.zeros, *(max(o.negative, o.positive) for o in found)])

    def length(count: int) -> int:
        return math.ceil(width * math.log1p(count) / math.log1p(most)) if count else 0

    table = Table(box=None, header_style="underline", padding=(0, 1, 0, 0))
    table.add_column("|x| from", justify="right", no_wrap=True)
    if negative:
        table.add_column("negative", justify="right", no_wrap=True, min_width=width)
    if positive:
        table.add_column("positive", no_wrap=True, min_width=width)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("(bars: log of the count)", no_wrap=True)

    def add(label: str, below: int, above: int, count: int, note: str) -> None:
        bars = [bar * length(below)] if negative else []
        bars += [bar * length(above)] if positive else []
        table.add_row(label, *bars, share(count / total), Text(note, style="cyan"))

    for octave in found[:_ROWS]:
        add(
            number(octave.low, 3),
            octave.negative,
            octave.positive,
            octave.negative + octave.positive,
            _names(marks, octave.low),
        )
    if below + above:
        add("smaller", below, above, below + above, "")
    if tensor.zeros:
        table.add_row(
            "zero", *[""] * (bool(negative) + bool(positive)), share(tensor.zeros / total), ""
        )
    return table


def _names(marks: Sequence[Mark], low: float) -> str:
    """The calibrators whose amax lies in [low, 2 low)."""
    names = [
        mark.method.replace("percentile:", "p") for mark in marks if low <= mark.amax < 2 * low
    ]
    return f"< {' '.join(names)}" if names else ""


def _calibrators(marks: Sequence[Mark]) -> Table:
    table = Table(box=None, header_style="underline", padding=(0, 2, 0, 0))
    table.add_column("calibrator", no_wrap=True)
    for column in ("amax", "INT8 step", "clipped", "rounded to 0"):
        table.add_column(column, justify="right", no_wrap=True)
    for mark in marks:
        table.add_row(
            mark.method,
            number(mark.amax, 4),
            number(mark.scale, 3),
            share(mark.clipped_fraction),
            share(mark.zeroed_fraction),
        )
    return table
