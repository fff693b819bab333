"""Render views for a terminal, or as plain text where the output is not one."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.report.engine import print_engine
from qdebug.report.names import shorten_names
from qdebug.report.tables import print_indented, print_table
from qdebug.report.view import FIGURES, CompareView, widest

_SHORTEST_NAME = 20
_LONGEST_OP = 12
_LONGEST_FACT = 24
_OUTPUT = "output "
MOST_MISMATCHES = 10
"""Layers of an engine to list that were not built as planned."""


def print_compare(console: Console, view: CompareView, run_file: Path | None) -> None:
    """Print a comparison: facts, the worst layers, notes, the verdict last."""
    console.print(Text(view.title, style="bold"))
    print_table(console, _facts(view, console))
    console.print()
    console.print(Text(_layers_title(view), style="bold"), soft_wrap=True)
    print_table(console, _layers(view, console))
    _print_reasons(console, view)
    if view.engine is not None:
        print_engine(console, view.engine, MOST_MISMATCHES)
    for note in view.notes:
        console.print(Text(f"Note: {note}", style="yellow"))
    for passed, text in view.conditions:
        mark, style = ("holds", "green") if passed else ("FAILS", "bold red")
        console.print(Text.assemble((f"  {mark}  ", style), text))
    style = {True: "bold green", False: "bold red", None: ""}[view.passed]
    console.print(Text(view.verdict, style=style))
    if run_file is not None:
        console.print(Text(f"Run file: {run_file}"), soft_wrap=True)
    else:
        console.print(Text("No run file was written (-o run.h5 keeps the evidence).", style="dim"))


def _print_reasons(console: Console, view: CompareView) -> None:
    console.print()
    if not view.reasons:
        return
    console.print(Text("Why", style="bold"))
    for layer, why, remedy in view.reasons:
        console.print(Text(f"  {layer}"), soft_wrap=True)
        for text, style in ((why, ""), (remedy, "green")):
            if text:
                print_indented(console, text, 4, style)
    console.print()


def _facts(view: CompareView, console: Console) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    names = [name for name, _ in view.facts]
    if console.is_terminal:
        ends = shorten_names([name.removeprefix(_OUTPUT) for name in names], _LONGEST_FACT)
        names = [
            f"{_OUTPUT}{end}" if name.startswith(_OUTPUT) else end
            for name, end in zip(names, ends, strict=True)
        ]
    for name, (_, text) in zip(names, view.facts, strict=True):
        table.add_row(Text(name), Text(text))
    return table


def _layers_title(view: CompareView) -> str:
    executed = view.engine is not None and not view.engine.not_executed_because
    title = f"Worst layers by local error{' in the simulation' if executed else ''}"
    if view.local_samples:
        title += f", on {view.local_samples} samples"
    if view.hidden:
        title += f" ({view.hidden} more in --json)"
    return title


def _layers(view: CompareView, console: Console) -> Table:
    table = Table(
        box=None,
        header_style="underline",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    op_width = widest([r.op_type for r in view.layers], 2)
    width = widest([r.layer for r in view.layers], 5)
    numbers = {
        metric.column: [row.figures[k] for row in view.layers] for k, metric in enumerate(FIGURES)
    }
    if console.is_terminal:  # elsewhere nothing is cut
        op_width = min(_LONGEST_OP, op_width)
        taken = 1 + sum(1 + widest(cells, len(head)) for head, cells in numbers.items())
        taken += len("10 prec. ") + op_width
        width = min(max(_SHORTEST_NAME, console.width - taken), width)
    table.add_column("#", justify="right", min_width=2)
    table.add_column("layer", width=width, no_wrap=True)
    table.add_column("op", width=op_width, no_wrap=True)
    table.add_column("prec.", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    rows = view.layers
    names = shorten_names([r.layer for r in rows], width, [r.op_type for r in rows])
    for name, row in zip(names, rows, strict=True):
        table.add_row(
            row.rank,
            Text(name),
            Text(row.op_type),
            row.precision,
            *row.figures,
            style="red" if row.worst else "",
        )
    return table
