"""The tables of `bisect`: the layers that are pinned, and error against cost."""

from __future__ import annotations

import math

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from qdebug.report.names import shorten_names
from qdebug.report.tables import print_indented, print_table
from qdebug.report.view import decibel, number, printable, share, widest
from qdebug.search.outcome import BisectResult, PinnedLayer
from qdebug.search.pareto import Point
from qdebug.search.problem import Measurement

_SHORTEST_NAME = 18
_LONGEST_OP = 12
_MOST_POINTS = 12


def measured(measurement: Measurement | None) -> str:
    """The value, and whether the target holds with it."""
    if measurement is None:
        return "not evaluated"
    if measurement.failure:
        return f"cannot be run: {printable(measurement.failure)}"
    value = "no value" if measurement.value is None else number(measurement.value, 6)
    return f"{value} {'holds' if measurement.passed else 'FAILS'}"


def layer_table(console: Console, result: BisectResult) -> Table:
    """The pinned layers, each with its evidence."""
    table = Table(box=None, header_style="underline", padding=(0, 1, 0, 0), pad_edge=False)
    op_width = widest([x.op_type for x in result.layers], 2)
    full = [printable(x.name) for x in result.layers]
    width = widest(full, 5)
    cells = {
        "to": [str(x.precision) for x in result.layers],
        "local dB": [decibel(x.local_sqnr_db) for x in result.layers],
        "without it": [_without(x) for x in result.layers],
        "cost": [share(way_share(result, x.cost)) for x in result.layers],
        "why": ["--pin" if x.user_pinned else _label(x) for x in result.layers],
    }
    if console.is_terminal:
        op_width = min(_LONGEST_OP, op_width)
        taken = op_width + 1 + sum(1 + widest(column, len(head)) for head, column in cells.items())
        width = min(max(_SHORTEST_NAME, console.width - taken), width)
    table.add_column("layer", width=width, no_wrap=True)
    table.add_column("op", width=op_width, no_wrap=True)
    for head in cells:
        justify: JustifyMethod = "left" if head in ("to", "why") else "right"
        table.add_column(head, justify=justify, no_wrap=True)
    names = shorten_names(full, width, [x.op_type for x in result.layers])
    for name, layer, row in zip(
        names, result.layers, zip(*cells.values(), strict=True), strict=True
    ):
        table.add_row(Text(name), Text(printable(layer.op_type)), *map(Text, row))
    return table


def _without(layer: PinnedLayer) -> str:
    found = layer.if_unpinned
    if found is None:
        return "–"
    if found.failure or found.value is None:
        return "cannot run"
    return f"{number(found.value, 4)}{' ok' if found.passed else ''}"


def _label(layer: PinnedLayer) -> str:
    return layer.causes[0].label if layer.causes else "–"


def print_points(console: Console, result: BisectResult) -> None:
    """Error against cost: some of the points, the answer, and how to take another one."""
    points, own = (
        result.search.pareto,
        result.selected_point.search if result.selected_point else result.search,
    )
    table = Table(box=None, header_style="underline", padding=(0, 2, 0, 0))
    pinned = "added" if result.pinned_by_plan else "pinned"
    for name in ("#", pinned, "cost", "all outputs dB", result.figure, ""):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    step = max(1, -(-len(points) // _MOST_POINTS))
    shown = 0
    for number_, point in _with_answer(result):
        marks = ["the answer"] if point.pins == own.pins and own.achieved is not None else []
        marks += ["knee"] if point.knee else []
        marks += (
            ["taken"] if result.selected_point and result.selected_point.point == number_ else []
        )
        if not marks and number_ % step != 1 % step:
            continue
        shown += 1
        value = "no value" if point.value is None else number(point.value, 6)
        table.add_row(
            str(number_ or "–"),
            str(len(point.pins)),
            share(way_share(result, point.cost)),
            decibel(math.inf if point.noise == 0 else -10 * math.log10(point.noise)),
            f"{value} {'holds' if point.passed else 'FAILS'}",
            Text(", ".join(marks), style="bold"),
        )
    some = f", {shown} of {len(points)} points" if shown < len(points) else ""
    console.print(Text(f"Error against cost, of all that was evaluated{some}", style="bold"))
    print_table(console, table)
    how = "The same command with --select-point N, or --select-point knee, takes another point."
    if result.figure != "metric":
        scope = result.figure.partition(".")[0]
        how = f"{result.figure} is that of the worst {scope}, as the target asks. {how}"
    print_indented(console, how, 2)


def _with_answer(result: BisectResult) -> list[tuple[int, Point]]:
    """The list with its numbers, and the answer, numbered 0, even where another set beats it."""
    points = list(enumerate(result.search.pareto, start=1))
    search, achieved = result.search, result.search.achieved
    if achieved is None or achieved.noise is None or search.pins in [p.pins for _, p in points]:
        return points
    answer = Point(search.pins, search.cost, achieved.noise, achieved.value, achieved.passed)
    return sorted([*points, (0, answer)], key=lambda numbered: numbered[1].cost)


def way_share(result: BisectResult, cost: float) -> float:
    """`cost` as a part of what everything pinned costs more than nothing pinned."""
    way = result.cost.all_pinned - result.cost.base
    return cost / way if way > 0 else 0.0
