"""What a person sees of a sweep: one table, then what it does not tell; and the table as CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from qdebug.display.blocks import (
    Block,
    Cells,
    Column,
    Line,
    Parts,
    Table,
    flat,
    notes,
    number_column,
    table_of,
)
from qdebug.display.names import shorten
from qdebug.display.tables import csv_text
from qdebug.metrics.tensor import OUTPUT_METRICS, Metric
from qdebug.results.conditions import Checked
from qdebug.results.sweep import EngineFacts, OutputErrors, SweepResult, SweepRow
from qdebug.results.words import figure, interval, number
from qdebug.wording import counted, option, printable


class _Axis(NamedTuple):
    """How the values of an axis are shown: the head of their column; the text where all rows have
    the same; and the value that is not worth showing."""

    head: str
    title: str
    usual: str = ""


_AXES = {
    "precision": _Axis("precision", "{}"),
    "weights": _Axis("weights", "{} weights"),
    "compute_capability": _Axis("for", "compute capability {}"),
    "optimization_level": _Axis("level", "optimization level {}"),
    "tactic_sources": _Axis("tactics", "tactic sources {}"),
    "typing": _Axis("typing", "typing {}", "strong"),
    "tf32": _Axis("TF32", "TF32 {}"),
    "sparsity": _Axis("sparse", "sparsity {}"),
    "refit": _Axis("refit", "refit {}", "off"),
    "version_compatible": _Axis("v.comp.", "version-compatible {}", "off"),
}
_MOST_LISTED = 8
"""Kinds of mismatches that are listed without -v."""
_GENERAL = "-vv shows"
"""Begins a hint that is of no use here."""
_LONGEST_METRIC = 12


def sweep_to_csv(result: SweepResult) -> str:
    """One line per combination, all figures of engines in columns; empty where there is none."""
    return csv_text(result.rows())


def view(result: SweepResult, *, detailed: bool = False) -> list[Block]:
    """A sweep; `detailed` lists all layers that are not as planned, and what the library said of
    what it could not build."""
    return flat(
        _title(result),
        _table(result),
        (
            (Line(heading, "note"), (Line(line, indent=4) for line in lines))
            for heading, lines in _findings(result, detailed)
        ),
        _misbuilt(result, detailed),
        notes(result.notes),
        _verdict(result),
    )


def _varying(result: SweepResult) -> list[str]:
    """The axes of which there is more than one value, in order; having none is not one."""
    rows = [row.combination.values for row in result.combinations]
    return [axis for axis in _AXES if len({row[axis] for row in rows if row[axis]}) > 1]


def _title(result: SweepResult) -> Iterator[Line]:
    combinations = counted(result.combinations, "combination")
    name, samples = printable(result.model.name), counted(result.samples, "sample")
    yield Line(f"{name}: {combinations}, {result.library}, {samples}", "title")
    axes, rows = _varying(result), [row.combination.values for row in result.combinations]
    same = {a: next((r[a] for r in rows if r[a]), "") for a in _AXES if a not in axes}
    told = [
        _AXES[axis].title.format(_value(value))
        for axis, value in same.items()
        if value not in ("", _AXES[axis].usual)
    ]
    if told:
        yield Line(f"In every combination: {', '.join(told)}")
    if result.device:
        yield Line(f"Executed on {result.device}: errors are the engines' own, ms a median")
    for reason in dict.fromkeys(
        filter(None, (r.not_executed_because for r in result.combinations))
    ):
        errors = "errors are those of the simulation on ONNX Runtime"
        yield Line(f"Not executed ({reason}): no latency, and {errors}")
    if result.metric and result.metric.reference is not None:
        told_metric = figure(result.metric.reference, "metric") + interval(result.metric.interval)
        yield Line(f"{printable(result.metric.name)} in FP32: {told_metric}")


def _table(result: SweepResult) -> Table:
    def value_of(axis: str) -> Callable[[SweepRow], str | None]:
        return lambda row: _value(row.combination.values[axis]) or None

    def of_engine(
        head: str, value: Callable[[EngineFacts], float | None], unit: str = "", drop: int = 0
    ) -> Cells[SweepRow]:
        return number_column(
            head, lambda row: None if row.engine is None else value(row.engine), unit, drop=drop
        )

    def of_errors(show: Callable[[OutputErrors], object]) -> Callable[[SweepRow], object]:
        return lambda row: "failed" if row.errors.failure else show(row.errors)

    def output_figure(metric: Metric) -> Callable[[SweepRow], object]:
        return of_errors(lambda errors: figure(metric.worst(errors.outputs), metric.unit))

    metric = result.metric
    timed = any(row.latency_ms is not None for row in result.combinations)
    return table_of(
        result.combinations,
        [
            (Column("#", "number"), lambda r: f"{'*' * (r.number == result.best)}{r.number}"),
            *((Column(_AXES[axis].head, "value"), value_of(axis)) for axis in _varying(result)),
            of_engine("build s", lambda e: e.build_s, "tenths", 2),
            of_engine("MB", lambda e: e.size_bytes, "megabytes", 1),
            of_engine("layers", lambda e: e.layers, "whole", 3),
            of_engine("INT8", lambda e: e.values.get("int8_share"), "whole share"),
            of_engine("fused", lambda e: e.values.get("fused_share"), "whole share", 5),
            of_engine("reform.", lambda e: e.values.get("reformat_count") or 0, drop=4),
            (Column("audit"), lambda r: "failed" if r.engine is None else _audited(r.engine)),
            *(
                (Column(m.output_column, "number", 6 if k else 0), output_figure(m))
                for k, m in enumerate(OUTPUT_METRICS)
            ),
            *(
                (
                    (
                        Column(shorten(printable(metric.name), _LONGEST_METRIC), "number"),
                        of_errors(lambda errors: figure(errors.metric, "metric")),
                    ),
                    (
                        Column("95 %", "number", drop=3),
                        of_errors(lambda e: e.interval and "{:.3f} to {:.3f}".format(*e.interval)),
                    ),
                )
                if metric
                else ()
            ),
            number_column("ms", lambda row: row.latency_ms) if timed else None,
            (Column("gate"), lambda row: "holds" if row.passed else "FAILS")
            if result.gated
            else None,
        ],
        lambda row: (
            "good"
            if row.number == result.best
            else "worst"
            if row.engine is None or row.engine.mismatches
            else ""
        ),
    )


def _findings(result: SweepResult, detailed: bool) -> Iterator[tuple[str, list[str]]]:
    """What stands behind the table, each for all the rows it is true of."""
    found: dict[tuple[str, tuple[str, ...]], list[int]] = {}

    def note(what: str, row: SweepRow, *lines: str) -> None:
        if any(lines):
            found.setdefault((what, tuple(filter(None, lines))), []).append(row.number)

    for row in result.combinations:
        if row.failure is not None:
            hint = "" if row.failure.hint.startswith(_GENERAL) else row.failure.hint
            details = row.failure.details if detailed else ()
            note("failed", row, row.failure.message, hint, *details)
    for row in result.combinations:
        note("could not be simulated", row, row.simulation.failure)
    for row in result.combinations:
        note("could not be executed", row, row.execution.errors.failure if row.execution else "")
    for (what, lines), rows in found.items():
        yield f"{_numbers(rows)} {what}:", [printable(line) for line in lines]


def _misbuilt(result: SweepResult, detailed: bool) -> Parts:
    """What was not built as planned: layers of the same precisions together, or in detail each by
    itself; each for all the rows it is true of."""
    rows: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for row in result.combinations:
        alike: dict[tuple[str, str, str], list[str]] = {}
        for each in row.engine.mismatches if row.engine else ():
            how = each.requested, each.built, each.layer if detailed else ""
            alike.setdefault(how, []).append(each.layer)
        for (requested, built, _), layers in alike.items():
            rows.setdefault((requested, built, tuple(layers)), []).append(row.number)
    every = "" if detailed else f" ({option('verbose')} lists every layer)"
    listed = list(rows.items())[: None if detailed else _MOST_LISTED]
    more = len(rows) - len(listed)
    table = table_of(
        listed,
        [
            (Column("rows", "value"), lambda m: _numbers(m[1])),
            None if detailed else (Column("layers", "number"), lambda m: len(m[0][2])),
            (Column("requested"), lambda m: m[0][0]),
            (Column("built"), lambda m: m[0][1]),
            (Column("layer" if detailed else "first layer", "name"), lambda m: m[0][2][0]),
        ],
    )
    shown = (
        Line(f"Not built as planned{every}:", "note"),
        table,
        Line(f"and {more} more like these", "muted") if more else None,
    )
    return shown if rows else None


def _verdict(result: SweepResult) -> Iterator[Line]:
    total = len(result.combinations)
    if result.kept:
        anew = option("no_cache")
        yield Line(
            f"{result.kept} of {total} were built earlier ({anew} builds them again).", "muted"
        )
    for checks in zip(*(row.conditions for row in result.combinations), strict=True):
        held = sum(c.passed for c in checks)
        text = f"{checks[0].expression}: holds in {held} of {total}"
        if not held:
            text += _closest(checks)
        yield Line(printable(text), "fine" if held else "bad", 2)
    if not result.built:
        yield Line("FAILED: no combination could be built.", "bad")
    elif result.gated:
        passed = sum(row.passed for row in result.combinations)
        what = f"as planned and within every condition: {passed} of {total} combinations."
        yield Line(f"PASSED: {what}", "good") if passed else Line(f"FAILED: {what}", "bad")
    if result.best is not None:
        rule = "that pass" if result.gated else f"{_built(result)} (no {option('fail_on')} given)"
        yield Line(f"Best: #{result.best}, the fastest of those {rule}.", "strong")


def _built(result: SweepResult) -> str:
    """What is known of the combinations among which the best one was chosen."""
    engines = [r.engine for r in result.combinations if r.engine and not r.engine.mismatches]
    if any(engine.unknown for engine in engines):
        return "in which no layer is seen in another precision than planned"
    return "built as planned"


def _closest(checks: Sequence[Checked]) -> str:
    values = [c.value for c in checks if c.value is not None and not math.isnan(c.value)]
    if not values:
        return ": nothing was measured for it"
    closest = min(values) if "<" in checks[0].expression else max(values)
    return f", the closest value is {number(closest)}"


def _numbers(rows: Sequence[int]) -> str:
    """Rows, such as #1–#3, #5."""
    runs: list[list[int]] = []
    for k in rows:
        if runs and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return ", ".join(
        f"#{run[0]}–#{run[-1]}" if run[2:] else ", ".join(f"#{k}" for k in run) for run in runs
    )


def _value(text: str) -> str:
    """A plan by its file's name."""
    return printable(Path(text).name if "/" in text and text != "Q/DQ" else text)


def _audited(engine: EngineFacts) -> str:
    if engine.mismatches:
        return f"{len(engine.mismatches)} differ"
    return f"{len(engine.unknown)} unknown" if engine.unknown else "ok"
