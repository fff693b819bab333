"""What a person sees of an inspected engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from qdebug.display.blocks import (
    Block,
    Column,
    Line,
    Parts,
    Style,
    Table,
    conditions,
    facts,
    flat,
    notes,
    number_column,
    table_of,
)
from qdebug.display.engine import audit_blocks, doubt
from qdebug.display.tables import csv_text
from qdebug.engine_info.diff import Change, Diff, MatchedBy, Side
from qdebug.engine_info.layers import EngineLayer, EventKind, InfoSource, Role
from qdebug.engine_info.lints import Lint
from qdebug.engine_info.measurements import ExecutionTimes
from qdebug.engine_info.summary import Bound, Group, Summary
from qdebug.engine_info.tensors import FLOATS, QUANTIZED, EngineTensor
from qdebug.network.macs import OTHER_WORK, listed_work
from qdebug.results.inspect import EngineDiff, InspectResult
from qdebug.results.words import first_names, magnitude, number, percent, size
from qdebug.wording import counted, option, printable

_SOURCES = {
    InfoSource.ONNX: "ONNX model",
    InfoSource.LAYER_INFO: "layer information",
    InfoSource.BUILD_LOG: "build log",
    InfoSource.POLYGRAPHY: "text of Polygraphy",
    InfoSource.PROFILE: "profile",
}
_FEW = 5
_TOP = 20
_BATCH = ("batch", "batch_size", "N", "n", "B", "bs")
_MINOR = (EventKind.FUSION, EventKind.TACTIC)


def view(result: InspectResult, *, top: int = _TOP, detailed: bool = False) -> list[Block]:
    """An engine: its numbers, the first `top` layers, what stands out, the verdict last; `detailed`
    adds tactics, formats and all events."""
    info, rows = result.info, None if detailed else top
    by = f" of TensorRT {info.library}" if info.library else ""
    name = printable(Path(result.file).name)
    verdict = "PASSED" if result.passed else "FAILED"
    return flat(
        Line(f"{name}: {_SOURCES[info.source]}{by}", "title"),
        _interface(result),
        facts(_facts(result)),
        Line(),
        _breakdown(result, detailed),
        _lints(result, None if detailed else _FEW),
        _layers(result, top, detailed),
        (Line(line, "note") for line in _findings(result, None if detailed else _FEW)),
        _events(result, detailed),
        (Line(), audit_blocks(result.audit, Path(result.plan).name, rows))
        if result.audit is not None
        else None,
        None if result.diff is None else _diff(result, result.diff, rows),
        notes(info.notes),
        conditions(result.conditions, "not in the file"),
        Line(verdict + doubt(result.audit), "good" if result.passed else "bad")
        if result.judged
        else None,
    )


def layers_to_csv(result: InspectResult) -> str:
    """A line for each layer that works, in execution order, with a mark by which spreadsheets know
    UTF-8; empty where the file does not tell."""
    bounds = {bound.layer: bound for bound in result.bounds}
    total = result.summary.ms
    columns: Mapping[str, Callable[[EngineLayer, Bound | None], object]] = {
        "layer": lambda x, _: x.name,
        "nodes": lambda x, _: " ".join(x.onnx_nodes),
        "type": lambda x, _: x.layer_type,
        "role": lambda x, _: x.role.value,
        "precision": lambda x, _: x.precision,
        "ms": lambda x, _: x.time_ms,
        "time_share": lambda x, _: None if x.time_ms is None or not total else x.time_ms / total,
        "macs": lambda x, _: x.macs,
        "weight_bytes": lambda x, _: x.weight_bytes,
        "activation_bytes": lambda x, _: x.activation_bytes,
        "operations_per_byte": lambda _, bound: bound and bound.intensity,
        "limited_by": lambda _, bound: bound and bound.limit,
        "least_ms": lambda _, bound: bound and bound.bound_ms,
        "reads": lambda x, _: _kinds(x.inputs),
        "writes": lambda x, _: _kinds(x.outputs),
        "formats": lambda x, _: " → ".join(
            ", ".join(dict.fromkeys(t.format for t in side if t.format))
            for side in (x.inputs, x.outputs)
        ),
        "tactic": lambda x, _: x.tactic,
        "sparse": lambda x, _: x.sparse,
        "origin": lambda x, _: x.origin,
    }
    rows = [
        {"number": place, **{k: cell(x, bounds.get(x.name)) for k, cell in columns.items()}}
        for place, x in enumerate(result.info.working, 1)
    ]
    return "\ufeff" + csv_text(rows)


def _facts(result: InspectResult) -> Iterator[tuple[str, str | None]]:
    summary, info = result.summary, result.info
    if summary.shares:
        counts = {s.precision or "unknown": s.products for s in summary.shares}
        yield "conv/matmul", _by_precision(counts)
        yield "MACs", _macs(result)
    yield "unknown", _opaque(result) if summary.hidden else None
    yield "others", _by_precision(summary.others) if summary.others else None
    layers = counted(summary.layers, "layer")
    shared = f"; {summary.fused_nodes} nodes share a layer" if summary.fused_nodes else ""
    fusion = f"{counted(summary.nodes, 'ONNX node')} in {layers}{shared}"
    yield ("fusion", fusion) if summary.nodes else ("layers", layers)
    yield "reformats", _reformats(summary) if info.detailed else None
    if summary.sparse is not None:
        total = counted(sum(s.products for s in summary.shares), "layer")
        yield "sparse", f"{summary.sparse} of {total} with 2:4 sparse weights"
    if summary.ms is not None:
        parts = [f"{number(s.ms, 3)} in {s.precision} conv/matmul" for s in summary.shares if s.ms]
        yield "time", ", ".join([_ms(summary.ms), *parts])
    yield "executions", _executions(info.executions) if info.executions is not None else None
    yield "GPU", printable(info.device.name or "") if info.device is not None else None


def _ms(value: float) -> str:
    return f"{number(value, 3)} ms"


def _executions(found: ExecutionTimes) -> str:
    figures = {
        "ms of computing": found.compute_ms,
        "ms with copies": found.latency_ms,
        "a second": found.throughput,
    }
    told = (f"{number(v, 3)} {words}" for words, v in figures.items() if v is not None)
    return f"median of {found.count}: {', '.join(told)}"


def _opaque(result: InspectResult) -> str:
    """What the layers that do not list their operations hide."""
    summary = result.summary
    ms = [x.time_ms for x in summary.hidden if x.time_ms is not None]
    time = f", {_ms(sum(ms))}," if ms else ""
    listed = "; the precisions above are of the products that are listed" if summary.shares else ""
    return (
        f"{counted(summary.hidden, 'layer')} (Myelin){time} may hold "
        f"{'further ' if listed else ''}products, so no share is told{listed}"
    )


def _reformats(summary: Summary) -> str:
    moving = len(summary.reformats)
    told = f"{counted(moving, 'layer')} only to move or convert data" if moving else "none"
    time = "" if summary.reformat_ms is None else _ms(summary.reformat_ms)
    moved = size(summary.reformat_bytes) if summary.reformat_bytes else ""
    cost = ", ".join(filter(None, (time, moved)))
    views = f"; beside them {counted(summary.views, 'view')} (NoOp)" if summary.views else ""
    return f"{told}{f' ({cost})' if moving and cost else ''}{views}"


def _breakdown(result: InspectResult, detailed: bool) -> Parts:
    """Where the time of an engine goes."""
    if not result.info.measured or result.info.source is InfoSource.ONNX:
        return None
    groups = [("precision", g) for g in result.by_precision] + [("type", g) for g in result.by_type]
    kernels = [("kernel", group) for group in result.by_tactic]
    return (
        Line("Time by precision, and by type of layer", "title"),
        _group_table(groups),
        (Line("Time by kernel", "title"), _group_table(kernels)) if detailed and kernels else None,
        _roofline(result),
        Line(),
    )


def _group_table(rows: Sequence[tuple[str, Group]]) -> Table:
    return table_of(
        rows,
        [
            (Column("", "name"), lambda r: r[1].name or "unknown"),
            (Column("of", "op"), lambda r: r[0]),
            (Column("layers", "number"), lambda r: r[1].layers),
            number_column("ms", lambda r: r[1].ms, digits=3),
            number_column("share", lambda r: r[1].share, "percent"),
            number_column("MACs", lambda r: r[1].macs, "count", drop=1),
            number_column("weights", lambda r: r[1].weight_bytes, "bytes", drop=2),
            number_column("activations", lambda r: r[1].activation_bytes, "bytes", drop=3),
        ],
    )


def _roofline(result: InspectResult) -> Line | None:
    """How much of what the GPU can do at most the products reach."""
    known = [b for b in result.bounds if b.bound_ms is not None and b.reached is not None]
    ms = {x.name: x.time_ms or 0.0 for x in result.info.layers}
    spent, device = sum(ms[b.layer] for b in known), result.info.device
    if not known or not spent or device is None:
        return None
    least = sum(b.bound_ms or 0.0 for b in known)
    memory = sum(b.limit == "memory" for b in known)
    return Line(
        f"On {printable(device.name or 'this GPU')}, {counted(known, 'product')} take "
        f"{_ms(spent)}, and at its peak at least {_ms(least)} "
        f"({percent(least / spent)}); its memory limits {memory} of them.",
        "note",
    )


def _lints(result: InspectResult, most: int | None) -> Parts:
    def told(each: Lint) -> Iterator[Line]:
        ms = "" if each.ms is None else f", {_ms(each.ms)}"
        yield Line(f"{each.title} ({len(each.layers)}{ms}): {printable(each.evidence)}.", "note", 2)
        if most is None:
            yield Line(first_names(list(each.layers), most), "muted", 4)
        if each.advice:
            yield Line(printable(each.advice), "fine", 4)

    found = result.lints
    more = _more(len(found) - len(found[:most]), "verbose", indent=2)
    return (
        (Line("What costs time", "title"), map(told, found[:most]), more, Line()) if found else None
    )


def _more(hidden: int, setting: str, value: str | None = None, indent: int = 0) -> Line | None:
    """That a setting shows more; None where there is nothing more."""
    text = f"{hidden} more ({option(setting, value)} shows them)."
    return Line(text, "muted", indent) if hidden > 0 else None


_FIXES = "python -m onnxruntime.tools.make_dynamic_shape_fixed"


def _by_precision(counts: Mapping[str, int]) -> str:
    """How many layers there are, and how many in each precision."""
    told = counted(sum(counts.values()), "layer")
    if len(counts) == 1:
        return f"{told}, {'all ' * (counts[next(iter(counts))] > 1)}{next(iter(counts))}"
    return f"{told}: {', '.join(f'{n} {p}' for p, n in counts.items())}"


def _macs(result: InspectResult) -> str | None:
    """The work of the products, and what it does not include."""
    shares, info = result.summary.shares, result.info
    others = Counter(x.layer_type for x in info.layers if x.layer_type in OTHER_WORK)
    without = f"; without {listed_work(others)}" if others else ""
    macs = sum(s.macs or 0 for s in shares)
    if macs and all(s.macs is not None for s in shares):
        parts = ", ".join(f"{percent((s.macs or 0) / macs)} {s.precision}" for s in shares)
        told = f": {parts}" if len(shares) > 1 else ""
        batch = _batch(result)
        several = isinstance(batch, int) and batch > 1
        each = f", {magnitude(macs / int(batch))} per sample" if several else ""
        return f"{magnitude(macs)} {_unit(batch)}{each}{told}{without}"
    why = "shapes inside the network depend on its data"
    if dynamic := _dynamic(result):
        why = f"{dynamic} of the input may have any size; {_FIXES} fixes it"
    return f"unknown: {why}" if info.model_inputs else None


def _batch(result: InspectResult) -> int | str:
    """The samples of an execution, or the name of the axis that they are along."""
    info = result.info
    if info.nodes:
        return next((t.shape[0] for t in info.model_inputs if t.shape), 1)
    # The work is that of the layers, whose batch their operands have.
    product = next((x for x in info.layers if x.macs is not None and x.inputs), None)
    return product.inputs[0].dims[0] if product and product.inputs[0].dims else 1


def _unit(batch: int | str) -> str:
    """What the work is for: a sample, or an execution where a batch is fixed."""
    if isinstance(batch, int):
        return "per sample" if batch == 1 else f"per execution (batch of {batch})"
    return "per sample" if batch in ("?", *_BATCH) else f"for {batch} = 1"


def _dynamic(result: InspectResult) -> str:
    """The dynamic axes of the inputs, besides that of the batch."""
    found: list[str] = []
    leading = {t.shape[0] for t in result.info.model_inputs if t.shape}
    for tensor in result.info.model_inputs:
        for place, axis in enumerate(tensor.shape[1:], 1):
            if isinstance(axis, str) and (axis == "?" or axis not in leading):
                found.append(f"axis {place}" if axis == "?" else axis)
    return " and ".join(dict.fromkeys(found))


def _interface(result: InspectResult) -> Parts:
    """The inputs and outputs of an ONNX model, which whoever feeds it needs first."""
    info = result.info
    rows = [("input", t) for t in info.model_inputs] + [("output", t) for t in info.model_outputs]
    table = table_of(
        rows,
        [
            (Column("", "op"), lambda r: r[0]),
            (Column("name", "name"), lambda r: r[1].name),
            (Column("type"), lambda r: r[1].dtype or None),
            (Column("shape"), lambda r: " × ".join(map(str, r[1].shape)) or "one value"),
        ],
    )
    return (table, Line()) if rows else None


def _layers(result: InspectResult, top: int, detailed: bool) -> Parts:
    """The first `top` layers: the slowest where times are known, else in execution order."""
    layers, measured = list(result.info.working), result.info.measured
    if measured:
        layers.sort(key=lambda layer: -(layer.time_ms or 0.0))
    shown = layers[:top]
    hidden = len(layers) - len(shown)
    more = f"; {hidden} more ({option('top', str(len(layers)))}, or the JSON)" if hidden else ""
    order = "slowest first" if measured else "in execution order"
    number_of = {id(layer): i for i, layer in enumerate(result.info.layers, 1)}
    left = set(map(id, result.summary.left_high))
    table = table_of(
        shown,
        [
            (Column("ONNX nodes", "name"), lambda x: _node_name(result, x)),
            (Column("#", "number"), lambda x: number_of[id(x)]),
            (Column("type", "op"), lambda x: x.layer_type),
            (Column("prec."), lambda x: x.precision or None),
            (Column("in → out"), _types),
            number_column("ms", lambda x: x.time_ms, digits=3) if measured else None,
        ],
        lambda x: "worst" if id(x) in left else _style(x),
    )
    details = (
        (Line(printable(x.name), "title"), (Line(line, indent=2) for line in _details(x)))
        for x in (shown if detailed else ())
    )
    title = Line(f"{counted(layers, 'layer')}, {order}{more}", "title")
    return (title, table, details) if shown else title


def _style(layer: EngineLayer) -> Style:
    if layer.role is Role.MATRIX:
        return "fine" if layer.precision in QUANTIZED else ""
    return "muted"


def _node_name(result: InspectResult, layer: EngineLayer) -> str:
    """What a layer computes, by the first ONNX node whose work it does; else its own name."""
    info = result.info
    own = [n for n in layer.onnx_nodes if info.layer_of(n) is layer]
    plain = [n for n in own if not info.op_types.get(n, "").lower().endswith("quantizelinear")]
    main = next(iter([*plain, *own]), None)
    if main is None:
        return layer.name
    others = len(plain or own) - 1
    return main + (f" +{others}" if others else "")


def _types(layer: EngineLayer) -> str:
    reads = _kinds(layer.inputs) or _kinds(layer.constants)
    writes = _kinds(layer.outputs)
    return f"{reads} → {writes}" if reads or writes else "–"


def _kinds(tensors: Sequence[EngineTensor]) -> str:
    return ",".join(dict.fromkeys(t.dtype for t in tensors if t.dtype))


def _details(layer: EngineLayer) -> Iterator[str]:
    sides = ("reads", layer.inputs), ("holds", layer.constants), ("writes", layer.outputs)
    lines = [
        ("nodes", ", ".join(map(printable, layer.onnx_nodes))),
        ("tactic", printable(layer.tactic or "")),
        *((word, _tensor(t)) for word, tensors in sides for t in tensors),
        ("sparse", "2:4 weights" if layer.sparse else ""),
    ]
    return (f"{word:<7} {text}" for word, text in lines if text)


def _tensor(tensor: EngineTensor) -> str:
    dims = "" if tensor.dims is None else f" [{', '.join(map(str, tensor.dims))}]"
    return f"{printable(tensor.name)} {tensor.dtype}{dims} {printable(tensor.format)}".rstrip()


def _findings(result: InspectResult, most: int | None) -> Iterator[str]:
    summary, info = result.summary, result.info
    for layer in summary.left_high[:most]:
        name = printable(_node_name(result, layer))
        yield f"{name} runs in {layer.precision} between quantized products."
    if summary.changes:
        pairs = Counter((e.writer.precision, e.reader.precision) for e in summary.changes)
        told = ", ".join(f"{n} × {a} → {b}" for (a, b), n in pairs.items())
        yield f"The precision changes between products: {told}."
    if summary.unread:
        pairs_left, named = (
            counted(summary.unread, "Q/DQ pair"),
            first_names([*summary.unread], most),
        )
        yield f"{pairs_left} that no quantized kernel reads: {named}."
    missing = Counter(n.op_type for n in info.unmapped_nodes if n.op_type != "Constant")
    if missing:
        told = ", ".join(f"{n} {op}" for op, n in missing.most_common())
        where = "folded, or merged into others, without a layer"
        where = "that no layer names" if summary.hidden else where
        yield f"{counted(missing.total(), 'node')} {where}: {told}."


def _events(result: InspectResult, detailed: bool) -> Iterator[Line | None]:
    events = result.info.events
    fused = sum(e.kind is EventKind.FUSION for e in events)
    shown = [e for e in events if detailed or e.kind not in _MINOR]
    if fused and not detailed:
        yield Line(f"{counted(fused, 'fusion')} logged ({option('verbose')} shows them).", "muted")
    most = len(shown) if detailed else _FEW
    for event in shown[:most]:
        text = f"{event.kind}: {printable(event.text)}"
        yield Line(text, "muted" if event.kind in _MINOR else "note")
    yield _more(len(shown) - most, "verbose")


def _diff(result: InspectResult, other: EngineDiff, top: int | None) -> Parts:
    found, ends = other.diff, [(k, v, other.values[k]) for k, v in result.values.items()]
    changes = found.changes
    slowed = [c for c in changes if _slower_in_int8(c)]
    lost = sum(abs(_gained(c) or 0.0) for c in slowed)
    named = first_names([c.node for c in slowed], _FEW if top is not None else None)
    if all(_gained(c) is not None for c in changes):
        changes = tuple(sorted(changes, key=lambda c: -abs(_gained(c) or 0.0)))
    more = len(changes) - len(changes[:top])
    return (
        Line(),
        Line(f"Against {printable(Path(other.other).name)}: {_compared(found)}", "title"),
        Line(gains, "note", 2) if (gains := _gains(found)) else None,
        (
            Line(f"{name:<18} {number(before, 3):>8} → {number(after, 3)}", indent=2)
            for name, before, after in ends
            if None not in (before, after) and before != after
        ),
        table_of(
            found.work,
            [
                (Column("work", "name"), lambda w: _WORK[w.role]),
                (Column("layers", "number"), lambda w: w.layers_before),
                (Column("→", "number"), lambda w: w.layers_after),
                number_column("ms", lambda w: w.ms_before, digits=3),
                number_column("→", lambda w: w.ms_after, digits=3),
            ],
        )
        if found.work
        else None,
        Line(f"Slower in INT8 than in floating point, {_ms(lost)} in all: {named}.", "note")
        if slowed
        else None,
        table_of(
            changes[:top],
            [
                (Column("node", "name"), lambda c: c.node),
                (Column("before"), lambda c: _side(c.before)),
                (Column("after"), lambda c: _side(c.after)),
                (Column("differs in"), lambda c: ", ".join(c.changed)),
            ],
        )
        if changes
        else None,
        Line(f"{more} more: {option('top', str(len(changes)))} shows them.", "muted")
        if more
        else None,
    )


_WORK = {
    Role.MATRIX: "conv/matmul",
    Role.OTHER: "other work",
    Role.REFORMAT: "reformats, Q/DQ",
    Role.OPAQUE: "unknown (Myelin)",
}


def _compared(found: Diff) -> str:
    """How much differs, and how the two were matched."""
    if found.matched_by is MatchedBy.TOTALS:
        return "neither names nor shapes of the layers match, so only totals are compared"
    if found.matched_by is MatchedBy.NAMES:
        return f"{len(found.changes)} of {counted(found.compared_nodes, 'node')} differ"
    layers = counted(found.compared_nodes, "layer")
    return f"{len(found.changes)} of {layers} differ (matched by their order, work and shapes)"


def _gains(found: Diff) -> str:
    """What the other engine gains and loses; "" where not both were measured, or nothing is."""
    times = [
        (w, w.ms_after - w.ms_before)
        for w in found.work
        if w.ms_after is not None and w.ms_before is not None
    ]
    parts = [
        f"{'gains' if change < 0 else 'loses'} {_ms(abs(change))} in "
        f"{w.layers_after} {_WORK[w.role]}"
        for w, change in sorted(times, key=lambda pair: -abs(pair[1]))
        if change
    ]
    total = sum(change for _, change in times)
    told = f"It is {_ms(abs(total))} {'faster' if total < 0 else 'slower'}: it {', '.join(parts)}."
    return told if parts and len(times) == len(found.work) else ""


def _gained(change: Change) -> float | None:
    """By how much the second engine is slower."""
    if change.before is None or change.after is None:
        return None
    before, after = change.before.time_ms, change.after.time_ms
    return None if before is None or after is None else after - before


def _slower_in_int8(change: Change) -> bool:
    gained = _gained(change)
    if change.before is None or change.after is None or gained is None:
        return False
    before, after = change.before.precision, change.after.precision
    if before in FLOATS and after in QUANTIZED:
        return gained > 0
    return before in QUANTIZED and after in FLOATS and gained < 0


def _side(side: Side | None) -> str | None:
    if side is None:
        return None
    others = f" +{len(side.companions)}" if side.companions else ""
    return (
        f"{side.precision or '?'}{others}{'' if side.time_ms is None else f' {_ms(side.time_ms)}'}"
    )
