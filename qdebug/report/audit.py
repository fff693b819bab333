"""Show an audit: requested vs. built precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.engine_info.audit import Audit, AuditedLayer, AuditVerdict
from qdebug.report.tables import name_table, print_indented, print_table
from qdebug.report.view import printable, some

_QUIET = (AuditVerdict.SAME, AuditVerdict.GONE, AuditVerdict.FUSED)
_MOST_REASONS = 2
_MOST_GONE = 3


def print_audit(console: Console, audit: Audit, plan: str, top: int | None) -> None:
    """How many layers were built as `plan` asks, and those that were not.

    Args:
        plan: what asked, for people.
        top: at most so many layers; None lists them all, those as planned too.
    """
    counts = Counter(row.verdict.value for row in audit.layers)
    told = ", ".join(f"{n} {v}" for v, n in counts.most_common())
    title = f"Requested ({printable(plan)}) vs. built precision: {told}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    gone = [row.name for row in audit.layers if row.verdict is AuditVerdict.GONE]
    if gone and top is not None:  # else they are in the table
        print_indented(console, f"gone: {some(gone, _MOST_GONE)}", 2, "dim")
    rows = [row for row in audit.layers if top is None or row.verdict not in _QUIET]
    if rows:
        print_table(console, _table(console, rows[:top]))
    if top is not None and len(rows) > top:
        console.print(Text(f"{len(rows) - top} more (-v or --json).", style="dim"))
    _print_reasons(console, audit.mismatched)


def _print_reasons(console: Console, mismatches: Sequence[AuditedLayer]) -> None:
    """Why layers were built otherwise, and what to do."""
    for row in [r for r in mismatches if r.note][:_MOST_REASONS]:
        console.print(Text(f"  {printable(row.name)}"), soft_wrap=True)
        print_indented(console, f"Built in {row.built}: {printable(row.note)}.", 4, "")
        if row.advice:
            print_indented(console, printable(row.advice), 4, "green")


def _table(console: Console, rows: Sequence[AuditedLayer]) -> Table:
    heads = ["layer", "op", "requested", "built", "verdict"]
    noted = any(_why(r) for r in rows) and not console.is_terminal
    return name_table(
        console,
        [*heads, "why"] if noted else heads,
        [
            (
                r.name,
                [r.op_type, r.requested, r.built or "–", r.verdict, *([_why(r)] if noted else [])],
                "red" if r.verdict is AuditVerdict.MISMATCH else "",
            )
            for r in rows
        ],
    )


def _why(row: AuditedLayer) -> str:
    """The note of a row, but of a mismatch, whose reason stands below the table."""
    return "" if row.verdict is AuditVerdict.MISMATCH else row.note
