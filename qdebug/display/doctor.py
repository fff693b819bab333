"""What a person sees of what this machine can run."""

from __future__ import annotations

from qdebug.backends.doctor import DoctorResult
from qdebug.backends.registry import specs
from qdebug.display.blocks import Block, Column, Line, Style, table_of

_STYLES: dict[str, Style] = {"ok": "", "missing": "bad", "absent": "note"}


def view(result: DoctorResult) -> list[Block]:
    """A line for each finding, where what is absent says how to get it; and what they mean."""
    table = table_of(
        result.findings,
        [
            (Column("state"), lambda f: f.state),
            (Column("what"), lambda f: f.what),
            (Column("", "rest"), lambda f: f.detail + (f": {f.next_step}" if f.next_step else "")),
        ],
        lambda f: _STYLES[f.state],
    )
    missing = [f.what for f in result.findings if f.state == "missing"]
    if missing:
        return [table, Line(f"qdebug cannot work without {', '.join(missing)}.", "bad")]
    builders = {f"backend {spec.name}" for spec in specs() if spec.builds}
    builds = any(f.what in builders and f.state == "ok" for f in result.findings)
    but = "" if builds else " but sweep, which builds engines,"
    return [table, Line(f"Ready: every command{but} runs here, simulated on ONNX Runtime.")]
