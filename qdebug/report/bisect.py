"""Show what `bisect` found, and write it as a plan with its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.plan.planfile import plan_to_yaml
from qdebug.report.engine import print_engine
from qdebug.report.names import shorten_names
from qdebug.report.tables import print_indented, print_table
from qdebug.report.view import (
    cause_title,
    counted,
    decibel,
    number,
    printable,
    share,
    widest,
)
from qdebug.search.outcome import BisectResult, Check, PinnedLayer
from qdebug.search.pareto import Point
from qdebug.search.problem import Measurement

_OTHER_COLUMNS = 52
_LONGEST_OP = 12
_MOST_POINTS = 8


def print_bisect(console: Console, result: BisectResult, plan_file: str | None) -> None:
    """The target, what was found and what it costs, with the evidence; the verdict last."""
    console.print(Text(_title(result), style="bold"))
    print_table(console, _facts(result))
    if result.pinned:
        console.print()
        console.print(Text("Layers to keep in higher precision", style="bold"))
        print_table(console, _layers(console, result))
        _print_reasons(console, result)
    if result.found and len(result.search.pareto) > 1:
        console.print()
        console.print(Text("Error against cost, of all that was evaluated", style="bold"))
        print_table(console, _points(result))
    console.print()
    if result.engine is not None:
        print_engine(console, result.engine, _MOST_POINTS)
    for note in result.notes:
        console.print(Text(f"Note: {printable(note)}", style="yellow"))
    print_table(console, _checks(result))
    if result.explanation:
        console.print(Text(printable(result.explanation), style="yellow"))
    console.print(Text(_verdict(result), style="bold green" if result.passed else "bold red"))
    if plan_file:
        console.print(Text(f"Wrote {plan_file}"), soft_wrap=True)


def _checks(result: BisectResult) -> Table:
    table = Table.grid(padding=(0, 2))
    for check in result.checks:
        mark, style = ("holds", "green") if check.answer.passed else ("FAILS", "bold red")
        table.add_row("", Text(mark, style=style), Text(_checked(check)))
    return table


def plan_text(result: BisectResult) -> str:
    """precision.yaml: the plan, with the evidence as comments."""
    header = [f"{_title(result)}.", *(f"{name}: {text}" for name, text in _rows(result))]
    header += [f"{_checked(c)}: {'holds' if c.answer.passed else 'FAILS'}" for c in result.checks]
    header.append(_verdict(result))
    why = {layer.name: _why(result, layer) for layer in result.pinned}
    return plan_to_yaml(result.plan, result.model_path, header=header, why=why)


def _title(result: BisectResult) -> str:
    name = printable(Path(result.model_path).name)
    return (
        f"{name}: {str(result.precision).upper()} such that {result.target}, searched on "
        f"{result.samples} samples ({result.strategy})"
    )


def _rows(result: BisectResult) -> Iterator[tuple[str, str]]:
    search = result.search
    if result.reference_metric is not None:
        yield "FP32", number(result.reference_metric, 6)
    yield "nothing pinned", _measured(search.baseline)
    if search.ceiling is not None:
        yield "everything pinned", _measured(search.ceiling)
    if result.found:
        count = len(result.pinned)
        demanded = _demanded(result)
        text = f"{_measured(search.achieved)} with {count} of {result.candidates + demanded}"
        text += " layers pinned" + (f", {demanded} of them by --pin" if demanded else "")
        yield "found", text
        if count:
            yield "cost", _cost(result)
    replayed = sum(e.replayed for e in search.history)
    seconds = sum(e.measurement.seconds for e in search.history if not e.replayed)
    text = f"{search.evaluations}, {seconds:.1f} s"
    yield "evaluations", text + (f"; {replayed} from the journal" if replayed else "")
    yield "run", result.fast


def _demanded(result: BisectResult) -> int:
    """How many layers --pin demands."""
    return sum(layer.demanded for layer in result.pinned)


def _facts(result: BisectResult) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(result):
        table.add_row(Text(name), Text(text))
    return table


def _cost(result: BisectResult) -> str:
    cost = result.cost
    more = cost.plan / cost.base - 1 if cost.base else 0.0
    return (
        f"{number(cost.plan, 3)} {cost.unit}, {share(more)} more than with nothing pinned; "
        f"{share(cost.pinned_share)} of the way to everything pinned"
    )


def _measured(measurement: Measurement | None) -> str:
    if measurement is None:
        return "not evaluated"
    if measurement.failure:
        return f"cannot be run: {printable(measurement.failure)}"
    value = "no value" if measurement.value is None else number(measurement.value, 6)
    return f"{value} {'holds' if measurement.passed else 'FAILS'}"


def _layers(console: Console, result: BisectResult) -> Table:
    table = Table(box=None, header_style="underline", padding=(0, 1, 0, 0))
    op_width = widest([x.op_type for x in result.pinned], 2)
    full = [printable(x.name) for x in result.pinned]
    width = widest(full, 5)
    if console.is_terminal:
        op_width = min(_LONGEST_OP, op_width)
        width = min(max(18, console.width - _OTHER_COLUMNS - op_width), width)
    table.add_column("layer", width=width, no_wrap=True)
    table.add_column("op", width=op_width, no_wrap=True)
    table.add_column("to", no_wrap=True)
    table.add_column("local dB", justify="right", no_wrap=True)
    table.add_column("without it", justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True)
    names = shorten_names(full, width, [x.op_type for x in result.pinned])
    for name, layer in zip(names, result.pinned, strict=True):
        table.add_row(
            Text(name),
            Text(printable(layer.op_type)),
            str(layer.precision),
            decibel(layer.local_sqnr_db),
            _without(layer),
            share(_part(result, layer)),
            Text("--pin" if layer.demanded else _label(layer)),
        )
    return table


def _without(layer: PinnedLayer) -> str:
    found = layer.without
    if found is None:
        return "–"
    if found.failure or found.value is None:
        return "cannot run"
    return f"{number(found.value, 4)}{' ok' if found.passed else ''}"


def _part(result: BisectResult, layer: PinnedLayer) -> float:
    """Of what everything pinned costs more than nothing pinned."""
    way = result.cost.all_pinned - result.cost.base
    return layer.cost / way if way > 0 else 0.0


def _label(layer: PinnedLayer) -> str:
    return layer.causes[0].label if layer.causes else "–"


def _print_reasons(console: Console, result: BisectResult) -> None:
    """What to do instead of pinning: each remedy once, with the layer that shows it best."""
    said: set[str] = set()
    for layer in result.pinned:
        for cause in layer.causes[:1]:
            if cause.label in said:
                continue
            said.add(cause.label)
            text = f"{cause.label}: {printable(cause.evidence)}. {cause.remedy}"
            print_indented(console, text, 2)


def _points(result: BisectResult) -> Table:
    table = Table(box=None, header_style="underline", padding=(0, 2, 0, 0))
    for name in ("pinned", "cost", "SQNR dB", "value", ""):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    points = _with_answer(result)
    step = max(1, -(-len(points) // _MOST_POINTS))
    for i, point in enumerate(points):
        marks = ["the answer"] if point.pins == result.search.pins else []
        marks += ["knee"] if point.knee else []
        if not marks and i % step:
            continue
        value = "no value" if point.value is None else number(point.value, 6)
        table.add_row(
            str(len(point.pins)),
            share(_share_of(result, point.cost)),
            decibel(math.inf if point.noise == 0 else -10 * math.log10(point.noise)),
            f"{value} {'holds' if point.passed else 'FAILS'}",
            Text(", ".join(marks), style="bold"),
        )
    return table


def _with_answer(result: BisectResult) -> list[Point]:
    """The list, and the answer even where another set beats it, which then failed a check."""
    points = list(result.search.pareto)
    search, achieved = result.search, result.search.achieved
    if achieved is None or achieved.noise is None or search.pins in [p.pins for p in points]:
        return points
    answer = Point(search.pins, search.cost, achieved.noise, achieved.value, achieved.passed)
    return sorted([*points, answer], key=lambda point: point.cost)


def _share_of(result: BisectResult, cost: float) -> float:
    way = result.cost.all_pinned - result.cost.base
    return cost / way if way > 0 else 0.0


def _checked(check: Check) -> str:
    took = ", which took part in the choice" if check.took_part else ""
    text = f"{check.samples} {check.on}{took}: {_measured(check.answer).split(' ')[0]}"
    text += f", nothing pinned {_measured(check.baseline).split(' ')[0]}"
    if check.reference_metric is not None:
        text += f", FP32 {number(check.reference_metric, 6)}"
    return text


def _why(result: BisectResult, layer: PinnedLayer) -> str:
    parts = []
    if layer.local_sqnr_db is not None:
        parts.append(f"{decibel(layer.local_sqnr_db)} dB in {layer.start}")
    if layer.demanded:
        parts.append("demanded by --pin")
    elif layer.without is not None:
        parts.append(f"without it {_measured(layer.without)}")
    parts += [f"{cause_title(c)}: {c.evidence}" for c in layer.causes[:1]]
    return "; ".join(parts)


def _verdict(result: BisectResult) -> str:
    if not result.found:
        return f"NOT FOUND: no set that was tried meets {result.target}."
    if result.engine is not None and not result.engine.passed:
        count = len(result.engine.audit.audit.mismatches)
        return f"NOT CONFIRMED: {counted(count, 'layer')} of the engine not built as planned."
    if not result.passed:
        failed = next(c for c in result.checks if not c.answer.passed)
        return (
            f"NOT CONFIRMED: the set found meets {result.target} on the samples searched, but not "
            f"on {failed.samples} {failed.on}. Search on more samples, or ask for a little more."
        )
    count, demanded = len(result.pinned), _demanded(result)
    if count == demanded:
        by_hand = f"the {counted(count, 'layer')} of --pin" if count else "nothing pinned"
        return f"PASSED: {result.target} holds with {by_hand}."
    which = "each of the others" if demanded else "each" if count > 1 else "it"
    proof = (
        f"{which} was shown to be needed"
        if result.search.minimal
        else "not every one was shown to be needed"
    )
    by_hand = f", {demanded} of them by --pin" if demanded else ""
    return f"PASSED: {counted(count, 'layer')} pinned{by_hand}, {proof}."
