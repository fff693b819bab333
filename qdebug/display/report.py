"""What a person sees of a page that was written."""

from __future__ import annotations

from qdebug.display.blocks import Block, Line, notes
from qdebug.results.report import ReportResult
from qdebug.wording import printable


def view(result: ReportResult) -> list[Block]:
    """The runs that the page shows, and what it cannot show."""
    lines = [Line(f"{printable(run.label)}: {printable(run.headline)}") for run in result.runs]
    return [*lines, *notes(result.notes)]
