"""An engine in numbers: how much of it runs in which precision, what is fused, what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from qdebug.engine_info.audit import Audit
from qdebug.engine_info.flow import (
    Edge,
    left_high,
    product_edges,
    unread_dequantizers,
)
from qdebug.engine_info.layers import (
    EngineInfo,
    EngineLayer,
    EventKind,
    Role,
)
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.wording import counted

PRECISIONS = ("int8", "fp8", "int4", "fp4", "int16", "fp16", "bf16", "tf32", "fp32")


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
    products = [layer for layer in info.layers if layer.role is Role.MATRIX]
    edges = product_edges(info) if info.detailed else ()
    others = Counter(x.precision for x in info.layers if x.role is Role.OTHER and x.precision)
    told = [layer.sparse for layer in products if layer.sparse is not None]
    computing = {name for name in info.of_node if info.computes(name)}
    moving = [layer for layer in info.layers if layer.role is Role.REFORMAT]
    reformats = tuple(layer for layer in moving if not layer.takes_no_time)
    moved = [x.bytes_moved for x in reformats if x.bytes_moved is not None]
    return Summary(
        layers=len(info.working),
        shares=_shares(info, products) if info.detailed else (),
        others=dict(others.most_common()),
        nodes=len(computing),
        fused_nodes=sum(_is_fused(info, node, computing) for node in computing),
        reformats=reformats,
        views=len(moving) - len(reformats),
        reformat_ms=_total(reformats),
        reformat_bytes=sum(moved) if moved else None,
        hidden=info.hidden,
        left_high=left_high(edges),
        changes=tuple(edge for edge in edges if edge.changes),
        unread=unread_dequantizers(info),
        sparse=sum(told) if told else None,
        ms=_total(info.layers),
        warnings=sum(e.kind in (EventKind.WARNING, EventKind.PRECISION) for e in info.events),
    )


GATE_NAMES: tuple[str, ...] = (
    *(f"{p}_share" for p in ("int8", "fp16", "fp32")),
    *(f"{p}_mac_share" for p in ("int8", "fp16", "fp32")),
    *(f"{p}_time_share" for p in ("int8", "fp16", "fp32")),
    *("fused_share", "reformat_count", "layer_count", "precision_changes", "left_high"),
    *("unread_qdq", "sparse_share", "total_ms", "warning_count", "mismatch_count", "unknown_count"),
)
"""What the setting `fail_on` may name. Shares are of the matrix products: by number, by
multiply-accumulates, by time. TF32 counts as FP32."""


def gate_values(summary: Summary, audit: Audit | None = None) -> dict[str, float | None]:
    """The value of every name in GATE_NAMES; None for what the file does not say, such as shares
    where the precision of a product is unknown."""
    shares = summary.shares
    products = sum(s.products for s in shares)
    told = not unknown_products(summary)
    values: dict[str, float | None] = {}
    for precision in ("int8", "fp16", "fp32"):
        names = (precision, "tf32") if precision == "fp32" else (precision,)
        chosen = [s for s in shares if s.precision in names]
        count = sum(s.products for s in chosen)
        values[f"{precision}_share"] = _ratio(count, products) if told else None
        for key, numbers, all_numbers in (
            ("mac", [s.macs for s in chosen], [s.macs for s in shares]),
            ("time", [s.ms for s in chosen], [s.ms for s in shares]),
        ):
            known = told and all(n is not None for n in all_numbers) and bool(all_numbers)
            values[f"{precision}_{key}_share"] = (
                _ratio(sum(n or 0 for n in numbers), sum(n or 0 for n in all_numbers))
                if known
                else None
            )
    values |= {
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
    return values


def unknown_products(summary: Summary) -> str:
    """Why no share of the products can be told, in words; "" where it can."""
    unknown = sum(s.products for s in summary.shares if not s.precision)
    parts = [f"the precision of {counted(unknown, 'product')} is unknown"] if unknown else []
    if summary.hidden:
        opaque = counted(summary.hidden, "layer")
        parts.append(f"{opaque} may hold products that the file does not list")
    return "; ".join(parts)


def _shares(info: EngineInfo, products: list[EngineLayer]) -> tuple[Share, ...]:
    work: Counter[str] = Counter()
    named = any(node.op_type in QUANTIZABLE_OPS for node in info.nodes)
    told = named or all(layer.macs is not None for layer in products)
    for node in info.nodes:
        layer = info.layer_of(node.name) if node.op_type in QUANTIZABLE_OPS else None
        if layer is not None:
            told = told and node.macs is not None
            work[layer.precision] += node.macs or 0  # type: ignore[assignment]
    for layer in () if named else products:
        work[layer.precision] += layer.macs or 0  # type: ignore[assignment]
    found = {layer.precision for layer in products}
    order = [p for p in PRECISIONS if p in found] + sorted(found.difference(PRECISIONS))
    return tuple(
        Share(
            precision=p,
            products=sum(layer.precision == p for layer in products),
            macs=float(work[p]) if told else None,
            ms=_total(layer for layer in products if layer.precision == p),
        )
        for p in order
    )


def _is_fused(info: EngineInfo, node: str, computing: set[str]) -> bool:
    layer = info.layer_of(node)
    return layer is not None and len(computing.intersection(layer.onnx_nodes)) > 1


def _total(layers: object) -> float | None:
    times = [layer.time_ms for layer in layers if layer.time_ms is not None]  # type: ignore[attr-defined]
    return sum(times) if times else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
