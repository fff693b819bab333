"""What a report consists of: lines, facts, tables and checks, as data.

The view of each command is a sequence of these blocks, in the order in which they are read; the
terminal and HTML render any such sequence. Texts are as a person should read them, with names in
full: a renderer that has no room for a name shortens it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from qdebug.result import FailedStage, Result
from qdebug.results.conditions import Checked
from qdebug.results.words import figure, number
from qdebug.wording import printable

T = TypeVar("T")
Style = Literal["", "title", "strong", "good", "fine", "bad", "worst", "note", "muted"]
Kind = Literal["text", "number", "name", "op", "value", "rest"]


@dataclass(frozen=True)
class Line:
    """A line of text; what does not fit continues below, `indent` spaces in."""

    text: str = ""
    style: Style = ""
    indent: int = 0


@dataclass(frozen=True)
class Facts:
    """Facts, each under a name."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        kind: "name" takes the room that is left, and its cells stay distinguishable; "op" and
            "value" are cut where there is little room; "number" is set to the right; "rest", the
            last column, goes on in further lines.
        drop: columns with the highest are left out first where there is no room; 0 never.
    """

    head: str
    kind: Kind = "text"
    drop: int = 0


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; `styles` has one for each row, or none."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    styles: tuple[Style, ...] = ()

    def style(self, row: int) -> Style:
        """That of a row, by its index."""
        return self.styles[row] if self.styles else ""


@dataclass(frozen=True)
class Checks:
    """A condition, and whether it holds."""

    rows: tuple[tuple[bool, str], ...]


Block = Line | Facts | Table | Checks
View = Sequence[Block]


Cells = tuple[Column, Callable[[T], object]]
"""A column, and what stands in it for an item; None is shown as "–"."""
Parts = Block | Iterable["Parts"] | None


def flat(*parts: Parts) -> list[Block]:
    """The blocks of a view, whose parts may be blocks, several of them, or None where there is
    nothing to say."""
    found: list[Block] = []
    for part in parts:
        if isinstance(part, Block):
            found.append(part)
        elif part is not None:
            found += flat(*part)
    return found


def facts(rows: Iterable[tuple[str, str | None]]) -> Facts:
    """Facts, without those that have no text."""
    return Facts(tuple((name, text) for name, text in rows if text))


def table_of(
    items: Iterable[T],
    columns: Iterable[Cells[T] | None],
    style: Callable[[T], Style] = lambda _: "",
) -> Table:
    """A table with a row for each item; each column that is not None says how its cells are
    made."""
    listed, used = list(items), [column for column in columns if column is not None]
    return Table(
        tuple(column for column, _ in used),
        tuple(
            tuple("–" if (told := cell(item)) is None else printable(str(told)) for _, cell in used)
            for item in listed
        ),
        tuple(style(item) for item in listed),
    )


def number_column(
    head: str, cell: Callable[[T], float | None], unit: str = "", digits: int = 4, drop: int = 0
) -> Cells[T]:
    """A column of figures of one unit; see `words.figure`."""
    return Column(head, "number", drop), lambda item: figure(cell(item), unit, digits)


def conditions(checked: Iterable[Checked], unknown: str = "no value") -> Checks:
    """The conditions of a gate, each with the worst value found; `unknown` stands for none."""
    return Checks(tuple((c.passed, f"{c.expression}: {found_by(c, unknown)}") for c in checked))


def found_by(checked: Checked, unknown: str = "no value") -> str:
    """The worst value, and where it is; `unknown` stands for none."""
    if checked.value is not None:
        return number(checked.value) + (f", {printable(checked.at)}" if checked.at else "")
    return f"{unknown} ({printable(checked.reason)})" if checked.reason else unknown


def failures(stages: Iterable[FailedStage]) -> list[Block]:
    """What is missing, because a stage ended in an error."""
    return [Line(f"Incomplete: {x.stage}: {x.message} [{x.code}]", "bad") for x in stages]


TERMS = Line("Terms: docs/reference/glossary.md", "muted")
"""Where the words that the screens use are explained; the last line of what a command measured."""


def read_data(result: Result) -> list[Block]:
    """How samples became inputs, where they are no arrays: the first that is said of a result."""
    lines: list[Block] = []
    before = ""
    for each in result.data:
        what, _, how = each.told.partition("; ")
        told = f"{what}; likewise" if how == before else each.told
        text = printable(f"{each.setting.replace('_', '-')} {each.path}: {told}")
        lines.append(Line(text, "note" if each.guess else ""))
        before = how
    return [*lines, Line()] if lines else []


def notes(texts: Iterable[str]) -> list[Block]:
    """What the reader must know."""
    return [Line(f"Note: {printable(text)}", "note") for text in texts]
