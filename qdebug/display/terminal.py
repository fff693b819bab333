"""Render a view for a terminal, as wide as that is; elsewhere as plain text without a cut."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.measure import measure_renderables
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from qdebug.display.blocks import Block, Checks, Column, Facts, Line, Table
from qdebug.display.names import shorten_names
from qdebug.results.words import widest
from qdebug.wording import option, printable

_STYLES = {
    "": "",
    "title": "bold",
    "strong": "bold",
    "good": "bold green",
    "fine": "green",
    "bad": "bold red",
    "worst": "red",
    "note": "yellow",
    "muted": "dim",
}
_LONGEST = {"op": 12, "value": 24}
"""Where there is little room, cells of these kinds of columns are cut to so many characters."""
_SHORTEST_NAME = 18
_SHORTEST_REST = 24
_LONGEST_FACT = 31


def print_view(console: Console, view: Iterable[Block]) -> None:
    """Print the blocks of a view."""
    for block in view:
        match block:
            case Line():
                _print_line(console, block)
            case Facts():
                _print_facts(console, block)
            case Checks():
                for passed, text in block.rows:
                    mark, style = ("holds", "green") if passed else ("FAILS", "bold red")
                    console.print(Text.assemble((f"  {mark}  ", style), printable(text)))
            case Table():
                _print_table(console, block)


def print_written(console: Console, *paths: str | None) -> None:
    """Say which files were written; None stands for one that was not asked for."""
    for path in paths:
        if path:
            console.print(Text(f"Wrote {printable(path)}"), soft_wrap=True)


def _print_line(console: Console, line: Line) -> None:
    style = _STYLES[line.style]
    if console.is_terminal:
        text = Text(printable(line.text), style=style)
        console.print(Padding(text, (0, 0, 0, line.indent), expand=False) if line.text else "")
    else:
        console.print(Text(" " * line.indent + printable(line.text)), soft_wrap=True)


def _print_facts(console: Console, facts: Facts) -> None:
    table = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    names = [name for name, _ in facts.rows]
    if console.is_terminal:
        names = _fact_names(names)
    for name, (_, text) in zip(names, facts.rows, strict=True):
        table.add_row(Text(printable(name)), Text(printable(text)))
    _print_rich(console, table)


def _fact_names(names: Sequence[str]) -> list[str]:
    """Names that are too long, shortened behind their first word, such as "output"."""
    starts = [f"{n.partition(' ')[0]} " if " " in n else "" for n in names]
    rests = [n[len(start) :] for n, start in zip(names, starts, strict=True)]
    short = shorten_names(rests, _LONGEST_FACT - 7)
    return [
        name if cell_len(name) <= _LONGEST_FACT else start + rest
        for name, start, rest in zip(names, starts, short, strict=True)
    ]


def _print_table(console: Console, table: Table) -> None:
    columns = [(column, [row[k] for row in table.rows]) for k, column in enumerate(table.columns)]
    hidden: list[str] = []
    if console.is_terminal:
        columns, hidden = _fitted(columns, console.width)
    rich = RichTable(box=None, header_style="underline", padding=(0, 1, 0, 0), pad_edge=False)
    for column, _ in columns:
        rich.add_column(
            Text(column.head),
            justify="right" if column.kind == "number" else "left",
            no_wrap=column.kind != "rest",
            overflow="fold" if column.kind == "rest" else "ellipsis",
        )
    for k, row in enumerate(zip(*(cells for _, cells in columns), strict=True)):
        rich.add_row(*(Text(printable(c)) for c in row), style=_STYLES[table.style(k)])
    _print_rich(console, rich)
    if hidden:
        text = f"No room for {', '.join(hidden)}: a wider terminal or {option('json')} shows them."
        console.print(Text(text, style="dim"))


def _fitted(
    columns: list[tuple[Column, list[str]]], width: int
) -> tuple[list[tuple[Column, list[str]]], list[str]]:
    """The columns that `width` has room for, their cells cut to it, and the heads of the others."""
    columns = [(column, _cut(column, cells)) for column, cells in columns]
    hidden: list[str] = []
    while width + 1 < sum(  # nothing stands behind the last; names may be cut
        min(_width(c, cells), _SHORTEST_NAME + 1) if c.kind == "name" else _width(c, cells)
        for c, cells in columns
    ):
        last = max((column for column, _ in columns), key=lambda column: column.drop)
        if not last.drop:
            break
        columns = [entry for entry in columns if entry[0] is not last]
        hidden.insert(0, last.head)
    room = width + 1 - sum(_width(*entry) for entry in columns if entry[0].kind != "name")
    names = sum(column.kind == "name" for column, _ in columns)
    endings = next((cells for column, cells in columns if column.kind == "op"), ())
    return [
        (column, shorten_names(cells, max(_SHORTEST_NAME, room // names - 1), endings))
        if column.kind == "name"
        else (column, cells)
        for column, cells in columns
    ], hidden


def _cut(column: Column, cells: list[str]) -> list[str]:
    longest = _LONGEST.get(column.kind)
    if longest is None:
        return cells
    if column.kind == "value":
        return shorten_names(cells, longest)
    return [
        c if cell_len(c) <= longest else set_cell_size(c, longest - 1).rstrip() + "…" for c in cells
    ]


def _width(column: Column, cells: Sequence[str]) -> int:
    if column.kind == "rest":
        return _SHORTEST_REST
    return 1 + widest(cells, cell_len(column.head))


def _print_rich(console: Console, table: RichTable) -> None:
    """Off a terminal without trailing spaces, and as wide as its content."""
    if console.is_terminal:
        console.print(table)
        return
    unbounded = console.options.update(max_width=1_000_000)
    wide = max(console.width, measure_renderables(console, unbounded, [table]).maximum)
    page = Console(file=io.StringIO(), width=wide, color_system=None)
    with page.capture() as captured:
        page.print(table)
    text = "\n".join(line.rstrip() for line in captured.get().splitlines())
    if not console.encoding.lower().startswith("utf"):
        text = text.replace("█", "#")
    console.print(Text(text), soft_wrap=True)
