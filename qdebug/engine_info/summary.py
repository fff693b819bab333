"""An engine in numbers: how much of it runs in which precision, where its time and memory go, what
is fused, what is left, and how fast its products could be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from qdebug.engine_info.audit import Audit
from qdebug.engine_info.flow import Edge, left_high, product_edges, unread_dequantizers
from qdebug.engine_info.layers import EngineInfo, EngineLayer, EventKind, Role
from qdebug.engine_info.tensors import known_sum
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.result import MaybeText
from qdebug.wording import counted

PRECISIONS = ("int8", "fp8", "int4", "fp4", "int16", "fp16", "bf16", "tf32", "fp32")
_GATED = ("int8", "fp16", "fp32")


@dataclass(frozen=True)
class Group:
    """Layers that have something in common.

    Attributes:
        name: the precision, type or kernel; "" where the file does not say.
        layers: how many there are.
        ms: their time; None when none was measured.
        share: of the time of all layers; None likewise.
        macs: multiply-accumulates of their products, of one execution; None where none is known.
        weight_bytes, activation_bytes: what they hold, and what those that are executed read and
            write; None where no size is known.
    """

    name: MaybeText
    layers: int
    ms: float | None
    share: float | None
    macs: float | None
    weight_bytes: float | None
    activation_bytes: float | None


def by_precision(info: EngineInfo) -> tuple[Group, ...]:
    """All layers that work, by the type that they compute in."""
    return _grouped(info, lambda layer: layer.precision)


def by_type(info: EngineInfo) -> tuple[Group, ...]:
    """All layers that work, by their type in TensorRT's words."""
    return _grouped(info, lambda layer: layer.layer_type)


def by_tactic(info: EngineInfo) -> tuple[Group, ...]:
    """The layers whose kernel is named, by the kernel."""
    groups = _grouped(info, lambda layer: "" if layer.tactic.startswith("0x") else layer.tactic)
    return tuple(group for group in groups if group.name)


def _grouped(info: EngineInfo, key: Callable[[EngineLayer], str]) -> tuple[Group, ...]:
    """Most time first, or else most layers."""
    total = known_sum(layer.time_ms for layer in info.working)
    groups = []
    for name in dict.fromkeys(map(key, info.working)):
        layers = [layer for layer in info.working if key(layer) == name]
        executed = [layer for layer in layers if not layer.takes_no_time]
        ms = known_sum(layer.time_ms for layer in layers)
        group = Group(
            name=name,
            layers=len(layers),
            ms=ms,
            share=None if ms is None or not total else ms / total,
            macs=known_sum(layer.macs for layer in layers),
            weight_bytes=known_sum(layer.weight_bytes for layer in layers),
            activation_bytes=known_sum(layer.activation_bytes for layer in executed),
        )
        groups.append(group)
    return tuple(sorted(groups, key=lambda g: (-(g.ms or 0.0), -g.layers)))


@dataclass(frozen=True)
class Share:
    """The matrix products that run in one precision.

    Attributes:
        products: how many layers.
        macs: multiply-accumulates of the model's nodes they compute, for one sample where the
            batch axis is dynamic, or else of one execution of the layers; None where they depend
            on an axis whose size the file does not give.
        ms: their time; None when it was not measured.
    """

    precision: str
    products: int
    macs: float | None
    ms: float | None


@dataclass(frozen=True)
class Summary:
    """What stands out.

    Attributes:
        shares: of the matrix products, most quantized first.
        others: how many other computing layers run in each precision.
        nodes: ONNX nodes that layers name, Q/DQ, casts and constants left out.
        fused_nodes: those of them that share their kernel with another.
        reformats: layers that only move or convert data, and are executed: neither another view of
            the same memory, nor a Q/DQ node.
        views: layers for which nothing is executed (NoOp).
        reformat_ms, reformat_bytes: of the reformats; None where it is not known of any.
        hidden: layers that may hold products, and do not say in which precision.
        left_high: products in floating point between quantized ones.
        changes: pairs of products, one feeding the other, of different precision.
        unread: DequantizeLinear nodes that no quantized product reads -> where they run.
        sparse: products with 2:4 sparse weights; None when the file does not say.
        ms: time of all layers; None when it was not measured.
    """

    layers: int
    shares: tuple[Share, ...]
    others: Mapping[str, int]
    nodes: int
    fused_nodes: int
    reformats: tuple[EngineLayer, ...]
    views: int
    reformat_ms: float | None
    reformat_bytes: float | None
    hidden: tuple[EngineLayer, ...]
    left_high: tuple[EngineLayer, ...]
    changes: tuple[Edge, ...]
    unread: Mapping[str, EngineLayer]
    sparse: int | None
    ms: float | None
    warnings: int


def summarize(info: EngineInfo) -> Summary:
    """The summary of an engine; without details only what the names reveal."""
    edges = product_edges(info) if info.detailed else ()
    others = Counter(x.precision for x in info.of_role(Role.OTHER) if x.precision)
    told = [x.sparse for x in info.of_role(Role.MATRIX) if x.sparse is not None]
    computing = {name for name in info.of_node if info.computes(name)}
    main = filter(None, map(info.layer_of, computing))
    moving = info.of_role(Role.REFORMAT)
    reformats = tuple(layer for layer in moving if not layer.takes_no_time)
    return Summary(
        layers=len(info.working),
        shares=_shares(info) if info.detailed else (),
        others=dict(others.most_common()),
        nodes=len(computing),
        fused_nodes=sum(len(computing.intersection(layer.onnx_nodes)) > 1 for layer in main),
        reformats=reformats,
        views=len(moving) - len(reformats),
        reformat_ms=known_sum(x.time_ms for x in reformats),
        reformat_bytes=known_sum(x.bytes_moved for x in reformats),
        hidden=info.hidden,
        left_high=left_high(edges),
        changes=tuple(edge for edge in edges if edge.changes),
        unread=unread_dequantizers(info),
        sparse=sum(told) if told else None,
        ms=known_sum(x.time_ms for x in info.layers),
        warnings=sum(e.kind in (EventKind.WARNING, EventKind.PRECISION) for e in info.events),
    )


