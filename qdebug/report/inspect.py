"""Show what `inspect` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.engine_info.diff import Change, Side
from qdebug.engine_info.layers import EventKind, Source
from qdebug.measure.inspection import InspectResult
from qdebug.report.audit import print_audit
from qdebug.report.inspect_layers import layers_table, node_name
from qdebug.report.tables import name_table, print_table
from qdebug.report.view import counted, number, printable, some

_SOURCES = {
    Source.ONNX: "ONNX model",
    Source.LAYER_INFO: "layer information",
    Source.BUILD_LOG: "build log",
    Source.PROFILE: "profile",
}
_FEW = 5


def print_inspection(console: Console, result: InspectResult, *, top: int, detailed: bool) -> None:
    """Print an engine: its numbers, the first `top` layers, what stands out, the verdict last."""
    info = result.info
    name = printable(Path(result.file).name)
    by = f" of TensorRT {info.library}" if info.library else ""
    console.print(Text(f"{name}: {_SOURCES[info.source]}{by}", style="bold"), soft_wrap=True)
    print_table(console, _facts(result))
    console.print()
    layers_table(console, result, top=top, detailed=detailed)
    for line in _findings(result, None if detailed else _FEW):
        console.print(Text(line, style="yellow"))
    _print_events(console, result, detailed)
    if result.audit is not None:
        console.print()
        print_audit(console, result.audit, Path(result.plan).name, None if detailed else top)
    if result.diff is not None:
        _print_diff(console, result, None if detailed else top)
    for note in info.notes:
        console.print(Text(f"Note: {note}", style="yellow"))
    for check in result.conditions:
        mark, style = ("holds", "green") if check.passed else ("FAILS", "bold red")
        value = "not told by the file" if check.value is None else number(check.value)
        console.print(Text.assemble((f"  {mark}  ", style), f"{check.expression}: {value}"))
    if result.judged:
        style = "bold green" if result.passed else "bold red"
        unknown = len(result.audit.unknown) if result.audit else 0
        doubt = f", {counted(unknown, 'layer')} unknown" if unknown else ""
        console.print(Text(("PASSED" if result.passed else "FAILED") + doubt, style=style))


def percent(value: float) -> str:
    """A share; "<1 %" and ">99 %" for what is nearly none and nearly all."""
    if 0.995 <= value < 1:
        return ">99 %"
    return f"{100 * value:.0f} %" if value >= 0.01 or value == 0 else "<1 %"


def _facts(result: InspectResult) -> Table:
    summary = result.summary
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    total = sum(s.products for s in summary.shares)
    if summary.shares:
        parts = [f"{s.products} {s.precision or 'unknown'}" for s in summary.shares]
        table.add_row("products", f"{total}: {', '.join(parts)}")
        macs = sum(s.macs or 0 for s in summary.shares)
        if macs:
            parts = [f"{percent((s.macs or 0) / macs)} {s.precision}" for s in summary.shares]
            table.add_row("", f"{_si(macs)} MACs per sample: {', '.join(parts)}")
    if summary.others:
        table.add_row("others", ", ".join(f"{n} {p}" for p, n in summary.others.items()))
    layers = counted(summary.layers, "layer")
    if summary.nodes:
        shared = f"; {summary.fused_nodes} share one" if summary.fused_nodes else ""
        table.add_row("fusion", f"{counted(summary.nodes, 'ONNX node')} in {layers}{shared}")
    else:
        table.add_row("layers", layers)
    if result.info.detailed:
        table.add_row("reformats", str(len(summary.reformats)))
    if summary.sparse is not None:
        table.add_row("sparse", f"{summary.sparse} of {counted(total, 'product')}")
    if summary.ms is not None:
        parts = [f"{number(s.ms, 3)} in {s.precision} products" for s in summary.shares if s.ms]
        table.add_row("time", ", ".join([f"{number(summary.ms, 3)} ms", *parts]))
    return table


def _findings(result: InspectResult, most: int | None) -> list[str]:
    summary, info = result.summary, result.info
    lines = []
    for layer in summary.left_high[:most]:
        lines.append(
            f"{node_name(result, layer)} runs in {layer.precision} between quantized products."
        )
    if summary.changes:
        pairs = Counter((e.writer.precision, e.reader.precision) for e in summary.changes)
        told = ", ".join(f"{n} × {a} → {b}" for (a, b), n in pairs.items())
        lines.append(f"The precision changes between products: {told}.")
    if summary.unread:
        lines.append(
            f"{counted(len(summary.unread), 'Q/DQ pair')} that no quantized kernel reads: "
            f"{some(list(summary.unread), most)}."
        )
    missing = Counter(n.op_type for n in info.nodes if n.name not in info.of_node)
    missing.pop("Constant", None)
    if missing:
        told = ", ".join(f"{n} {op}" for op, n in missing.most_common())
        nodes = counted(missing.total(), "node")
        lines.append(f"{nodes} folded, or merged into others, without a layer: {told}.")
    return lines


def _print_events(console: Console, result: InspectResult, detailed: bool) -> None:
    events = result.info.events
    fused = sum(e.kind is EventKind.FUSION for e in events)
    shown = [e for e in events if detailed or e.kind not in (EventKind.FUSION, EventKind.TACTIC)]
    if fused and not detailed:
        console.print(Text(f"{counted(fused, 'fusion')} logged (-v shows them).", style="dim"))
    most = len(shown) if detailed else _FEW
    for event in shown[:most]:
        style = "dim" if event.kind in (EventKind.FUSION, EventKind.TACTIC) else "yellow"
        console.print(Text(f"{event.kind}: {printable(event.text)}", style=style))
    if len(shown) > most:
        console.print(Text(f"{len(shown) - most} more (-v shows them).", style="dim"))


def _print_diff(console: Console, result: InspectResult, top: int | None) -> None:
    other = result.diff
    assert other is not None
    console.print()
    changes = other.diff.changes
    title = (
        f"Against {printable(Path(other.other).name)}: {len(changes)} of "
        f"{counted(other.diff.compared_nodes, 'node')} differ"
    )
    console.print(Text(title, style="bold"), soft_wrap=True)
    for name, value in result.values.items():
        after = other.values[name]
        if value is not None and after is not None and value != after:
            console.print(f"  {name:<18} {number(value, 3):>8} → {number(after, 3)}")
    if changes:
        print_table(console, _diff_table(console, changes[:top]))
    if top is not None and len(changes) > top:
        console.print(Text(f"{len(changes) - top} more (-v or --json).", style="dim"))


def _diff_table(console: Console, changes: Sequence[Change]) -> Table:
    return name_table(
        console,
        ["node", "before", "after", "differs in"],
        [(c.node, [_side(c.before), _side(c.after), ", ".join(c.changed)], "") for c in changes],
    )


def _side(side: Side | None) -> str:
    if side is None:
        return "–"
    parts = [side.precision or "?"]
    if side.companions:
        parts.append(f"+{len(side.companions)}")
    if side.time_ms is not None:
        parts.append(f"{number(side.time_ms, 3)} ms")
    return " ".join(parts)


def _si(value: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f}"
