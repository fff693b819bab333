"""Show and serialise an audit: what was asked of an engine against what was built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.engine_info.audit import AuditRow, Verdict
from qdebug.engine_info.plan_audit import PlanAudit
from qdebug.report.tables import name_table, print_indented, print_table
from qdebug.report.view import printable, some

_QUIET = (Verdict.SAME, Verdict.GONE, Verdict.FUSED)
_MOST_REASONS = 2
_MOST_GONE = 3


def print_audit(console: Console, audit: PlanAudit, plan: str, top: int | None) -> None:
    """How many layers were built as `plan` asks, and those that were not.

    Args:
        plan: what asked, for people.
        top: at most so many layers; None lists them all, those as planned too.
    """
    found = audit.audit
    counts = Counter(row.verdict.value for row in found.rows)
    told = ", ".join(f"{n} {v}" for v, n in counts.most_common())
    title = f"Asked ({printable(plan)}) against built: {told}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    gone = [row.node for row in found.rows if row.verdict is Verdict.GONE]
    if gone and top is not None:  # else they are in the table
        print_indented(console, f"gone: {some(gone, _MOST_GONE)}", 2, "dim")
    rows = [row for row in found.rows if top is None or row.verdict not in _QUIET]
    if rows:
        print_table(console, _table(console, rows[:top]))
    if top is not None and len(rows) > top:
        console.print(Text(f"{len(rows) - top} more (-v or --json).", style="dim"))
    _print_reasons(console, found.mismatches)


def _print_reasons(console: Console, mismatches: Sequence[AuditRow]) -> None:
    """Why layers were built otherwise, and what to do."""
    for row in [r for r in mismatches if r.note][:_MOST_REASONS]:
        console.print(Text(f"  {printable(row.node)}"), soft_wrap=True)
        print_indented(console, f"Built in {row.built}: {printable(row.note)}.", 4, "")
        if row.advice:
            print_indented(console, printable(row.advice), 4, "green")


def _table(console: Console, rows: Sequence[AuditRow]) -> Table:
    heads = ["layer", "op", "asked", "built", "verdict"]
    noted = any(_why(r) for r in rows) and not console.is_terminal
    return name_table(
        console,
        [*heads, "why"] if noted else heads,
        [
            (
                r.node,
                [r.op_type, r.asked, r.built or "–", r.verdict, *([_why(r)] if noted else [])],
                "red" if r.verdict is Verdict.MISMATCH else "",
            )
            for r in rows
        ],
    )


def _why(row: AuditRow) -> str:
    """The note of a row, but of a mismatch, whose reason stands below the table."""
    return "" if row.verdict is Verdict.MISMATCH else row.note


def audit_to_json(audit: PlanAudit) -> dict[str, Any]:
    """The audit as JSON types: every layer, with where each of its nodes went."""
    found = audit.audit
    return {
        "passed": found.passed,
        "mismatches": [row.node for row in found.mismatches],
        "unknown": [row.node for row in found.unknown],
        "layers": [_row(row, audit) for row in found.rows],
    }


def _row(row: AuditRow, audit: PlanAudit) -> dict[str, Any]:
    return {
        "name": row.node,
        "op_type": row.op_type,
        "asked": str(row.asked),
        "built": row.built or None,
        "verdict": str(row.verdict),
        "note": row.note or None,
        "advice": row.advice or None,
        "engine_layer": row.engine_layer or None,
        "nodes": [
            {"name": name, "engine_layers": list(to)} for name, to in audit.nodes[row.node].items()
        ],
    }
