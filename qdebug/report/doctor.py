"""Show what `doctor` found."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.report.tables import print_table
from qdebug.run.doctor import DoctorResult
from qdebug.run.registry import specs

_STYLES = {"ok": "green", "missing": "bold red", "absent": "yellow"}


def print_doctor(console: Console, result: DoctorResult) -> None:
    """A line for each finding; what is absent says how to get it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in result.findings:
        detail = finding.detail + (f": {finding.next_step}" if finding.next_step else "")
        table.add_row(Text(finding.state, style=_STYLES[finding.state]), finding.what, Text(detail))
    print_table(console, table)
    missing = [f.what for f in result.findings if f.state == "missing"]
    if missing:
        console.print(Text(f"qdebug cannot work without {', '.join(missing)}.", style="bold red"))
    else:
        builders = {f"backend {spec.name}" for spec in specs() if spec.builds}
        builds = any(f.what in builders and f.state == "ok" for f in result.findings)
        but = "" if builds else " but sweep, which builds engines,"
        console.print(f"Ready: every command{but} runs here, simulated on ONNX Runtime.")
