"""Render a view as a fragment of HTML, for notebooks: self-contained, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import repeat

from qdebug.display.blocks import Block, Checks, Facts, Line, Table
from qdebug.wording import printable

_STYLES = {
    "": "",
    "title": "font-weight:bold",
    "strong": "font-weight:bold",
    "good": "font-weight:bold;color:#2a9d4b",
    "fine": "color:#2a9d4b",
    "bad": "font-weight:bold;color:#d9483b",
    "worst": "color:#d9483b",
    "note": "color:#b8860b",
    "muted": "opacity:.65",
}
_CELL = "padding:1px 10px 1px 0;vertical-align:top"


def to_html(view: Iterable[Block]) -> str:
    """The blocks of a view, one after the other. Text is escaped, colours suit any background."""
    return f'<div class="qdebug">{"".join(map(_block, view))}</div>'


def _block(block: Block) -> str:
    match block:
        case Line():
            style = f"{_STYLES[block.style]};margin-left:{block.indent / 2:g}em"
            return f'<div style="{style}">{escape(printable(block.text)) or "&nbsp;"}</div>'
        case Facts():
            return _table(_row(row) for row in block.rows)
        case Checks():
            return _table(
                _row(("holds", text), style=_STYLES["fine"])
                if passed
                else _row(("FAILS", text), style=_STYLES["bad"])
                for passed, text in block.rows
            )
        case Table():
            sides = ["right" if column.kind == "number" else "left" for column in block.columns]
            return _table(
                (
                    f"<tr>{_cells([column.head for column in block.columns], sides, 'th')}</tr>",
                    *(
                        _row(row, sides, _STYLES[block.style(k)])
                        for k, row in enumerate(block.rows)
                    ),
                )
            )


def _table(rows: Iterable[str]) -> str:
    return f'<table style="margin:4px 0">{"".join(rows)}</table>'


def _row(texts: Sequence[str], sides: Iterable[str] = repeat("left"), style: str = "") -> str:
    return f'<tr style="{style}">{_cells(texts, sides)}</tr>'


def _cells(texts: Sequence[str], sides: Iterable[str], tag: str = "td") -> str:
    return "".join(
        f'<{tag} style="{_CELL};text-align:{side}">{escape(printable(text))}</{tag}>'
        for text, side in zip(texts, sides, strict=False)
    )
