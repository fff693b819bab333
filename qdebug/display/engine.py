"""What a person sees of an engine: what was built, whether it is what was planned, and where its
error comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from qdebug.backends.engine import ProviderNodes
from qdebug.display.blocks import (
    Block,
    Cells,
    Column,
    Line,
    Parts,
    facts,
    flat,
    number_column,
    table_of,
)
from qdebug.engine_info.audit import Audit, AuditedLayer, AuditVerdict
from qdebug.results.attribution import KERNEL, REFERENCE_MISMATCH
from qdebug.results.engine import EngineExecution, EngineReport
from qdebug.results.words import decibel, figure, first_names
from qdebug.wording import counted, option, printable

_MOST_WARNINGS = 3
_SLOWEST = 3
_QUIET = (AuditVerdict.SAME, AuditVerdict.GONE, AuditVerdict.FUSED)
_MOST_REASONS = 2
_MOST_GONE = 3
_MOST_OPERATORS = 4


def engine_blocks(engine: EngineReport, top: int) -> list[Block]:
    """What was built, whether it ran, and the first `top` layers that are not as planned."""
    several = len(engine.providers) > 1
    more = len(engine.warnings) - _MOST_WARNINGS
    told = f"{counted(more, 'more warning')} of the builder: {option('json')} lists them."
    return flat(
        Line(_title(engine), "title"),
        Line(
            f"It was not executed ({engine.not_executed_because}): every error above is that of "
            "the simulation on ONNX Runtime, the structure below that of the engine."
        )
        if engine.not_executed_because
        else None,
        Line(f"Executed by {'; '.join(map(_share, engine.providers))}.", "note" if several else "")
        if several or (engine.providers and engine.audit is None)
        else None,
        _execution(engine.execution, top) if engine.execution is not None else None,
        audit_blocks(engine.audit, "the plan", top) if engine.audit is not None else None,
        (Line(f"Builder: {printable(w.text)}", "note") for w in engine.warnings[:_MOST_WARNINGS]),
        Line(told, "muted") if more > 0 else None,
    )


def audit_blocks(audit: Audit, plan: str, top: int | None) -> list[Block]:
    """How many layers were built as `plan` requests, and those that were not.

    Args:
        plan: what requested the precisions, for people.
        top: at most so many layers; None lists them all, those as planned too.
    """
    counts = Counter(row.verdict.value for row in audit.layers)
    told = ", ".join(f"{n} {v}" for v, n in counts.most_common())
    gone = [row.name for row in audit.layers if row.verdict is AuditVerdict.GONE]
    rows = [row for row in audit.layers if top is None or row.verdict not in _QUIET]
    why: Cells[AuditedLayer] = Column("why", drop=1), _why
    table = table_of(
        rows[:top],
        [
            (Column("layer", "name"), lambda r: r.name),
            (Column("op", "op"), lambda r: r.op_type),
            (Column("requested"), lambda r: r.requested),
            (Column("built"), lambda r: r.built or None),
            (Column("verdict"), lambda r: r.verdict),
            why if any(map(_why, rows)) else None,
        ],
        lambda r: "worst" if r.verdict is AuditVerdict.MISMATCH else "",
    )
    more = len(rows) - len(rows[:top])
    return flat(
        Line(f"Requested vs. built precision ({printable(plan)}): {told}", "title"),
        Line(f"gone: {first_names(gone, _MOST_GONE)}", "muted", 2)
        if gone and top is not None  # else they are in the table
        else None,
        table if rows else None,
        Line(f"{more} more: {option('top', str(len(rows)))} shows them.", "muted")
        if more
        else None,
        (
            (
                Line(printable(row.name), indent=2),
                Line(f"Built in {row.built}: {printable(row.note)}.", indent=4),
                Line(printable(row.advice), "fine", 4) if row.advice else None,
            )
            for row in [r for r in audit.mismatched if r.note][:_MOST_REASONS]
        ),
    )


def doubt(audit: Audit | None) -> str:
    """What a verdict leaves open: layers of which the engine's file does not tell; "" if none."""
    unknown = len(audit.unknown) if audit else 0
    return f", {counted(unknown, 'layer')} of unknown precision" if unknown else ""


def _why(row: AuditedLayer) -> str:
    """The note of a row; that of a mismatch stands below the table."""
    return "" if row.verdict is AuditVerdict.MISMATCH else row.note


