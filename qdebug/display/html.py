"""Render a view as a fragment of HTML, for notebooks: self-contained, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from qdebug.display.blocks import Block, Checks, Column, Facts, Line, Table

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
            return f'<div style="{style}">{_text(block.text) or "&nbsp;"}</div>'
        case Facts():
            return _table(_row(map(_left, row)) for row in block.rows)
        case Checks():
            return _table(
                _row((_left("holds" if passed else "FAILS"), _left(text)), _CHECKED[passed])
                for passed, text in block.rows
            )
        case Table():
            head = "".join(
                f'<th style="{_CELL};text-align:{_side(column)}">{_text(column.head)}</th>'
                for column in block.columns
            )
            rows = [
                _row(map(_cell, row, block.columns), _STYLES[block.style(k)])
                for k, row in enumerate(block.rows)
            ]
            return _table([f"<tr>{head}</tr>", *rows])


_CHECKED = {True: _STYLES["fine"], False: _STYLES["bad"]}


def _table(rows: Iterable[str]) -> str:
    return f'<table style="margin:4px 0">{"".join(rows)}</table>'


def _row(cells: Iterable[str], style: str = "") -> str:
    return f'<tr style="{style}">{"".join(cells)}</tr>'


def _cell(text: str, column: Column) -> str:
    return f'<td style="{_CELL};text-align:{_side(column)}">{_text(text)}</td>'


def _left(text: str) -> str:
    return f'<td style="{_CELL};text-align:left">{_text(text)}</td>'


def _side(column: Column) -> str:
    return "right" if column.kind == "number" else "left"


def _text(text: str) -> str:
    return escape(text)
