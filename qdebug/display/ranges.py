"""What a person sees of dynamic ranges: a table, text histograms, coverage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from qdebug.display.blocks import Block, Column, Line, Table, table_of
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
    tensors = counted(len(result.tensors), "tensor")
    samples = counted(result.calibration.samples, "sample")
    shown = result.tensors[:top]
    hidden = len(result.tensors) - len(shown)
    more = f"; {option('top', str(len(result.tensors)))} shows {hidden} more" if hidden else ""
    blocks: list[Block] = [
        Line(f"{name}: ranges of {tensors} over {samples}", "title"),
        Line(f"{ORDERS[result.sort].title}{more}", "muted"),
        _tensors(result, shown),
        *(Line(note, "note") for note in _notes(result)),
    ]
    if detailed:
        for tensor in shown:
            blocks += _detail(tensor)
    over = ""
    if result.coverage.tensors < len(result.tensors):
        over = f"of the {counted(result.coverage.tensors, 'tensor')} that INT8 layers read"
    return [*blocks, *coverage_blocks(result.coverage.coverage, over)]


def _tensors(result: RangesResult, shown: Sequence[TensorDynamics]) -> Table:
    # Where all of it is of interest the growth takes the place of a percentile.
    middle = (
        (Column("growth", "number"), lambda t: number(t.growth, 3))
        if result.sort == "growth"
        else (Column("|x| 99.9%", "number"), lambda t: number(t.percentile(99.9), 3))
    )
    return table_of(
        shown,
        [
            (Column("tensor", "name"), lambda t: t.name),
            (Column("low", "number"), lambda t: number(t.low, 3)),
            (Column("high", "number"), lambda t: number(t.high, 3)),
            middle,
            (Column("std", "number"), lambda t: number(t.std, 3)),
            (
                Column("amax/rms", "number"),
                lambda t: _known(t.crest_factor, f"{t.crest_factor:.1f}"),
            ),
            (Column("zeros", "number"), lambda t: _known(t.zero_share, share(t.zero_share))),
            (Column("INT8", "number"), _readers),
        ],
        lambda t: "worst" if _broken(t) else "",
    )


def _known(value: float, text: str) -> str:
    return "–" if math.isnan(value) else text


def _readers(tensor: TensorDynamics) -> str:
    """How many layers read it in INT8."""
    return "?" if tensor.read_by is None else str(len(tensor.read_by) or "–")


def _notes(result: RangesResult) -> Iterator[str]:
    yield from map(printable, result.notes)
    broken = sorted(filter(_broken, result.tensors), key=lambda t: t.position)
    if broken:
        first = broken[0]
        yield (
            f"NaN or Inf in {counted(len(broken), 'tensor')}, first in {printable(first.name)} "
            f"({first.nan_count} NaN, {first.inf_count} Inf); they are left out of the ranges."
        )
    clipping = [t for t in result.tensors if _clipped(t)]
    if clipping:
        worst = max(clipping, key=_clipped)
        yield (
            f"The run's own ranges clip values of {counted(len(clipping), 'tensor')}, most in "
            f"{printable(worst.name)} ({share(_clipped(worst))})."
        )


def _broken(tensor: TensorDynamics) -> bool:
    return tensor.nan_count + tensor.inf_count > 0


def _clipped(tensor: TensorDynamics) -> float:
    """The share of its values beyond the range that the run used."""
    return tensor.planned.clipped_fraction if tensor.planned else 0.0


def _detail(tensor: TensorDynamics) -> Iterator[Block]:
    """Name, histogram and calibrators of one tensor."""
    yield Line()
    yield Line(printable(tensor.name), "title")
    text = (
        f"{tensor.count} values of {counted(tensor.samples, 'sample')}, std "
        f"{number(tensor.std, 3)}, growth {number(tensor.growth, 3)}"
    )
    if _broken(tensor):
        text += f", {tensor.nan_count} NaN, {tensor.inf_count} Inf"
    yield Line(text, "muted")
    if tensor.read_by:
        first = [printable(n) for n in tensor.read_by[:_MOST_READERS]]
        names = ", ".join(shorten_names(first, _LONGEST_LAYER))
        more = len(tensor.read_by) - len(first)
        yield Line(f"read in INT8 by {names}{f' and {more} more' if more else ''}", "muted")
    if not tensor.calibrators:
        yield Line("no finite values but 0: nothing to show", indent=2)
        return
    yield _histogram(tensor, tensor.calibrators)
    yield table_of(
        tensor.calibrators,
        [
            (Column("calibrator"), lambda m: m.method),
            (Column("amax", "number"), lambda m: number(m.amax, 4)),
            (Column("INT8 step", "number"), lambda m: number(m.scale, 3)),
            (Column("clipped", "number"), lambda m: share(m.clipped_fraction)),
            (Column("rounded to 0", "number"), lambda m: share(m.zeroed_fraction)),
        ],
    )


def _histogram(tensor: TensorDynamics, marks: Sequence[Mark]) -> Table:
    """The values by octaves of |x|, negative ones to the left, with the calibrators' amax."""
    octaves = tensor.octaves or ()
    rows = [
        (number(o.low, 3), o.negative, o.positive, _marked(marks, o.low))
        for o in octaves[:_OCTAVES]
    ]
    below, above = (
        sum(o.negative for o in octaves[_OCTAVES:]),
        sum(o.positive for o in octaves[_OCTAVES:]),
    )
    if below + above:
        rows.append(("smaller", below, above, ""))
    signs = [any(row[k] for row in rows) for k in (1, 2)]
    width = _NARROW if all(signs) else _WIDE
    most = max([tensor.zeros, *(max(row[1], row[2]) for row in rows)])
    total = tensor.zeros + sum(o.negative + o.positive for o in octaves)

    def bars(*counts: int) -> list[str]:
        return [
            "█" * (math.ceil(width * math.log1p(n) / math.log1p(most)) if n else 0)
            for n, there in zip(counts, signs, strict=True)
            if there
        ]

    cells = [(label, *bars(n, p), share((n + p) / total), note) for label, n, p, note in rows]
    if tensor.zeros:
        cells.append(("zero", *bars(0, 0), share(tensor.zeros / total), ""))
    kinds = (Column("negative", "number"), Column("positive"))
    return Table(
        (
            Column("|x| from", "number"),
            *(column for column, there in zip(kinds, signs, strict=True) if there),
            Column("share", "number"),
            Column("(bars: log of the count)"),
        ),
        tuple(cells),
    )


def _marked(marks: Sequence[Mark], low: float) -> str:
    """The calibrators whose amax lies in [low, 2 low)."""
    names = [m.method.replace("percentile:", "p") for m in marks if low <= m.amax < 2 * low]
    return f"< {' '.join(names)}" if names else ""
