"""What `qdebug report` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qdebug.result import Result
from qdebug.wording import counted


@dataclass(frozen=True)
class ReportedRun:
    """A result that a page shows.

    Attributes:
        label: the name of its file. headline: the result in a sentence.
        tensors: how many the page has details of.
    """

    label: str
    headline: str
    tensors: int


@dataclass(frozen=True, repr=False)
class ReportResult(Result):
    """A page that was written.

    Attributes:
        file: the page. size_bytes: its size.
        runs: what it shows.
        notes: what it cannot show, and what to do to have it.
    """

    SCHEMA: ClassVar[str] = "qdebug.report/1"
    ROWS: ClassVar[str] = "runs"

    file: Path
    size_bytes: int
    runs: tuple[ReportedRun, ...]
    notes: tuple[str, ...]

    def headline(self) -> str:
        """The file, its size, and how many results it shows."""
        size = self.size_bytes / 1e6
        return f"{self.file}: {size:.1f} MB, {counted(self.runs, 'result')}"
