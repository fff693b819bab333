"""Render views for a terminal, or as plain text where the output is not one."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from qdebug.report.view import CompareView, shorten, widest

_OTHER_COLUMNS = 54
"""Characters that the table needs beside the names of layers."""


def print_compare(console: Console, view: CompareView, run_file: Path | None) -> None:
    """Print a comparison: facts, the worst layers, notes, the verdict last."""
    console.print(Text(view.title, style="bold"))
    console.print(_facts(view))
    console.print()
    console.print(_layers(view, console))
    for note in view.notes:
        console.print(Padding(Text(f"Note: {note}", style="yellow"), (0, 0, 0, 0)))
    for passed, text in view.conditions:
        mark, style = ("holds", "green") if passed else ("FAILS", "bold red")
        console.print(Text.assemble((f"  {mark}  ", style), text))
    style = {True: "bold green", False: "bold red", None: ""}[view.passed]
    console.print(Text(view.verdict, style=style))
    if run_file is not None:
        console.print(Text(f"Run file: {run_file}"), soft_wrap=True)


def _facts(view: CompareView) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in view.facts:
        table.add_row(Text(shorten(name, 24)), Text(text))
    return table


def _layers(view: CompareView, console: Console) -> Table:
    title = "Worst layers by local error"
    if view.hidden:
        title += f" ({view.hidden} more in --json)"
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        title=title,
        title_justify="left",
        title_style="bold",
        padding=(0, 1),
        pad_edge=False,
    )
    room = max(20, console.width - _OTHER_COLUMNS) if console.is_terminal else 1000
    width = min(room, widest([r.layer for r in view.layers], 5))
    table.add_column("#", justify="right")
    table.add_column("layer", width=width, no_wrap=True)
    table.add_column("op", max_width=8, no_wrap=True)
    table.add_column("prec.", no_wrap=True)
    table.add_column("local dB", justify="right")
    table.add_column("cum. dB", justify="right")
    table.add_column("range", justify="right")
    table.add_column("clip", justify="right")
    for row in view.layers:
        table.add_row(
            row.rank,
            Text(shorten(row.layer, width)),
            row.op_type,
            row.precision,
            row.local_db,
            row.cumulative_db,
            row.amax,
            row.clipped,
            style="red" if row.worst else "",
        )
    return table
