"""What `inspect` found; its fields are the JSON of `inspect`, schema qdebug.inspect/1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from qdebug.engine_info.audit import Audit
from qdebug.engine_info.diff import Diff
from qdebug.engine_info.layers import EngineInfo
from qdebug.engine_info.lints import Lint, lint
from qdebug.engine_info.measurements import Device
from qdebug.engine_info.summary import (
    Bound,
    Group,
    Share,
    Summary,
    bounds,
    by_precision,
    by_tactic,
    by_type,
    gate_values,
    unknown_products,
)
from qdebug.result import FailedStage, Hidden, Inline, Json, MaybeText, Result, in_json
from qdebug.results.compare import GateVerdict
from qdebug.results.conditions import Checked, Condition, check_condition


@dataclass(frozen=True)
class EngineDiff:
    """Another engine of the same model, and what differs.

    Attributes:
        other: its file.
        values: as those of the inspected engine, by gate name.
        by_precision: all its layers, as those of the inspected engine.
        device: the GPU that it was built or measured on, where a file names it.
    """

    other: str
    values: Mapping[str, float | None]
    diff: Inline[Diff]
    by_precision: tuple[Group, ...] = ()
    device: Device | None = None


@dataclass(frozen=True)
class PrecisionChange:
    """Two matrix products of different precision, one of which feeds the other."""

    writer: Annotated[str, Json(key="from")]
    from_precision: MaybeText
    reader: Annotated[str, Json(key="to")]
    to_precision: MaybeText


@dataclass(frozen=True)
class UnreadPair:
    """A DequantizeLinear node that no quantized product reads, and the layer that computes it."""

    node: str
    layer: str


@dataclass(frozen=True)
class Reformats:
    """The layers of an engine that only move or convert data.

    Attributes:
        executed: how many take time or change the type.
        views: how many are another view of the same memory (NoOp), for which nothing is executed.
        ms: time of those executed; null where it was not measured.
        bytes: what they read and write; null where no size is known.
    """

    executed: int
    views: int
    ms: float | None
    bytes: float | None


@dataclass(frozen=True, repr=False, kw_only=True)
class InspectResult(Result):
    """What a file says about an engine, and whether that is as expected.

    Attributes:
        file: that was read.
        values: by gate name; null for what the file does not say.
        plan: the plan's file, "" without an audit.
        audit: requested vs. built precision; null without a plan.
        diff: another engine, null where none was given.
        failed: stages that ended in an error after the rest, such as writing a file or the page.
    """

    SCHEMA: ClassVar[str] = "qdebug.inspect/1"
    ROWS: ClassVar[str] = "engine_layers"

    file: str
    info: Inline[EngineInfo]
    summary: Hidden[Summary]
    values: Mapping[str, float | None]
    plan: MaybeText = ""
    audit: Audit | None = None
    diff: EngineDiff | None = None
    conditions: Hidden[tuple[Checked, ...]] = ()
    failed: tuple[FailedStage, ...] = ()

    @property
    def engine_layers(self) -> Sequence[object]:
        """The rows of the table."""
        return self.info.layers

    @property
    @in_json
    def verdict(self) -> GateVerdict:
        """Whether the engine is as expected."""
        return GateVerdict(self.passed if self.judged else None, self.conditions)

    @property
    @in_json
    def products(self) -> tuple[Share, ...]:
        """The matrix products by precision."""
        return self.summary.shares

    @property
    @in_json
    def opaque(self) -> tuple[str, ...]:
        """Layers that may hold matrix products, and do not say in which precision: as long as there
        are any, no share of the products is told."""
        return tuple(layer.name for layer in self.summary.hidden)

    @property
    @in_json
    def reformats(self) -> Reformats:
        """The layers that only move or convert data."""
        found = self.summary
        return Reformats(len(found.reformats), found.views, found.reformat_ms, found.reformat_bytes)

    @property
    @in_json
    def by_precision(self) -> tuple[Group, ...]:
        """All layers that work, by the precision that they compute in."""
        return by_precision(self.info)

    @property
    @in_json
    def by_type(self) -> tuple[Group, ...]:
        """All layers that work, by their type in TensorRT's words."""
        return by_type(self.info)

    @property
    @in_json
    def by_tactic(self) -> tuple[Group, ...]:
        """The layers whose kernel is named, by the kernel."""
        return by_tactic(self.info)

    @property
    @in_json
    def lints(self) -> tuple[Lint, ...]:
        """What costs time, and what to do about it; most time first."""
        return lint(self.info)

    @property
    @in_json
    def bounds(self) -> tuple[Bound, ...]:
        """What bounds the products whose work and bytes are known."""
        return bounds(self.info)

    @property
    @in_json
    def others(self) -> Mapping[str, int]:
        """How many other computing layers run in each precision."""
        return self.summary.others

    @property
    @in_json
    def left_high(self) -> tuple[str, ...]:
        """Products in floating point between quantized ones."""
        return tuple(layer.name for layer in self.summary.left_high)

    @property
    @in_json
    def precision_changes(self) -> tuple[PrecisionChange, ...]:
        """Products whose precision differs from that of one that feeds them."""
        return tuple(
            PrecisionChange(e.writer.name, e.writer.precision, e.reader.name, e.reader.precision)
            for e in self.summary.changes
        )

    @property
    @in_json
    def unread_qdq(self) -> tuple[UnreadPair, ...]:
        """Q/DQ pairs that no quantized product reads."""
        return tuple(UnreadPair(node, x.name) for node, x in self.summary.unread.items())

    @property
    def judged(self) -> bool:
        """Whether there was anything to check."""
        return self.audit is not None or bool(self.conditions)

    @property
    def passed(self) -> bool:
        """Every layer was built as planned, and every condition holds."""
        as_planned = self.audit is None or self.audit.passed
        return as_planned and all(c.passed for c in self.conditions)

    def headline(self) -> str:
        """The file, its kind, and how many layers run in which precision."""
        shares = ", ".join(f"{s.products} {s.precision or 'unknown'}" for s in self.products)
        judged = f", {'passed' if self.passed else 'FAILED'}" if self.judged else ""
        worst = self.lints[:1] if self.summary.ms is not None else ()
        most = "".join(f"; {x.title} take {x.ms:.3g} ms" for x in worst if x.ms)
        return (
            f"{self.file} ({self.info.source}): {self.summary.layers} layers{self._times()}, "
            f"matrix products {shares or 'of unknown precision'}{most}{judged}"
        )

    def _times(self) -> str:
        total = self.summary.ms
        if not total:
            return ""
        parts = [
            f"{100 * (g.share or 0):.0f} % in {g.name.upper() or 'unknown'}"
            for g in self.by_precision
            if g.ms
        ]
        return f" in {total:.3g} ms ({', '.join(parts)})"


def inspection_of(
    file: str,
    info: EngineInfo,
    summary: Summary,
    conditions: Sequence[Condition] = (),
    *,
    audit: Audit | None = None,
    plan: str = "",
    diff: EngineDiff | None = None,
) -> InspectResult:
    """Put the findings together and check the conditions; a value that is not known fails them."""
    values = gate_values(summary, audit)
    return InspectResult(
        file=file,
        info=info,
        summary=summary,
        values=values,
        plan=plan,
        audit=audit,
        diff=diff,
        conditions=tuple(
            check_condition(
                condition,
                [values[condition.name]],
                unknown_products(summary)
                if condition.name.endswith("_share") and condition.name not in _OF_OTHERS
                else "",
            )
            for condition in conditions
        ),
    )


_OF_OTHERS = ("fused_share", "sparse_share")
"""Shares that do not depend on the precision of every product."""
