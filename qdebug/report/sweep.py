"""Show what a sweep found: one table, then what it does not tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.measure.conditions import Checked
from qdebug.measure.sweep import EngineFacts, OutputErrors, SweepResult
from qdebug.report.names import shorten, shorten_names
from qdebug.report.tables import print_indented, print_table
from qdebug.report.view import counted, decibel, number, printable, widest

AXES = {
    "precision": "precision",
    "weights": "weights",
    "compute_capability": "for",
    "optimization_level": "level",
    "tactic_sources": "tactics",
    "typing": "typing",
    "tf32": "TF32",
    "sparsity": "sparse",
    "refit": "refit",
    "version_compatible": "v.comp.",
}
"""Heads of the columns of a combination's values."""

_TITLES = {
    "precision": "{}",
    "weights": "{} weights",
    "compute_capability": "compute capability {}",
    "optimization_level": "optimization level {}",
    "tactic_sources": "tactic sources {}",
    "typing": "typing {}",
    "tf32": "TF32 {}",
    "sparsity": "sparsity {}",
    "refit": "refit {}",
    "version_compatible": "version-compatible {}",
}
_USUAL = {"typing": "strong", "refit": "off", "version_compatible": "off"}
"""What goes without saying."""
_LONGEST_VALUE = 24
_MOST_LISTED = 3
_GENERAL = "-vv shows"
"""Begins a hint that is of no use here."""


@dataclass(frozen=True)
class _Column:
    """`rank` says which columns go first where a terminal has no room: the highest."""

    head: str
    cells: Sequence[str]
    rank: int = 0

    @property
    def width(self) -> int:
        return 1 + widest(self.cells, cell_len(self.head))


def print_sweep(console: Console, result: SweepResult, *, detailed: bool) -> None:
    """Print a sweep; `detailed` lists all layers that are not as planned, and what the library said
    of what it could not build."""
    for line, style in _title(result):
        console.print(Text(line, style=style))
    columns, hidden = _fitting(list(_columns(result, console)), console)
    print_table(console, _table(columns, result))
    if hidden:
        console.print(Text(f"No room for {', '.join(hidden)} (--json, -o).", style="dim"))
    for heading, lines in _findings(result, detailed):
        console.print(Text(heading, style="yellow"), soft_wrap=not console.is_terminal)
        for line in lines:
            print_indented(console, line, 4)
    for note in result.notes:
        console.print(Text(f"Note: {printable(note)}", style="yellow"))
    _print_verdict(console, result)


def print_engines(console: Console, folder: str) -> None:
    """Say what was written to the folder of --save-engines."""
    text = f"Wrote {folder}: N.engine and N.log are those of row #N."
    console.print(Text(text), soft_wrap=True)


def varying(result: SweepResult) -> list[str]:
    """The axes of which there is more than one value, in order; having none is not one."""
    rows = [row.combination.values for row in result.combinations]
    return [axis for axis in AXES if len({row[axis] for row in rows if row[axis]}) > 1]


def _title(result: SweepResult) -> Iterator[tuple[str, str]]:
    name = printable(result.model.name)
    combinations = counted(len(result.combinations), "combination")
    samples = counted(result.samples, "sample")
    yield f"{name}: {combinations}, {result.library}, {samples}", "bold"
    axes = varying(result)
    rows = [row.combination.values for row in result.combinations]
    same = {a: next((r[a] for r in rows if r[a]), "") for a in AXES if a not in axes}
    same = {axis: value for axis, value in same.items() if value != _USUAL.get(axis)}
    told = [_TITLES[axis].format(_value(value)) for axis, value in same.items() if value]
    if told:
        yield f"In all: {', '.join(told)}", ""
    if result.device:
        yield f"Executed on {result.device}: errors are the engines' own, ms a median", ""
    for reason in dict.fromkeys(
        row.not_executed_because for row in result.combinations if row.not_executed_because
    ):
        yield (
            f"Not executed ({reason}): no latency, and errors are those of the simulation on "
            "ONNX Runtime",
            "",
        )
    if result.metric and result.metric.reference is not None:
        yield f"{printable(result.metric.name)} in FP32: {result.metric.reference:.4f}", ""


def _columns(result: SweepResult, console: Console) -> Iterator[_Column]:
    rows = result.combinations
    marks = ["*" if row.number == result.best else "" for row in rows]
    yield _Column("#", [f"{mark}{k}" for k, mark in enumerate(marks, start=1)])
    for axis in varying(result):
        values = [_value(row.combination.values[axis]) or "–" for row in rows]
        if console.is_terminal:
            values = shorten_names(values, _LONGEST_VALUE)
        yield _Column(AXES[axis], values)

    def engine(show: Callable[[EngineFacts], str]) -> list[str]:
        return ["–" if row.engine is None else show(row.engine) for row in rows]

    def errors(show: Callable[[OutputErrors], str]) -> list[str]:
        return ["failed" if row.errors.failure else show(row.errors) for row in rows]

    yield _Column("build s", engine(lambda e: f"{e.build_s:.1f}"), 2)
    yield _Column("MB", engine(lambda e: f"{e.size_bytes / 1e6:.1f}"), 1)
    yield _Column("layers", engine(lambda e: str(e.layers)), 3)
    yield _Column("INT8", engine(lambda e: _percent(e, "int8_share")))
    yield _Column("fused", engine(lambda e: _percent(e, "fused_share")), 5)
    yield _Column("reform.", engine(lambda e: number(e.values["reformat_count"] or 0)), 4)
    yield _Column("audit", ["failed" if r.engine is None else _audited(r.engine) for r in rows])
    yield _Column("SQNR dB", errors(lambda e: decibel(e.sqnr_db)))
    yield _Column("cosine", errors(_cosine), 6)
    if result.metric:
        yield _Column(shorten(result.metric.name, 12), errors(_task))
    if any(row.latency_ms is not None for row in rows):
        yield _Column("ms", ["–" if r.latency_ms is None else number(r.latency_ms) for r in rows])
    if result.gated:
        yield _Column("gate", ["holds" if row.passed else "FAILS" for row in rows])