def _title(engine: EngineReport) -> str:
    told = (
        f"{engine.layers} layers" if engine.layers else "",
        f"{figure(engine.size_bytes, 'megabytes')} MB" if engine.size_bytes else "",
        f"built {'earlier ' * engine.cached}in {figure(engine.build_s, 'tenths')} s",
    )
    return f"Engine of {engine.library} for {engine.built_for}: {', '.join(filter(None, told))}"


def _share(part: ProviderNodes) -> str:
    most = sorted(part.operators.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{n} {printable(op)}" for op, n in most[:_MOST_OPERATORS])
    more = ", …" if len(most) > _MOST_OPERATORS else ""
    return f"{printable(part.provider)}: {counted(part.nodes, 'node')} ({named}{more})"


def _execution(done: EngineExecution, top: int) -> Parts:
    """Where the engine's error comes from, and whether looking inside changed it."""
    mostly = {t.tensor: t.label for t in done.outputs}

    def mismatch(name: str) -> Line:
        wrong = f"'{printable(name)}' is wrong in the FP32 engine already"
        if mostly.get(name, REFERENCE_MISMATCH) == REFERENCE_MISMATCH:
            return Line(f"{wrong}: quantization is not the cause.", "worst")
        return Line(f"{wrong}, by less than half of the error.", "note")

    reservation = _reservation(done)
    inner = sorted(
        (t for t in done.tensors if t.tensor not in mostly), key=lambda t: -t.kernel_share
    )
    return (
        facts(_facts(done)),
        map(mismatch, done.preflight.reference_mismatch),
        Line("Where the engine's error comes from (SQNR in dB)", "title"),
        Line(reservation, "note") if reservation else None,
        table_of(
            [*done.outputs, *inner[:top]],
            [
                (Column("tensor", "name"), lambda t: t.tensor),
                number_column("quantization", lambda t: t.quantization_db, "dB"),
                number_column("kernels", lambda t: t.kernel_db, "dB"),
                number_column("together", lambda t: t.total_db, "dB"),
                (Column("mostly"), lambda t: t.label or None),
            ],
            lambda t: "worst" if t.label in (KERNEL, REFERENCE_MISMATCH) else "",
        ),
    )


def _facts(done: EngineExecution) -> Iterator[tuple[str, str | None]]:
    def ms(value: float) -> str:
        return figure(value, "thousandths")

    yield "latency", f"{ms(done.latency_ms)} ms for {counted(done.latency_samples, 'sample')}"
    slowest = sorted(done.kernels, key=lambda k: -k.ms)[:_SLOWEST]
    named = ", ".join(f"{printable(k.name)} {ms(k.ms)}" for k in slowest)
    total = ms(sum(k.ms for k in done.kernels))
    yield "slowest layers", named and f"{named} ms, of {total} ms measured one by one"
    for name, db in done.preflight.fp32_db.items():
        again = _apart(done.preflight.repeat_db.get(name, math.inf))
        text = f"FP32 engine against FP32 on the CPU: {_apart(db)}; built twice: {again}"
        yield f"preflight {printable(name)}", text
    for check in done.checks:
        apart = _apart(min((x.difference_db for x in check.outputs), default=math.inf))
        told = f"{check.observed} tensors; outputs against the clean engine's: {apart}"
        yield f"observed as {check.way}", check.hides or told
    skipped = f"{counted(done.skipped, 'tensor')} ({option('json')} says why)"
    yield "not observed", skipped if done.skipped else None
    agreement = done.agreement
    if agreement.within is not None:
        rank = "" if agreement.spearman is None else f", rank correlation {agreement.spearman:.3f}"
        near = round(agreement.within * agreement.tensors)
        text = f"{near} of {counted(agreement.tensors, 'tensor')} within 1 dB{rank}"
        yield "simulation against engine", text


def _reservation(done: EngineExecution) -> str:
    """What the reader must know of how tensors were observed; "" where all is as requested."""
    *others, used = done.checks
    ways = " and ".join(check.way for check in others)
    if not used.observed:
        return "Nothing inside the engine could be observed, in any way that was tried."
    if used.hides:
        return (
            f"No way of observing leaves the engine as it is. The tensors, observed as {used.way}, "
            "need not explain the error of the undisturbed engine, whose outputs come first."
        )
    changed = f"observing it as {ways} would have changed the engine"
    return f"Observed as {used.way}: {changed}." if others else ""


def _apart(db: float) -> str:
    return "equal" if db == math.inf else f"{decibel(db)} dB"
