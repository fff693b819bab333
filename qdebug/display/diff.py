"""What a person sees of two runs: where they diverge, then the tensors from there on."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qdebug.display.blocks import Block, Column, Facts, Line, conditions, notes, table_of
from qdebug.results.diff import DiffResult, RoleDifference, TensorDifference
from qdebug.results.words import decibel, in_decibels, number
from qdebug.wording import counted, option, printable


def view(result: DiffResult, *, top: int) -> list[Block]:
    """The difference; of each role the `top` tensors from the first one to diverge on."""
    blocks: list[Block] = [
        Line(f"{result.model.name}: two runs, {counted(len(result.samples), 'sample')}", "title"),
        Facts(
            tuple(
                (name, f"{run.path}: {run.description}")
                for name, run in zip(("first run", "second run"), result.runs, strict=True)
            )
        ),
        Line(),
    ]
    for role in result.roles:
        blocks += _of_role(role)
    shown = next((r for r in reversed(result.roles) if not r.is_equal), None)
    if shown is not None:
        blocks += [Line(), *_table(shown, top)]
    blocks += notes(result.notes)
    if result.conditions:
        blocks.append(conditions(result.conditions))
        passed = result.passed
        blocks.append(Line("PASSED" if passed else "FAILED", "good" if passed else "bad"))
    return blocks


def _of_role(role: RoleDifference) -> Iterator[Line]:
    """Whether the runs agree in a role, and where they diverge."""
    name, count = role.words, counted(len(role.tensors), "tensor")
    name = name[0].upper() + name[1:]
    first = role.first_to_diverge
    if role.is_equal:
        yield Line(f"{name}: {count}, equal bit for bit.", "good")
    elif first is None:
        yield Line(
            f"{name}: {count}, equal up to rounding ({in_decibels(role.lowest_db)} or more).",
            "good",
        )
    else:
        where = printable(first.where)
        yield Line(f"{name}: the runs diverge first at {where}: {_apart(role, first)}.", "bad")
    outputs = [t for t in role.tensors if t.tensor in role.outputs]
    if first is not None and outputs:
        told = "; ".join(f"{printable(t.tensor)} {_against(t)}" for t in outputs)
        yield Line(f"At the outputs: {told}.", indent=2)


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


def _table(role: RoleDifference, top: int) -> Iterator[Block]:
    """The tensors in execution order, from just before the first one to diverge."""
    names = [t.tensor for t in role.tensors]
    start = max(0, names.index(role.first) - 1) if role.first else 0
    listed = role.tensors[start : start + top]
    left = len(role.tensors) - len(listed)
    more = f" ({left} more: {option('top', str(len(role.tensors)))})" if left else ""
    yield Line(f"Tensors of {role.words}, in execution order{more}", "strong")
    columns = [
        (Column("tensor", "name"), lambda t: t.tensor),
        (Column("SQNR dB", "number"), lambda t: decibel(t.metrics.sqnr_db)),
        (Column("largest", "number", drop=1), lambda t: number(t.metrics.max_abs_err, 3)),
    ]
    if any(t.quantization_sqnr_db is not None for t in listed):
        cost = (
            Column("quantization dB", "number"),
            lambda t: decibel(t.quantization_sqnr_db),
        )
        columns.insert(2, cost)
    yield table_of(listed, columns, lambda t: "bad" if t.tensor == role.first else "")
