"""What a person sees of an inspected engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from qdebug.display.blocks import (
    Block,
    Column,
    Facts,
    Line,
    Style,
    Table,
    conditions,
    notes,
    table_of,
)
from qdebug.display.engine import audit_blocks, doubt
from qdebug.display.tables import csv_text
from qdebug.engine_info.breakdown import Group
from qdebug.engine_info.diff import Change, Diff, MatchedBy, Side
from qdebug.engine_info.layers import EngineLayer, EventKind, InfoSource, Role
from qdebug.engine_info.measurements import ExecutionTimes
from qdebug.engine_info.summary import Summary
from qdebug.engine_info.tensors import FLOATS, QUANTIZED, EngineTensor
from qdebug.network.macs import OTHER_WORK, listed_work
from qdebug.results.inspect import EngineDiff, InspectResult
from qdebug.results.words import first_names, number
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
    info = result.info
    by = f" of TensorRT {info.library}" if info.library else ""
    name = printable(Path(result.file).name)
    blocks: list[Block] = [
        Line(f"{name}: {_SOURCES[info.source]}{by}", "title"),
        *_interface(result),
        Facts(tuple(_facts(result))),
        Line(),
        *_breakdown(result, detailed),
        *_lints(result, None if detailed else _FEW),
        *_layers(result, top, detailed),
        *(Line(line, "note") for line in _findings(result, None if detailed else _FEW)),
        *_events(result, detailed),
    ]
    rows = None if detailed else top
    if result.audit is not None:
        blocks += [Line(), *audit_blocks(result.audit, Path(result.plan).name, rows)]
    if result.diff is not None:
        blocks += _diff(result, result.diff, rows)
    blocks += notes(info.notes)
    blocks.append(conditions(result.conditions, "not in the file"))
    if result.judged:
        verdict, style = ("PASSED", _GOOD) if result.passed else ("FAILED", _BAD)
        blocks.append(Line(verdict + doubt(result.audit), style))
    return blocks


def layers_to_csv(result: InspectResult) -> str:
    """A line for each layer that works, in execution order, with a mark by which spreadsheets know
    UTF-8; empty where the file does not tell."""
    bounds = {bound.layer: bound for bound in result.bounds}
    total = result.summary.ms
    rows = []
    for number_of, layer in enumerate(result.info.working, 1):
        bound = bounds.get(layer.name)
        ms = layer.time_ms
        rows.append(
            {
                "number": number_of,
                "layer": layer.name,
                "nodes": " ".join(layer.onnx_nodes),
                "type": layer.layer_type,
                "role": layer.role.value,
                "precision": layer.precision,
                "ms": ms,
                "time_share": None if ms is None or not total else ms / total,
                "macs": layer.macs,
                "weight_bytes": layer.weight_bytes,
                "activation_bytes": layer.activation_bytes,
                "operations_per_byte": bound and bound.intensity,
                "limited_by": bound and bound.limit,
                "least_ms": bound and bound.bound_ms,
                "reads": _kinds(layer.inputs),
                "writes": _kinds(layer.outputs),
                "formats": " → ".join(_formats(side) for side in (layer.inputs, layer.outputs)),
                "tactic": layer.tactic,
                "sparse": layer.sparse,
                "origin": layer.origin,
            }
        )
    return "\ufeff" + csv_text(rows)


def _formats(tensors: Sequence[EngineTensor]) -> str:
    return ", ".join(dict.fromkeys(t.format for t in tensors if t.format))


_GOOD: Style = "good"
_BAD: Style = "bad"


def _percent(value: float) -> str:
    """A share; "<1 %" and ">99 %" for what is nearly none and nearly all."""
    if 0.995 <= value < 1:
        return ">99 %"
    return f"{100 * value:.0f} %" if value >= 0.01 or value == 0 else "<1 %"


def _facts(result: InspectResult) -> Iterator[tuple[str, str]]:
    summary = result.summary
    total = sum(s.products for s in summary.shares)
    if summary.shares:
        counts = {s.precision or "unknown": s.products for s in summary.shares}
        yield "conv/matmul", _by_precision(counts)
        yield from _macs(result)
    if summary.hidden:
        yield "unknown", _opaque(result)
    if summary.others:
        yield "others", _by_precision(summary.others)
    layers = counted(summary.layers, "layer")
    if summary.nodes:
        shared = f"; {summary.fused_nodes} nodes share a layer" if summary.fused_nodes else ""
        yield "fusion", f"{counted(summary.nodes, 'ONNX node')} in {layers}{shared}"
    else:
        yield "layers", layers
    if result.info.detailed:
        yield "reformats", _reformats(summary)
    if summary.sparse is not None:
        yield "sparse", f"{summary.sparse} of {counted(total, 'layer')} with 2:4 sparse weights"
    if summary.ms is not None:
        parts = [f"{number(s.ms, 3)} in {s.precision} conv/matmul" for s in summary.shares if s.ms]
        yield "time", ", ".join([f"{number(summary.ms, 3)} ms", *parts])
    executions = result.info.executions
    if executions is not None:
        yield "executions", _executions(executions)
    if result.info.device is not None and result.info.device.name:
        yield "GPU", printable(result.info.device.name)


def _executions(found: ExecutionTimes) -> str:
    told = [
        f"{number(value, 3)} {words}"
        for value, words in (
            (found.compute_ms, "ms of computing"),
            (found.latency_ms, "ms with copies"),
            (found.throughput, "a second"),
        )
        if value is not None
    ]
    return f"median of {found.count}: {', '.join(told)}"


def _opaque(result: InspectResult) -> str:
    """What the layers that do not list their operations hide."""
    summary = result.summary
    ms = [x.time_ms for x in summary.hidden if x.time_ms is not None]
    time = f", {number(sum(ms), 3)} ms," if ms else ""
    listed = "; the precisions above are of the products that are listed" if summary.shares else ""
    return (
        f"{counted(summary.hidden, 'layer')} (Myelin){time} may hold "
        f"{'further ' if listed else ''}products, so no share is told{listed}"
    )


def _reformats(summary: Summary) -> str:
    moving = len(summary.reformats)
    told = f"{counted(moving, 'layer')} only to move or convert data" if moving else "none"
    cost = [f"{number(summary.reformat_ms, 3)} ms"] if summary.reformat_ms is not None else []
    cost += [in_bytes(summary.reformat_bytes)] if summary.reformat_bytes else []
    cost_told = f" ({', '.join(cost)})" if moving and cost else ""
    views = f"; beside them {counted(summary.views, 'view')} (NoOp)" if summary.views else ""
    return told + cost_told + views


def _breakdown(result: InspectResult, detailed: bool) -> Iterator[Block]:
    """Where the time of an engine goes."""
    if not result.info.measured or result.info.source is InfoSource.ONNX:
        return
    yield Line("Time by precision, and by type of layer", "title")
    groups = [*result.by_precision, *result.by_type]
    marks = ["precision"] * len(result.by_precision) + ["type"] * len(result.by_type)
    yield _group_table(list(zip(marks, groups, strict=True)), "of")
    if detailed and result.by_tactic:
        yield Line("Time by kernel", "title")
        yield _group_table([("kernel", group) for group in result.by_tactic], "of")
    yield from _roofline(result)
    yield Line()


def _group_table(rows: Sequence[tuple[str, Group]], head: str) -> Table:
    return table_of(
        rows,
        [
            (Column("", "name"), lambda r: r[1].name or "unknown"),
            (Column(head, "op"), lambda r: r[0]),
            (Column("layers", "number"), lambda r: str(r[1].layers)),
            (Column("ms", "number"), lambda r: number(r[1].ms, 3)),
            (Column("share", "number"), lambda r: _or_dash(r[1].share, _percent)),
            (Column("MACs", "number", drop=1), lambda r: _or_dash(r[1].macs, _si)),
            (Column("weights", "number", drop=2), lambda r: _or_dash(r[1].weight_bytes, in_bytes)),
            (
                Column("activations", "number", drop=3),
                lambda r: _or_dash(r[1].activation_bytes, in_bytes),
            ),
        ],
    )


def _or_dash(value: float | None, words: Callable[[float], str]) -> str:
    return "–" if value is None else words(value)


def _roofline(result: InspectResult) -> Iterator[Line]:
    """How much of what the GPU can do at most the products reach."""
    known = [b for b in result.bounds if b.bound_ms is not None and b.reached is not None]
    ms = {x.name: x.time_ms or 0.0 for x in result.info.layers}
    spent = sum(ms[b.layer] for b in known)
    if not known or not spent or result.info.device is None:
        return
    least = sum(b.bound_ms or 0.0 for b in known)
    memory = sum(b.limit == "memory" for b in known)
    yield Line(
        f"On {printable(result.info.device.name or 'this GPU')}, {counted(known, 'product')} take "
        f"{number(spent, 3)} ms, and at its peak at least {number(least, 3)} ms "
        f"({_percent(least / spent)}); its memory limits {memory} of them.",
        "note",
    )


def _lints(result: InspectResult, most: int | None) -> Iterator[Block]:
    found = result.lints
    if not found:
        return
    yield Line("What costs time", "title")
    for each in found[:most]:
        ms = "" if each.ms is None else f", {number(each.ms, 3)} ms"
        yield Line(f"{each.title} ({len(each.layers)}{ms}): {printable(each.evidence)}.", "note", 2)
        if most is None:
            yield Line(first_names(list(each.layers), most), "muted", 4)
        if each.advice:
            yield Line(printable(each.advice), "fine", 4)
    if most is not None and len(found) > most:
        yield Line(f"{len(found) - most} more ({option('verbose')} shows them).", "muted", 2)
    yield Line()


_FIXES = "python -m onnxruntime.tools.make_dynamic_shape_fixed"


def _by_precision(counts: Mapping[str, int]) -> str:
    """How many layers there are, and how many in each precision."""
    told = counted(sum(counts.values()), "layer")
    if len(counts) == 1:
        return f"{told}, {'all ' * (counts[next(iter(counts))] > 1)}{next(iter(counts))}"
    return f"{told}: {', '.join(f'{n} {p}' for p, n in counts.items())}"


def _macs(result: InspectResult) -> Iterator[tuple[str, str]]:
    """The work of the products, and what it does not include."""
    shares, info = result.summary.shares, result.info
    others = Counter(x.layer_type for x in info.layers if x.layer_type in OTHER_WORK)
    without = f"; without {listed_work(others)}" if others else ""
    macs = sum(s.macs or 0 for s in shares)
    if macs and all(s.macs is not None for s in shares):
        parts = [f"{_percent((s.macs or 0) / macs)} {s.precision}" for s in shares]
        told = f": {', '.join(parts)}" if len(shares) > 1 else ""
        batch = _batch(result)
        each = f", {_si(macs / batch)} per sample" if isinstance(batch, int) and batch > 1 else ""
        yield "MACs", f"{_si(macs)} {_unit(batch)}{each}{told}{without}"
    elif info.model_inputs:
        dynamic = _dynamic(result)
        why = "shapes inside the network depend on its data"
        if dynamic:
            why = f"{dynamic} of the input may have any size; {_FIXES} fixes it"
        yield "MACs", f"unknown: {why}"


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


def _interface(result: InspectResult) -> Iterator[Block]:
    """The inputs and outputs of an ONNX model, which whoever feeds it needs first."""
    info = result.info
    rows = [("input", t) for t in info.model_inputs] + [("output", t) for t in info.model_outputs]
    if rows:
        yield table_of(
            rows,
            [
                (Column("", "op"), lambda r: r[0]),
                (Column("name", "name"), lambda r: r[1].name),
                (Column("type"), lambda r: r[1].dtype or "–"),
                (Column("shape"), lambda r: _shape(r[1].shape)),
            ],
        )
        yield Line()


def _shape(axes: Sequence[int | str]) -> str:
    return " × ".join(printable(str(axis)) for axis in axes) or "one value"


def _layers(result: InspectResult, top: int, detailed: bool) -> Iterator[Block]:
    """The first `top` layers: the slowest where times are known, else in execution order."""
    layers = list(result.info.working)
    order = "in execution order"
    if result.info.measured:
        layers.sort(key=lambda layer: -(layer.time_ms or 0.0))
        order = "slowest first"
    shown = layers[:top]
    hidden = len(layers) - len(shown)
    more = f"; {hidden} more ({option('top', str(len(layers)))}, or the JSON)" if hidden else ""
    yield Line(f"{counted(len(layers), 'layer')}, {order}{more}", "title")
    if not shown:
        return
    number_of = {id(layer): i for i, layer in enumerate(result.info.layers, 1)}
    left = set(map(id, result.summary.left_high))
    columns: list[tuple[Column, Callable[[EngineLayer], str]]] = [
        (Column("ONNX nodes", "name"), lambda x: _node_name(result, x)),
        (Column("#", "number"), lambda x: str(number_of[id(x)])),
        (Column("type", "op"), lambda x: x.layer_type),
        (Column("prec."), lambda x: x.precision or "–"),
        (Column("in → out"), _types),
    ]
    if result.info.measured:
        ms = Column("ms", "number")
        columns.append((ms, lambda x: number(x.time_ms, 3)))
    yield table_of(shown, columns, lambda x: "worst" if id(x) in left else _style(x))
    if detailed:
        for layer in shown:
            yield Line(printable(layer.name), "title")
            yield from (Line(line, indent=2) for line in _details(layer))


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
    if layer.onnx_nodes:
        yield f"nodes   {', '.join(map(printable, layer.onnx_nodes))}"
    if layer.tactic:
        yield f"tactic  {printable(layer.tactic)}"
    for word, tensors in (
        ("reads", layer.inputs),
        ("holds", layer.constants),
        ("writes", layer.outputs),
    ):
        yield from (f"{word:<7} {_tensor(t)}" for t in tensors)
    if layer.sparse:
        yield "sparse  2:4 weights"


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
        pairs_left = counted(len(summary.unread), "Q/DQ pair")
        named = first_names(list(summary.unread), most)
        yield f"{pairs_left} that no quantized kernel reads: {named}."
    missing = Counter(node.op_type for node in info.unmapped_nodes)
    missing.pop("Constant", None)
    if missing:
        told = ", ".join(f"{n} {op}" for op, n in missing.most_common())
        nodes = counted(missing.total(), "node")
        unnamed = bool(summary.hidden)
        where = (
            "that no layer names" if unnamed else "folded, or merged into others, without a layer"
        )
        yield f"{nodes} {where}: {told}."


def _events(result: InspectResult, detailed: bool) -> Iterator[Line]:
    events = result.info.events
    fused = sum(e.kind is EventKind.FUSION for e in events)
    shown = [e for e in events if detailed or e.kind not in _MINOR]
    if fused and not detailed:
        yield Line(f"{counted(fused, 'fusion')} logged ({option('verbose')} shows them).", "muted")
    most = len(shown) if detailed else _FEW
    for event in shown[:most]:
        style: Style = "muted" if event.kind in _MINOR else "note"
        yield Line(f"{event.kind}: {printable(event.text)}", style)
    if len(shown) > most:
        yield Line(f"{len(shown) - most} more ({option('verbose')} shows them).", "muted")


def _diff(result: InspectResult, other: EngineDiff, top: int | None) -> Iterator[Block]:
    found = other.diff
    changes = found.changes
    yield Line()
    yield Line(f"Against {printable(Path(other.other).name)}: {_compared(found)}", "title")
    yield from (Line(line, "note", 2) for line in _gains(found))
    for name, value in result.values.items():
        after = other.values[name]
        if value is not None and after is not None and value != after:
            yield Line(f"{name:<18} {number(value, 3):>8} → {number(after, 3)}", indent=2)
    if found.work:
        yield table_of(
            found.work,
            [
                (Column("work", "name"), lambda w: _WORK[w.role]),
                (Column("layers", "number"), lambda w: str(w.layers_before)),
                (Column("→", "number"), lambda w: str(w.layers_after)),
                (Column("ms", "number"), lambda w: number(w.ms_before, 3)),
                (Column("→", "number"), lambda w: number(w.ms_after, 3)),
            ],
        )
    slowed = [c for c in changes if _slower_in_int8(c)]
    if slowed:
        lost = sum(abs(_gained(c) or 0.0) for c in slowed)
        named = first_names([c.node for c in slowed], _FEW if top is not None else None)
        yield Line(
            f"Slower in INT8 than in floating point, {number(lost, 3)} ms in all: {named}.", "note"
        )
    if changes:
        if all(_gained(c) is not None for c in changes):
            changes = tuple(sorted(changes, key=lambda c: -abs(_gained(c) or 0.0)))
        yield table_of(
            changes[:top],
            [
                (Column("node", "name"), lambda c: c.node),
                (Column("before"), lambda c: _side(c.before)),
                (Column("after"), lambda c: _side(c.after)),
                (Column("differs in"), lambda c: ", ".join(c.changed)),
            ],
        )
    if top is not None and len(changes) > top:
        shows = option("top", str(len(changes)))
        yield Line(f"{len(changes) - top} more: {shows} shows them.", "muted")


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


def _gains(found: Diff) -> Iterator[str]:
    """What the other engine gains and loses, where both were measured."""
    times = [
        (w, w.ms_after - w.ms_before)
        for w in found.work
        if w.ms_after is not None and w.ms_before is not None
    ]
    if len(times) < len(found.work) or not times:
        return
    total = sum(change for _, change in times)
    parts = [
        f"{'gains' if change < 0 else 'loses'} {number(abs(change), 3)} ms in "
        f"{w.layers_after} {_WORK[w.role]}"
        for w, change in sorted(times, key=lambda pair: -abs(pair[1]))
        if change
    ]
    if parts:
        word = "faster" if total < 0 else "slower"
        yield f"It is {number(abs(total), 3)} ms {word}: it {', '.join(parts)}."


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
    precisions = change.before.precision, change.after.precision
    if precisions[0] in FLOATS and precisions[1] in QUANTIZED:
        return gained > 0
    return precisions[0] in QUANTIZED and precisions[1] in FLOATS and gained < 0


def _side(side: Side | None) -> str:
    if side is None:
        return "–"
    parts = [side.precision or "?"]
    if side.companions:
        parts.append(f"+{len(side.companions)}")
    if side.time_ms is not None:
        parts.append(f"{number(side.time_ms, 3)} ms")
    return " ".join(parts)


def in_bytes(value: float) -> str:
    """A size, such as "1.2 MB"."""
    return f"{_si(value)}{'' if value >= 1e3 else ' '}B"


def _si(value: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f}"
