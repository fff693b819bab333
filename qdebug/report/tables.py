"""Tables, as wide as a terminal, or without a cut where the output is none."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.measure import measure_renderables
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from qdebug.report.names import shorten_names
from qdebug.report.view import printable, widest

_SHORTEST_NAME = 20
_NUMBERS = ("#", "ms", "MB", "s", "dB")


def print_table(console: Console, table: Table) -> None:
    """Print a table; off a terminal without the spaces that fill its lines up."""
    if console.is_terminal:
        console.print(table)
        return
    # As wide as the table wants to be: nothing is folded or cut.
    unbounded = console.options.update(max_width=1_000_000)
    wide = max(console.width, measure_renderables(console, unbounded, [table]).maximum)
    page = Console(file=io.StringIO(), width=wide, color_system=None)
    with page.capture() as captured:
        page.print(table)
    lines = (line.rstrip() for line in captured.get().splitlines())
    console.print(Text("\n".join(lines)), soft_wrap=True)


def print_indented(console: Console, line: str, indent: int, style: str = "") -> None:
    """Print one line, `indent` spaces in; what a terminal has no room for goes on below it."""
    if console.is_terminal:
        console.print(Padding(Text(line, style=style), (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent + line), soft_wrap=True)


def print_written(console: Console, *paths: str | None) -> None:
    """Say which files were written; None stands for one that was not asked for."""
    for path in paths:
        if path:
            console.print(Text(f"Wrote {path}"), soft_wrap=True)


def name_table(
    console: Console,
    heads: Sequence[str],
    rows: Sequence[tuple[str, Sequence[str], str]],
    numbers: Sequence[str] = _NUMBERS,
) -> Table:
    """A table whose first column holds names, cut to what the others leave of a terminal's width;
    elsewhere nothing is cut. A row is its name, the other cells, and a style; the columns whose
    heads are in `numbers` are set to the right."""
    names = [printable(name) for name, _, _ in rows]
    width = widest(names, len(heads[0]))
    if console.is_terminal:
        columns = zip(heads[1:], zip(*(cells for _, cells, _ in rows), strict=True), strict=True)
        taken = sum(1 + widest(cells, len(head)) for head, cells in columns)
        width = min(max(_SHORTEST_NAME, console.width - taken), width)
    table = Table(box=None, header_style="underline", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(heads[0], width=width, no_wrap=True)
    for head in heads[1:]:
        table.add_column(head, no_wrap=True, justify="right" if head in numbers else "left")
    for name, (_, cells, style) in zip(shorten_names(names, width), rows, strict=True):
        table.add_row(Text(name), *map(Text, cells), style=style)
    return table
