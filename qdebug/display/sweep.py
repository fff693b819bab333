"""What a person sees of a sweep: one table, then what it does not tell; and the table as CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from qdebug.display.blocks import Block, Column, Line, Style, Table, notes, table_of
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
    blocks: list[Block] = [Line(line, style) for line, style in _title(result)]
    blocks.append(_table(result))
    for heading, lines in _findings(result, detailed):
        blocks.append(Line(heading, "note"))
        blocks += [Line(line, indent=4) for line in lines]
    blocks += _misbuilt(result, detailed)
    return [*blocks, *notes(result.notes), *_verdict(result)]


def _varying(result: SweepResult) -> list[str]:
    """The axes of which there is more than one value, in order; having none is not one."""
    rows = [row.combination.values for row in result.combinations]
    return [axis for axis in _AXES if len({row[axis] for row in rows if row[axis]}) > 1]


def _title(result: SweepResult) -> Iterator[tuple[str, Style]]:
    name = printable(result.model.name)
    combinations = counted(len(result.combinations), "combination")
    samples = counted(result.samples, "sample")
    yield f"{name}: {combinations}, {result.library}, {samples}", "title"
    axes = _varying(result)
    rows = [row.combination.values for row in result.combinations]
    same = {a: next((r[a] for r in rows if r[a]), "") for a in _AXES if a not in axes}
    same = {axis: value for axis, value in same.items() if value != _AXES[axis].usual}
    told = [_AXES[axis].title.format(_value(value)) for axis, value in same.items() if value]
    if told:
        yield f"In every combination: {', '.join(told)}", ""
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
        within = interval(result.metric.interval)
        yield f"{printable(result.metric.name)} in FP32: {result.metric.reference:.4f}{within}", ""


def _table(result: SweepResult) -> Table:
    def marked(row: SweepRow) -> str:
        return f"{'*' if row.number == result.best else ''}{row.number}"

    def value_of(axis: str) -> Callable[[SweepRow], str]:
        return lambda row: _value(row.combination.values[axis]) or "–"

    columns: list[tuple[Column, Callable[[SweepRow], str]]] = [
        (Column("#", "number"), marked),
        *((Column(_AXES[axis].head, "value"), value_of(axis)) for axis in _varying(result)),
        (Column("build s", "number", 2), _of_engine(lambda e: f"{e.build_s:.1f}")),
        (Column("MB", "number", 1), _of_engine(lambda e: f"{e.size_bytes / 1e6:.1f}")),
        (Column("layers", "number", 3), _of_engine(lambda e: str(e.layers))),
        (Column("INT8", "number"), _of_engine(lambda e: _percent(e, "int8_share"))),
        (Column("fused", "number", 5), _of_engine(lambda e: _percent(e, "fused_share"))),
        (
            Column("reform.", "number", 4),
            _of_engine(lambda e: number(e.values.get("reformat_count") or 0)),
        ),
        (Column("audit"), lambda row: "failed" if row.engine is None else _audited(row.engine)),
        *(
            (Column(m.output_column, "number", 6 if k else 0), _of_errors(_output_figure(m)))
            for k, m in enumerate(OUTPUT_METRICS)
        ),
    ]
    if result.metric:
        head = shorten(printable(result.metric.name), _LONGEST_METRIC)
        columns.append((Column(head, "number"), _of_errors(_metric)))
        columns.append((Column("95 %", "number", drop=3), _of_errors(_interval)))
    if any(row.latency_ms is not None for row in result.combinations):
        columns.append(
            (
                Column("ms", "number"),
                lambda row: number(row.latency_ms),
            )
        )
    if result.gated:
        columns.append((Column("gate"), lambda row: "holds" if row.passed else "FAILS"))
    return table_of(result.combinations, columns, lambda row: _style(result, row))


def _of_engine(show: Callable[[EngineFacts], str]) -> Callable[[SweepRow], str]:
    return lambda row: "–" if row.engine is None else show(row.engine)


def _of_errors(show: Callable[[OutputErrors], str]) -> Callable[[SweepRow], str]:
    return lambda row: "failed" if row.errors.failure else show(row.errors)


def _style(result: SweepResult, row: SweepRow) -> Style:
    if row.number == result.best:
        return "good"
    return "worst" if row.engine is None or row.engine.mismatches else ""


def _findings(result: SweepResult, detailed: bool) -> Iterator[tuple[str, list[str]]]:
    """What stands behind the table, each for all the rows it is true of."""
    failed: dict[tuple[str, ...], list[int]] = {}
    unsimulated: dict[tuple[str, ...], list[int]] = {}
    unexecuted: dict[tuple[str, ...], list[int]] = {}
    for k, row in enumerate(result.combinations, start=1):
        if row.failure is not None:
            hint = "" if row.failure.hint.startswith(_GENERAL) else row.failure.hint
            details = row.failure.details if detailed else ()
            lines = tuple(t for t in (row.failure.message, hint, *details) if t)
            failed.setdefault(lines, []).append(k)
        if row.simulation.failure:
            unsimulated.setdefault((row.simulation.failure,), []).append(k)
        if row.execution is not None and row.execution.errors.failure:
            unexecuted.setdefault((row.execution.errors.failure,), []).append(k)
    for found, what in (
        (failed, "failed"),
        (unsimulated, "could not be simulated"),
        (unexecuted, "could not be executed"),
    ):
        for lines, rows in found.items():
            yield f"{_numbers(rows)} {what}:", [printable(line) for line in lines]


class _Mismatch(NamedTuple):
    """Layers of an engine that were built in the same precision, which is not the planned one."""

    requested: str
    built: str
    layers: tuple[str, ...]


def _mismatches(engine: EngineFacts, detailed: bool) -> Iterator[_Mismatch]:
    """By the precisions; or, in detail, by layer."""
    alike: dict[tuple[str, str], list[str]] = {}
    for each in engine.mismatches:
        alike.setdefault((each.requested, each.built), []).append(each.layer)
    for how, layers in alike.items():
        for group in ([layer] for layer in layers) if detailed else [layers]:
            yield _Mismatch(*how, tuple(group))


def _misbuilt(result: SweepResult, detailed: bool) -> Iterator[Block]:
    """What was not built as planned, each for all the rows it is true of."""
    rows: dict[_Mismatch, list[int]] = {}
    for row in result.combinations:
        for mismatch in _mismatches(row.engine, detailed) if row.engine else ():
            rows.setdefault(mismatch, []).append(row.number)
    if not rows:
        return
    every = "" if detailed else f" ({option('verbose')} lists every layer)"
    yield Line(f"Not built as planned{every}:", "note")
    columns: list[tuple[Column, Callable[[_Mismatch], str]]] = [
        (Column("rows", "value"), lambda m: _numbers(rows[m])),
        (Column("requested"), lambda m: m.requested),
        (Column("built"), lambda m: m.built),
        (Column("layer" if detailed else "first layer", "name"), lambda m: m.layers[0]),
    ]
    if not detailed:
        columns.insert(1, (Column("layers", "number"), lambda m: str(len(m.layers))))
    listed = list(rows)[: None if detailed else _MOST_LISTED]
    yield table_of(listed, columns)
    if len(listed) < len(rows):
        yield Line(f"and {len(rows) - len(listed)} more like these", "muted")


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


def _percent(engine: EngineFacts, name: str) -> str:
    value = engine.values.get(name)
    return "–" if value is None else f"{100 * value:.0f}%"


def _audited(engine: EngineFacts) -> str:
    if engine.mismatches:
        return f"{len(engine.mismatches)} differ"
    return f"{len(engine.unknown)} unknown" if engine.unknown else "ok"


def _output_figure(metric: Metric) -> Callable[[OutputErrors], str]:
    return lambda errors: figure(metric.worst(errors.outputs), metric.unit)


def _metric(errors: OutputErrors) -> str:
    return "–" if errors.metric is None else f"{errors.metric:.4f}"


def _interval(errors: OutputErrors) -> str:
    found = errors.interval
    return "–" if found is None else f"{found[0]:.3f} to {found[1]:.3f}"
