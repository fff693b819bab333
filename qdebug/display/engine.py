"""What a person sees of an engine: what was built, whether it is what was planned, and where its
error comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from qdebug.backends.engine import ProviderNodes
from qdebug.display.blocks import Block, Column, Facts, Line, table_of
from qdebug.engine_info.audit import Audit, AuditedLayer, AuditVerdict
from qdebug.results.attribution import KERNEL, REFERENCE_MISMATCH
from qdebug.results.engine import EngineExecution, EngineReport
from qdebug.results.observation import CaptureCheck
from qdebug.results.words import decibel, first_names
from qdebug.wording import counted, option, printable

_MOST_WARNINGS = 3
_SLOWEST = 3
_QUIET = (AuditVerdict.SAME, AuditVerdict.GONE, AuditVerdict.FUSED)
_MOST_REASONS = 2
_MOST_GONE = 3
_MOST_OPERATORS = 4


def engine_blocks(engine: EngineReport, top: int) -> Iterator[Block]:
    """What was built, whether it ran, and the first `top` layers that are not as planned."""
    yield Line(_title(engine), "title")
    if engine.not_executed_because:
        yield Line(
            f"It was not executed ({engine.not_executed_because}): every error above is that of "
            "the simulation on ONNX Runtime, the structure below that of the engine."
        )
    if len(engine.providers) > 1 or (engine.providers and engine.audit is None):
        shares = "; ".join(map(_share, engine.providers))
        yield Line(f"Executed by {shares}.", "note" if len(engine.providers) > 1 else "")
    if engine.execution is not None:
        yield from _execution(engine.execution, top)
    if engine.audit is not None:
        yield from audit_blocks(engine.audit, "the plan", top)
    for warning in engine.warnings[:_MOST_WARNINGS]:
        yield Line(f"Builder: {printable(warning.text)}", "note")
    more = len(engine.warnings) - _MOST_WARNINGS
    if more > 0:
        told = f"{counted(more, 'more warning')} of the builder: {option('json')} lists them."
        yield Line(told, "muted")


def audit_blocks(audit: Audit, plan: str, top: int | None) -> Iterator[Block]:
    """How many layers were built as `plan` requests, and those that were not.

    Args:
        plan: what requested the precisions, for people.
        top: at most so many layers; None lists them all, those as planned too.
    """
    counts = Counter(row.verdict.value for row in audit.layers)
    told = ", ".join(f"{n} {v}" for v, n in counts.most_common())
    yield Line(f"Requested vs. built precision ({printable(plan)}): {told}", "title")
    gone = [row.name for row in audit.layers if row.verdict is AuditVerdict.GONE]
    if gone and top is not None:  # else they are in the table
        yield Line(f"gone: {first_names(gone, _MOST_GONE)}", "muted", 2)
    rows = [row for row in audit.layers if top is None or row.verdict not in _QUIET]
    if rows:
        columns = [
            (Column("layer", "name"), lambda r: r.name),
            (Column("op", "op"), lambda r: r.op_type),
            (Column("requested"), lambda r: str(r.requested)),
            (Column("built"), lambda r: r.built or "–"),
            (Column("verdict"), lambda r: str(r.verdict)),
        ]
        if any(map(_why, rows)):
            columns.append((Column("why", drop=1), _why))
        yield table_of(
            rows[:top],
            columns,
            lambda r: "worst" if r.verdict is AuditVerdict.MISMATCH else "",
        )
    if top is not None and len(rows) > top:
        yield Line(f"{len(rows) - top} more: {option('top', str(len(rows)))} shows them.", "muted")
    for row in [r for r in audit.mismatched if r.note][:_MOST_REASONS]:
        yield Line(printable(row.name), indent=2)
        yield Line(f"Built in {row.built}: {printable(row.note)}.", indent=4)
        if row.advice:
            yield Line(printable(row.advice), "fine", 4)


def doubt(audit: Audit | None) -> str:
    """What a verdict leaves open: layers of which the engine's file does not tell; "" if none."""
    unknown = len(audit.unknown) if audit else 0
    return f", {counted(unknown, 'layer')} of unknown precision" if unknown else ""


def _why(row: AuditedLayer) -> str:
    """The note of a row; that of a mismatch stands below the table."""
    return "" if row.verdict is AuditVerdict.MISMATCH else row.note


