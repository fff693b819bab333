"""The table of a sweep as CSV."""

from __future__ import annotations

import csv
import io

from qdebug.measure.sweep import SweepResult


def sweep_to_csv(result: SweepResult) -> str:
    """One line per combination, all figures of engines in columns; empty where there is none."""
    text = io.StringIO()
    rows = result.rows()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