def _fitting(columns: list[_Column], console: Console) -> tuple[list[_Column], list[str]]:
    """The columns that a terminal has room for, and the heads of the others."""
    hidden: list[str] = []
    while console.is_terminal and sum(c.width for c in columns) > console.width + 1:
        last = max(columns, key=lambda c: c.rank)
        if not last.rank:
            break
        columns.remove(last)
        hidden.insert(0, last.head)
    return columns, hidden


def _table(columns: Sequence[_Column], result: SweepResult) -> Table:
    table = Table(box=None, header_style="underline", padding=(0, 1, 0, 0))
    left = {*AXES.values(), "audit", "gate"}
    for column in columns:
        table.add_column(
            Text(column.head), justify="left" if column.head in left else "right", no_wrap=True
        )
    for k, cells in enumerate(zip(*(c.cells for c in columns), strict=True)):
        table.add_row(*map(Text, cells), style=_style(result, k))
    return table


def _style(result: SweepResult, k: int) -> str:
    row = result.combinations[k]
    if row.number == result.best:
        return "bold green"
    return "red" if row.engine is None or row.engine.mismatches else ""


def _findings(result: SweepResult, detailed: bool) -> Iterator[tuple[str, list[str]]]:
    """What stands behind the table, each for all the rows it is true of."""
    failed: dict[tuple[str, ...], list[int]] = {}
    misbuilt: dict[tuple[str, ...], list[int]] = {}
    unsimulated: dict[tuple[str, ...], list[int]] = {}
    unexecuted: dict[tuple[str, ...], list[int]] = {}
    for k, row in enumerate(result.combinations, start=1):
        if row.failure is not None:
            hint = "" if row.failure.hint.startswith(_GENERAL) else row.failure.hint
            details = row.failure.details if detailed else ()
            lines = tuple(t for t in (row.failure.message, hint, *details) if t)
            failed.setdefault(lines, []).append(k)
        if row.engine is not None and row.engine.mismatches:
            misbuilt.setdefault(tuple(_misbuilt(row.engine, detailed)), []).append(k)
        if row.simulation.failure:
            unsimulated.setdefault((row.simulation.failure,), []).append(k)
        if row.execution is not None and row.execution.errors.failure:
            unexecuted.setdefault((row.execution.errors.failure,), []).append(k)
    for found, what in (
        (failed, "failed"),
        (misbuilt, "not built as planned"),
        (unsimulated, "could not be simulated"),
        (unexecuted, "could not be executed"),
    ):
        for lines, rows in found.items():
            yield f"{_numbers(rows)} {what}:", [printable(line) for line in lines]


def _misbuilt(engine: EngineFacts, detailed: bool) -> Iterator[str]:
    shown = engine.mismatches if detailed else engine.mismatches[:_MOST_LISTED]
    for each in shown:
        yield f"{each.layer}: requested {each.requested}, built {each.built}"
    if len(engine.mismatches) > len(shown):
        yield f"and {len(engine.mismatches) - len(shown)} more (-v or --json)"


def _print_verdict(console: Console, result: SweepResult) -> None:
    total = len(result.combinations)
    if result.kept:
        told = f"{result.kept} of {total} were built earlier (--no-cache builds anew)."
        console.print(Text(told, style="dim"))
    for checks in zip(*(row.conditions for row in result.combinations), strict=True):
        held = sum(c.passed for c in checks)
        text = f"  {checks[0].expression}: holds in {held} of {total}"
        if not held:
            text += _closest(checks)
        console.print(Text(printable(text), style="green" if held else "bold red"))
    if not result.built:
        console.print(Text("FAILED: no combination gave an engine.", style="bold red"))
    elif result.gated:
        passed = sum(row.passed for row in result.combinations)
        verdict, style = ("PASSED", "bold green") if passed else ("FAILED", "bold red")
        what = f"as planned and within every condition: {passed} of {total} combinations."
        console.print(Text(f"{verdict}: {what}", style=style))
    if result.best is not None:
        rule = "that pass" if result.gated else "built as planned (no --fail-on was given)"
        console.print(Text(f"Best: #{result.best}, the fastest of those {rule}.", style="bold"))


def _closest(checks: Sequence[Checked]) -> str:
    values = [c.value for c in checks if c.value is not None and not math.isnan(c.value)]
    if not values:
        return ": nothing was measured for it"
    closest = min(values) if "<" in checks[0].expression else max(values)
    return f", the closest value is {number(closest)}"


def _numbers(rows: Sequence[int]) -> str:
    return ", ".join(f"#{k}" for k in rows)


def _value(text: str) -> str:
    """A plan by its file's name."""
    return printable(Path(text).name if "/" in text and text != "Q/DQ" else text)


def _percent(engine: EngineFacts, name: str) -> str:
    value = engine.values.get(name)
    return "–" if value is None else f"{100 * value:.0f}%"


def _audited(engine: EngineFacts) -> str:
    if engine.mismatches:
        return f"{len(engine.mismatches)} differ"
    return f"{len(engine.unknown)} unknown" if engine.unknown else "ok"


def _cosine(errors: OutputErrors) -> str:
    return "–" if errors.cosine is None else f"{errors.cosine:.5f}"


def _task(errors: OutputErrors) -> str:
    return "–" if errors.metric is None else f"{errors.metric:.4f}"
