"""What a person sees of two runs: where they diverge, then the tensors from there on."""

from __future__ import annotations

import math

from qdebug.display.blocks import (
    Block,
    Cells,
    Column,
    Line,
    Parts,
    conditions,
    facts,
    flat,
    notes,
    number_column,
    table_of,
)
from qdebug.results.diff import DiffResult, RoleDifference, TensorDifference
from qdebug.results.words import in_decibels
from qdebug.wording import counted, option, printable


def view(result: DiffResult, *, top: int = 10) -> list[Block]:
    """The difference; of each role the `top` tensors from the first one to diverge on."""
    names = zip(("first run", "second run"), result.runs, strict=True)
    shown = next((r for r in reversed(result.roles) if not r.is_equal), None)
    verdict = Line("PASSED", "good") if result.passed else Line("FAILED", "bad")
    return flat(
        Line(f"{result.model.name}: two runs, {counted(result.samples, 'sample')}", "title"),
        facts((name, f"{run.path}: {run.description}") for name, run in names),
        Line(),
        map(_of_role, result.roles),
        (Line(), _table(shown, top)) if shown is not None else None,
        notes(result.notes),
        (conditions(result.conditions), verdict) if result.conditions else None,
    )


def _of_role(role: RoleDifference) -> Parts:
    """Whether the runs agree in a role, and where they diverge."""
    count, first = counted(role.tensors, "tensor"), role.first_to_diverge
    name = role.words[0].upper() + role.words[1:]
    if role.is_equal:
        return Line(f"{name}: {count}, equal bit for bit.", "good")
    if first is None:
        lowest = in_decibels(role.lowest_db)
        return Line(f"{name}: {count}, equal up to rounding ({lowest} or more).", "good")
    where = printable(first.where)
    outputs = [t for t in role.tensors if t.tensor in role.outputs]
    told = "; ".join(f"{printable(t.tensor)} {_against(t)}" for t in outputs)
    return (
        Line(f"{name}: the runs diverge first at {where}: {_apart(role, first)}.", "bad"),
        Line(f"At the outputs: {told}.", indent=2) if outputs else None,
    )


def _apart(role: RoleDifference, first: TensorDifference) -> str:
    before = role.inputs_sqnr_db
    if before is None:
        return _against(first)
    agrees = "is equal" if before == math.inf else f"agrees to {in_decibels(before)}"
    return f"{_against(first)}; what it reads {agrees}"


def _against(tensor: TensorDifference) -> str:
    """How far apart, beside what quantization costs there."""
    metrics = tensor.metrics
    if not metrics.is_finite:
        return f"{metrics.nan_count} NaN, {metrics.inf_count} Inf"
    cost = tensor.quantization_sqnr_db
    beside = "" if cost is None else f" (quantization by itself: {in_decibels(cost)})"
    return f"SQNR {in_decibels(metrics.sqnr_db)}{beside}"


def _table(role: RoleDifference, top: int) -> Parts:
    """The tensors in execution order, from just before the first one to diverge."""
    names = [t.tensor for t in role.tensors]
    start = max(0, names.index(role.first) - 1) if role.first else 0
    listed = role.tensors[start : start + top]
    left = len(role.tensors) - len(listed)
    more = f" ({left} more: {option('top', str(len(role.tensors)))})" if left else ""
    cost: Cells[TensorDifference] = number_column(
        "quantization dB", lambda t: t.quantization_sqnr_db, "dB"
    )
    table = table_of(
        listed,
        [
            (Column("tensor", "name"), lambda t: t.tensor),
            number_column("SQNR dB", lambda t: t.metrics.sqnr_db, "dB"),
            cost if any(t.quantization_sqnr_db is not None for t in listed) else None,
            number_column("largest", lambda t: t.metrics.max_abs_err, digits=3, drop=1),
        ],
        lambda t: "bad" if t.tensor == role.first else "",
    )
    return Line(f"Tensors of {role.words}, in execution order{more}", "strong"), table