def _title(engine: EngineReport) -> str:
    how = "built earlier in" if engine.cached else "built in"
    facts = [f"{engine.layers} layers"] if engine.layers else []
    facts += [f"{engine.size_bytes / 1e6:.1f} MB"] if engine.size_bytes else []
    facts += [f"{how} {engine.build_s:.1f} s"]
    return f"Engine of {engine.library} for {engine.built_for}: {', '.join(facts)}"


def _share(part: ProviderNodes) -> str:
    most = sorted(part.operators.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{n} {printable(op)}" for op, n in most[:_MOST_OPERATORS])
    more = ", …" if len(most) > _MOST_OPERATORS else ""
    return f"{printable(part.provider)}: {counted(part.nodes, 'node')} ({named}{more})"


def _execution(done: EngineExecution, top: int) -> Iterator[Block]:
    """Where the engine's error comes from, and whether looking inside changed it."""
    yield Facts(tuple(_facts(done)))
    mostly = {t.tensor: t.label for t in done.outputs}
    for name in done.preflight.reference_mismatch:
        wrong = f"'{printable(name)}' is wrong in the FP32 engine already"
        if mostly.get(name, REFERENCE_MISMATCH) == REFERENCE_MISMATCH:
            yield Line(f"{wrong}: quantization is not the cause.", "worst")
        else:
            yield Line(f"{wrong}, by less than half of the error.", "note")
    yield Line("Where the engine's error comes from (SQNR in dB)", "title")
    if reservation := _reservation(done):
        yield Line(reservation, "note")
    outputs = {t.tensor for t in done.outputs}
    inner = [t for t in done.tensors if t.tensor not in outputs]
    ranked = sorted(inner, key=lambda t: -t.kernel_share)
    yield table_of(
        [*done.outputs, *ranked[:top]],
        [
            (Column("tensor", "name"), lambda t: t.tensor),
            (Column("quantization", "number"), lambda t: decibel(t.quantization_db)),
            (Column("kernels", "number"), lambda t: decibel(t.kernel_db)),
            (Column("together", "number"), lambda t: decibel(t.total_db)),
            (Column("mostly"), lambda t: t.label or "–"),
        ],
        lambda t: "worst" if t.label in (KERNEL, REFERENCE_MISMATCH) else "",
    )


def _facts(done: EngineExecution) -> Iterator[tuple[str, str]]:
    yield "latency", f"{done.latency_ms:.3f} ms for {counted(done.latency_samples, 'sample')}"
    if slowest := sorted(done.kernels, key=lambda k: -k.ms)[:_SLOWEST]:
        named = ", ".join(f"{printable(k.name)} {k.ms:.3f}" for k in slowest)
        total = sum(k.ms for k in done.kernels)
        yield "slowest layers", f"{named} ms, of {total:.3f} ms measured one by one"
    for name, db in done.preflight.fp32_db.items():
        again = _apart(done.preflight.repeat_db.get(name, math.inf))
        text = f"FP32 engine against FP32 on the CPU: {_apart(db)}; built twice: {again}"
        yield f"preflight {printable(name)}", text
    for check in done.checks:
        yield f"observed as {check.way}", check.hides or _undisturbed(check)
    if done.skipped:
        yield "not observed", f"{counted(len(done.skipped), 'tensor')} ({option('json')} says why)"
    agreement = done.agreement
    if agreement.within is not None:
        rank = "" if agreement.spearman is None else f", rank correlation {agreement.spearman:.3f}"
        near = round(agreement.within * agreement.tensors)
        text = f"{near} of {counted(agreement.tensors, 'tensor')} within 1 dB{rank}"
        yield "simulation against engine", text


def _reservation(done: EngineExecution) -> str:
    """What the reader must know of how tensors were observed; "" where all is as requested."""
    used, others = done.checks[-1], done.checks[:-1]
    if not used.observed:
        return "Nothing inside the engine could be observed, in any way that was tried."
    if used.hides:
        return (
            f"No way of observing leaves the engine as it is. The tensors, observed as {used.way}, "
            "need not explain the error of the undisturbed engine, whose outputs come first."
        )
    if not others:
        return ""
    return (
        f"Observed as {used.way}: observing it as {' and '.join(c.way for c in others)} would have "
        "changed the engine."
    )


def _undisturbed(check: CaptureCheck) -> str:
    apart = min((x.difference_db for x in check.outputs), default=math.inf)
    return f"{check.observed} tensors; outputs against the clean engine's: {_apart(apart)}"


def _apart(db: float) -> str:
    return "equal" if db == math.inf else f"{decibel(db)} dB"
