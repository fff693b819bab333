"""A tensor's values as a text histogram: by sign and power of two, with calibrators' ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.measure.ranges import Mark, Octaves, TensorDynamics, octaves
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
    if not tensor.marks:
        console.print("  no finite values but 0: nothing to show")
        return
    bar = "█" if console.encoding.lower().startswith("utf") else "#"
    print_table(console, _histogram(octaves(tensor.histogram), tensor.marks, bar))
    print_table(console, _calibrators(tensor.marks))


def _facts(tensor: TensorDynamics) -> str:
    histogram = tensor.histogram
    text = (
        f"{histogram.count} values of {counted(len(tensor.sample_amax), 'sample')}, std "
        f"{number(tensor.std, 3)}, growth {number(tensor.growth, 3)}"
    )
    if histogram.nan_count or histogram.inf_count:
        text += f", {histogram.nan_count} NaN, {histogram.inf_count} Inf"
    return text


def _histogram(found: Octaves, marks: Sequence[Mark], bar: str) -> Table:
    negative, positive = sum(found.negative), sum(found.positive)
    total = negative + positive + found.zeros
    width = _NARROW if negative and positive else _WIDE
    most = max(*found.negative, *found.positive, sum(found.negative[_ROWS:]), found.zeros)

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

    rows = zip(found.exponents, found.negative, found.positive, strict=True)
    for exponent, below, above in list(rows)[:_ROWS]:
        label = number(2.0**exponent, 3)
        add(label, below, above, below + above, _names(marks, exponent))
    below, above = sum(found.negative[_ROWS:]), sum(found.positive[_ROWS:])
    if below + above:
        add("smaller", below, above, below + above, "")
    if found.zeros:
        table.add_row(
            "zero", *[""] * (bool(negative) + bool(positive)), share(found.zeros / total), ""
        )
    return table


def _names(marks: Sequence[Mark], exponent: int) -> str:
    """The calibrators whose amax lies in [2^exponent, 2^(exponent + 1))."""
    names = [
        mark.method.replace("percentile:", "p")
        for mark in marks
        if mark.amax > 0 and math.frexp(mark.amax)[1] - 1 == exponent
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