GATE_NAMES: tuple[str, ...] = (
    *(f"{p}{kind}_share" for kind in ("", "_mac", "_time") for p in _GATED),
    *("fused_share", "reformat_count", "layer_count", "precision_changes", "left_high"),
    *("unread_qdq", "sparse_share", "total_ms", "warning_count", "mismatch_count", "unknown_count"),
)
"""What the setting `fail_on` may name. Shares are of the matrix products: by number, by
multiply-accumulates, by time. TF32 counts as FP32."""


def gate_values(summary: Summary, audit: Audit | None = None) -> dict[str, float | None]:
    """The value of every name in GATE_NAMES; None for what the file does not say, such as shares
    where the precision of a product is unknown."""
    shares = () if unknown_products(summary) else summary.shares
    kinds: tuple[tuple[str, list[float | None]], ...] = (
        ("", [s.products for s in shares]),
        ("_mac", [s.macs for s in shares]),
        ("_time", [s.ms for s in shares]),
    )
    values: dict[str, float | None] = {}
    for precision in _GATED:
        names = (precision, "tf32") if precision == "fp32" else (precision,)
        for kind, numbers in kinds:
            chosen = [n for s, n in zip(shares, numbers, strict=True) if s.precision in names]
            known = None not in numbers
            values[f"{precision}{kind}_share"] = (
                _ratio(known_sum(chosen) or 0, known_sum(numbers)) if known else None
            )
    products = sum(s.products for s in summary.shares)
    return values | {
        "fused_share": _ratio(summary.fused_nodes, summary.nodes),
        "reformat_count": len(summary.reformats),
        "layer_count": summary.layers,
        "precision_changes": len(summary.changes),
        "left_high": len(summary.left_high),
        "unread_qdq": len(summary.unread),
        "sparse_share": None if summary.sparse is None else _ratio(summary.sparse, products),
        "total_ms": summary.ms,
        "warning_count": summary.warnings,
        "mismatch_count": None if audit is None else len(audit.mismatches),
        "unknown_count": None if audit is None else len(audit.unknown),
    }


def unknown_products(summary: Summary) -> str:
    """Why no share of the products can be told, in words; "" where it can."""
    unknown = sum(s.products for s in summary.shares if not s.precision)
    parts = [f"the precision of {counted(unknown, 'product')} is unknown"] if unknown else []
    if summary.hidden:
        opaque = counted(summary.hidden, "layer")
        parts.append(f"{opaque} may hold products that the file does not list")
    return "; ".join(parts)


def _shares(info: EngineInfo) -> tuple[Share, ...]:
    """Their work is that of the model's products, where the file names them."""
    products = info.of_role(Role.MATRIX)
    nodes = [node for node in info.nodes if node.op_type in QUANTIZABLE_OPS]
    work: Sequence[tuple[EngineLayer | None, float | None]] = (
        [(info.layer_of(node.name), node.macs) for node in nodes]
        if nodes
        else [(layer, layer.macs) for layer in products]
    )
    known = all(macs is not None for layer, macs in work if layer)
    found = {layer.precision for layer in products}
    order = [p for p in PRECISIONS if p in found] + sorted(found.difference(PRECISIONS))
    return tuple(
        Share(
            precision=p,
            products=sum(layer.precision == p for layer in products),
            macs=sum((m or 0.0 for x, m in work if x and x.precision == p), 0.0) if known else None,
            ms=known_sum(layer.time_ms for layer in products if layer.precision == p),
        )
        for p in order
    )


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class Bound:
    """What bounds a product, by the roofline model (Williams, Waterman, Patterson, 2009): a layer
    takes at least the time that its products need at the GPU's peak, and that its bytes need at the
    bandwidth of the memory.

    Attributes:
        layer: its name.
        intensity: operations (two for each multiply-accumulate) for each byte moved.
        limit: what takes longer at the GPU's peak; None where the GPU is not known.
        bound_ms: the least time that it can take; None likewise.
        reached: that in its time, at most 1 unless a cache holds what it reads; None where one of
            the two is not known.
    """

    layer: str
    intensity: float
    limit: Literal["compute", "memory"] | None = None
    bound_ms: float | None = None
    reached: float | None = None


def bounds(info: EngineInfo) -> tuple[Bound, ...]:
    """The bound of every product whose work and bytes are known, in execution order."""
    worked = ((x, x.macs, x.bytes_moved) for x in info.layers)
    return tuple(_bound(info, x, macs, moved) for x, macs, moved in worked if macs and moved)


def _bound(info: EngineInfo, layer: EngineLayer, macs: float, moved: float) -> Bound:
    intensity = 2 * macs / moved
    bandwidth = info.device.bandwidth_gb_s if info.device else None
    peak = info.device.peak_macs(layer.precision) if info.device else None
    if peak is None or bandwidth is None:
        return Bound(layer.name, intensity)
    compute, memory = 1e3 * macs / peak, 1e3 * moved / (bandwidth * 1e9)
    least = max(compute, memory)
    reached = least / layer.time_ms if layer.time_ms else None
    return Bound(
        layer.name, intensity, "compute" if compute >= memory else "memory", least, reached
    )
