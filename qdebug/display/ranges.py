"""What a person sees of dynamic ranges: a table, text histograms, coverage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from qdebug.display.blocks import (
    Block,
    Cells,
    Column,
    Line,
    Parts,
    T,
    Table,
    flat,
    number_column,
    table_of,
)
from qdebug.display.calibrate import coverage_blocks
from qdebug.display.names import shorten_names
from qdebug.results.orders import ORDERS
from qdebug.results.ranges import Mark, RangesResult, TensorDynamics
from qdebug.results.words import number, share
from qdebug.wording import counted, option, printable

_TOP = 20
_OCTAVES = 14
"""Octaves shown; what is smaller shares one row. INT8 has 7 below its range."""
_WIDE, _NARROW = 26, 12
"""Characters of a bar: where there are no negative values, and where there are."""
_LONGEST_LAYER = 60
_MOST_READERS = 3


def view(result: RangesResult, *, top: int = _TOP, detailed: bool = False) -> list[Block]:
    """The first `top` tensors in a table, their histograms when `detailed`, and coverage."""
    name = printable(result.model.name or result.source.path)
    tensors, read = counted(result.tensors, "tensor"), result.coverage.tensors
    samples = counted(result.calibration.samples, "sample")
    shown = result.tensors[:top]
    hidden = len(result.tensors) - len(shown)
    more = f"; {option('top', str(len(result.tensors)))} shows {hidden} more" if hidden else ""
    over = f"of the {counted(read, 'tensor')} that INT8 layers read"
    return flat(
        Line(f"{name}: ranges of {tensors} over {samples}", "title"),
        Line(f"{ORDERS[result.sort].title}{more}", "muted"),
        _tensors(result, shown),
        (Line(note, "note") for note in _notes(result)),
        map(_detail, shown if detailed else ()),
        coverage_blocks(result.coverage.coverage, over if read < len(result.tensors) else ""),
    )


def _tensors(result: RangesResult, shown: Sequence[TensorDynamics]) -> Table:
    # Where all of it is of interest the growth takes the place of a percentile.
    growth: Cells[TensorDynamics] = number_column("growth", lambda t: t.growth, digits=3)
    percentile: Cells[TensorDynamics] = number_column(
        "|x| 99.9%", lambda t: t.percentile(99.9), digits=3
    )
    return table_of(
        shown,
        [
            (Column("tensor", "name"), lambda t: t.name),
            number_column("low", lambda t: t.low, digits=3),
            number_column("high", lambda t: t.high, digits=3),
            growth if result.sort == "growth" else percentile,
            number_column("std", lambda t: t.std, digits=3),
            number_column("amax/rms", lambda t: _known(t.crest_factor), "tenths"),
            number_column("zeros", lambda t: _known(t.zero_share), "share"),
            (
                Column("INT8", "number"),  # how many layers read it in INT8
                lambda t: "?" if t.read_by is None else str(len(t.read_by) or "–"),
            ),
        ],
        lambda t: "worst" if _broken(t) else "",
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _notes(result: RangesResult) -> Iterator[str]:
    yield from map(printable, result.notes)
    broken = sorted(filter(_broken, result.tensors), key=lambda t: t.position)
    for first in broken[:1]:
        yield (
            f"NaN or Inf in {counted(broken, 'tensor')}, first in {printable(first.name)} "
            f"({_odd(first)}); they are left out of the ranges."
        )
    if clipping := [t for t in result.tensors if _clipped(t)]:
        worst = max(clipping, key=_clipped)
        yield (
            f"The run's own ranges clip values of {counted(clipping, 'tensor')}, most in "
            f"{printable(worst.name)} ({share(_clipped(worst))})."
        )


def _odd(tensor: TensorDynamics) -> str:
    return f"{tensor.nan_count} NaN, {tensor.inf_count} Inf"


def _broken(tensor: TensorDynamics) -> bool:
    return tensor.nan_count + tensor.inf_count > 0


def _clipped(tensor: TensorDynamics) -> float:
    """The share of its values beyond the range that the run used."""
    return tensor.planned.clipped_fraction if tensor.planned else 0.0


def _detail(tensor: TensorDynamics) -> Parts:
    """Name, histogram and calibrators of one tensor."""
    readers = tensor.read_by or ()
    first = [printable(n) for n in readers[:_MOST_READERS]]
    more = len(readers) - len(first)
    names = f"{', '.join(shorten_names(first, _LONGEST_LAYER))}{f' and {more} more' * bool(more)}"
    odd = f", {_odd(tensor)}" if _broken(tensor) else ""
    calibrators = table_of(
        tensor.calibrators or (),
        [
            (Column("calibrator"), lambda m: m.method),
            number_column("amax", lambda m: m.amax),
            number_column("INT8 step", lambda m: m.scale, digits=3),
            number_column("clipped", lambda m: m.clipped_fraction, "share"),
            number_column("rounded to 0", lambda m: m.zeroed_fraction, "share"),
        ],
    )
    return (
        Line(),
        Line(printable(tensor.name), "title"),
        Line(
            f"{tensor.count} values of {counted(tensor.samples, 'sample')}, std "
            f"{number(tensor.std, 3)}, growth {number(tensor.growth, 3)}{odd}",
            "muted",
        ),
        Line(f"read in INT8 by {names}", "muted") if readers else None,
        (_histogram(tensor, tensor.calibrators), calibrators)
        if tensor.calibrators
        else Line("no finite values but 0: nothing to show", indent=2),
    )


def _histogram(tensor: TensorDynamics, marks: Sequence[Mark]) -> Table:
    """The values by octaves of |x|, negative ones to the left, with the calibrators' amax."""
    octaves = tensor.octaves or ()
    shown, smaller = octaves[:_OCTAVES], octaves[_OCTAVES:]
    rows = [(number(o.low, 3), o.negative, o.positive, _marked(marks, o.low)) for o in shown]
    below, above = sum(o.negative for o in smaller), sum(o.positive for o in smaller)
    if below + above:
        rows.append(("smaller", below, above, ""))
    signs = [any(row[k] for row in rows) for k in (1, 2)]
    width = _NARROW if all(signs) else _WIDE
    most = max([tensor.zeros, *(max(row[1], row[2]) for row in rows)])
    total = tensor.zeros + sum(o.negative + o.positive for o in octaves)

    def bar(count: int) -> str:
        return "█" * (math.ceil(width * math.log1p(count) / math.log1p(most)) if count else 0)

    def sides(*pair: T) -> list[T]:
        return [one for one, there in zip(pair, signs, strict=True) if there]

    cells = [
        (label, *map(bar, sides(n, p)), share((n + p) / total), note) for label, n, p, note in rows
    ]
    if tensor.zeros:
        cells.append(("zero", *sides("", ""), share(tensor.zeros / total), ""))
    columns = sides(Column("negative", "number"), Column("positive"))
    marked = Column("(bars: log of the count)")
    return Table(
        (Column("|x| from", "number"), *columns, Column("share", "number"), marked), tuple(cells)
    )


def _marked(marks: Sequence[Mark], low: float) -> str:
    """The calibrators whose amax lies in [low, 2 low)."""
    names = [m.method.replace("percentile:", "p") for m in marks if low <= m.amax < 2 * low]
    return f"< {' '.join(names)}" if names else ""
