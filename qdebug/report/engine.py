"""Show and serialise what is known of the engine behind a comparison."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from qdebug.measure.engine import EngineReport
from qdebug.report.audit import audit_to_json, print_audit
from qdebug.report.view import printable

_MOST_WARNINGS = 3


def print_engine(console: Console, engine: EngineReport, top: int) -> None:
    """What was built, whether it ran, and whether it is what was planned."""
    console.print(Text(_title(engine), style="bold"), soft_wrap=True)
    if engine.not_run:
        console.print(
            Text(
                f"It was not executed ({engine.not_run}): every error above is that of the "
                "simulation on ONNX Runtime, the structure below that of the engine."
            )
        )
    print_audit(console, engine.audit, "the plan", top)
    for warning in engine.warnings[:_MOST_WARNINGS]:
        console.print(Text(f"Builder: {printable(warning.text)}", style="yellow"))
    if len(engine.warnings) > _MOST_WARNINGS:
        more = len(engine.warnings) - _MOST_WARNINGS
        console.print(Text(f"{more} more warnings of the builder (--json).", style="dim"))


def engine_to_json(engine: EngineReport) -> dict[str, Any]:
    """The engine as JSON types."""
    return {
        "library": engine.library,
        "built_for": engine.built_for,
        "executed": not engine.not_run,
        "not_executed_because": engine.not_run or None,
        "build_s": engine.seconds,
        "cached": engine.cached,
        "size_bytes": engine.size_bytes,
        "layers": engine.layers,
        "warnings": [
            {"text": w.text, "nodes": list(w.nodes), "count": w.count} for w in engine.warnings
        ],
        "audit": audit_to_json(engine.audit),
    }


def _title(engine: EngineReport) -> str:
    how = "built earlier in" if engine.cached else "built in"
    return (
        f"Engine of {engine.library} for {engine.built_for}: {engine.layers} layers, "
        f"{engine.size_bytes / 1e6:.1f} MB, {how} {engine.seconds:.1f} s"
    )
