"""What a notebook shows of an export."""

from __future__ import annotations

from qdebug.display.blocks import Block, Line, notes
from qdebug.plan.export import ExportResult
from qdebug.wording import printable


def view(result: ExportResult) -> list[Block]:
    """The files that were written, and what their user must know."""
    files = [Line(f"Wrote {printable(str(file))}") for file in result.files]
    return [*files, *notes(result.notes)]
