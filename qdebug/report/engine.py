"""Show and serialise what is known of the engine behind a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.measure.attribution import KERNEL, REFERENCE_MISMATCH, Attribution
from qdebug.measure.engine import EngineExecution, EngineReport
from qdebug.measure.observation import CaptureCheck
from qdebug.report.audit import print_audit
from qdebug.report.tables import name_table, print_table
from qdebug.report.view import counted, decibel, printable

_MOST_WARNINGS = 3
_SLOWEST = 3


def print_engine(console: Console, engine: EngineReport, top: int) -> None:
    """What was built, whether it ran, and whether it is what was planned."""
    console.print(Text(_title(engine), style="bold"), soft_wrap=not console.is_terminal)
    if engine.not_executed_because:
        console.print(
            Text(
                f"It was not executed ({engine.not_executed_because}): every error above is that "
                "of the simulation on ONNX Runtime, the structure below that of the engine."
            )
        )
    if engine.execution is not None:
        _print_execution(console, engine.execution, top)
    if engine.audit is not None:
        print_audit(console, engine.audit, "the plan", top)
    for warning in engine.warnings[:_MOST_WARNINGS]:
        console.print(Text(f"Builder: {printable(warning.text)}", style="yellow"))
    if len(engine.warnings) > _MOST_WARNINGS:
        more = len(engine.warnings) - _MOST_WARNINGS
        console.print(Text(f"{more} more warnings of the builder (--json).", style="dim"))


def _print_execution(console: Console, done: EngineExecution, top: int) -> None:
    """Where the engine's error comes from, and whether looking inside changed it."""
    agreement = done.agreement
    facts = [("latency", f"{done.latency_ms:.3f} ms for {counted(done.latency_samples, 'sample')}")]
    if slowest := sorted(done.kernels, key=lambda k: -k.ms)[:_SLOWEST]:
        named = ", ".join(f"{printable(k.name)} {k.ms:.3f}" for k in slowest)
        total = sum(k.ms for k in done.kernels)
        facts.append(("slowest layers", f"{named} ms, of {total:.3f} ms measured one by one"))
    for name, db in done.preflight.fp32_db.items():
        again = _apart(done.preflight.repeat_db.get(name, math.inf))
        text = f"FP32 engine against FP32 on the CPU: {_apart(db)}; built twice: {again}"
        facts.append((f"preflight {printable(name)}", text))
    for check in done.checks:
        facts.append((f"observed as {check.way}", check.hides or _undisturbed(check)))
    if done.skipped:
        facts.append(("not observed", f"{counted(len(done.skipped), 'tensor')} (--json says why)"))
    if agreement.within is not None:
        rank = "" if agreement.spearman is None else f", rank correlation {agreement.spearman:.3f}"
        near = round(agreement.within * agreement.tensors)
        text = f"{near} of {agreement.tensors} tensors within 1 dB{rank}"
        facts.append(("simulation against engine", text))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(Text(name), Text(text))
    print_table(console, table)
    for name in done.preflight.reference_mismatch:
        text = f"'{printable(name)}' is wrong in the engine of FP32 already: not by quantization."
        console.print(Text(text, style="red"), soft_wrap=True)
    console.print(Text("Where the engine's error comes from (SQNR in dB)", style="bold"))
    if reservation := _reservation(done):
        console.print(Text(reservation, style="yellow"))
    known = {t.tensor for t in done.outputs}
    inner = [t for t in done.tensors if t.tensor not in known]
    ranked = sorted(inner, key=lambda t: -t.kernel_share)
    print_table(console, _parts(console, [*done.outputs, *ranked[:top]]))


def _reservation(done: EngineExecution) -> str:
    """What the reader must know of how tensors were observed; "" where all is as asked."""
    used, others = done.checks[-1], done.checks[:-1]
    if not used.observed:
        return "Nothing inside the engine could be observed, in any way that was tried."
    if used.hides:
        return (
            f"No way of observing leaves the engine as it is. The tensors, observed as {used.way}, "
            "need not explain the error of the clean engine, whose outputs come first."
        )
    if not others:
        return ""
    return (
        f"Observed as {used.way}: as {' and '.join(c.way for c in others)} the engine could not be "
        "seen as it is."
    )


def _undisturbed(check: CaptureCheck) -> str:
    apart = min((x.difference_db for x in check.outputs), default=math.inf)
    return f"{check.observed} tensors; outputs against the clean engine's: {_apart(apart)}"


def _apart(db: float) -> str:
    return "equal" if db == math.inf else f"{decibel(db)} dB"


def _parts(console: Console, tensors: Sequence[Attribution]) -> Table:
    return name_table(
        console,
        ["tensor", "quantization", "kernels", "together", "mostly"],
        [
            (
                t.tensor,
                [
                    decibel(t.quantization_db),
                    decibel(t.kernel_db),
                    decibel(t.total_db),
                    t.label or "–",
                ],
                "red" if t.label in (KERNEL, REFERENCE_MISMATCH) else "",
            )
            for t in tensors
        ],
    )


def _title(engine: EngineReport) -> str:
    how = "built earlier in" if engine.cached else "built in"
    facts = [f"{engine.layers} layers"] if engine.layers else []
    facts += [f"{engine.size_bytes / 1e6:.1f} MB"] if engine.size_bytes else []
    facts += [f"{how} {engine.build_s:.1f} s"]
    return f"Engine of {engine.library} for {engine.built_for}: {', '.join(facts)}"
