"""Show and serialise what `calibrate` found."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.measure.calibration import (
    FACTOR,
    CacheDifference,
    CalibrateResult,
    MethodResult,
)
from qdebug.report.coverage import print_coverage
from qdebug.report.names import shorten
from qdebug.report.tables import print_indented, print_table
from qdebug.report.view import counted, decibel, number, printable, share

_MOST_LISTED = 5


def print_calibrate(console: Console, result: CalibrateResult) -> None:
    """The methods side by side, where they differ, coverage, and which one to take."""
    name = result.model.name
    console.print(
        Text(
            f"{printable(name)}: {counted(len(result.methods), 'calibration')} of "
            f"{counted(result.calibration_samples, 'sample')}, judged on "
            f"{counted(result.held_out_samples, 'other')}",
            style="bold",
        )
    )
    if result.mix:
        console.print(f"mix: each tensor's method was chosen on {result.mix.samples} more samples")
    if result.metric and result.metric.reference is not None:
        console.print(f"{result.metric.name} in FP32: {result.metric.reference:.4f}")
    print_table(console, _methods_table(result))
    _print_tensors(console, result)
    print_coverage(console, result.coverage)
    if result.cache_difference:
        _print_difference(console, result.cache_difference)
    for note in result.notes:
        console.print(Text(note, style="yellow"))
    console.print(Text(f"Best: {result.best} (by {result.best_by})", style="bold green"))


def _methods_table(result: CalibrateResult) -> Table:
    table = Table(box=None, header_style="underline", padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True)
    # Of a metric in a file the name says enough here: a path would take the other columns' room.
    columns = [result.metric.name.rpartition(":")[2]] if result.metric else []
    for column in [*columns, "SQNR dB", "cosine", "clipped (mean)", "clipped (most)"]:
        table.add_column(Text(shorten(column, 20)), justify="right", no_wrap=True)
    for method in result.methods.values():
        trial = method.trial
        cosine = min((m.cosine for m in trial.outputs.values()), default=math.nan)
        clipped = method.clipped
        cells = [f"{trial.metric:.4f}"] if trial.metric is not None else []
        cells += [
            decibel(trial.sqnr_db),
            number(cosine, 5),
            share(float(np.mean(clipped)) if clipped else None),
            share(max(clipped) if clipped else None),
        ]
        style = "bold" if method.name == result.best else ""
        table.add_row(Text(method.name), *cells, style=style)
    return table


def _print_tensors(console: Console, result: CalibrateResult) -> None:
    """Name and ranges on lines of their own: neither is ever cut."""
    shown = [m for m in result.methods.values() if m.name != "mix"]
    if len(shown) < 2:
        return
    console.print()
    console.print(Text("amax where the methods differ most", style="bold"))
    for tensor in _most_different(shown):
        console.print(Text(f"  {printable(tensor)}"), soft_wrap=True)
        cells = ", ".join(f"{m.name} {number(_amax(m, tensor), 3)}" for m in shown)
        print_indented(console, cells, 4)


def _most_different(methods: list[MethodResult]) -> list[str]:
    def spread(tensor: str) -> float:
        values = [_amax(m, tensor) for m in methods]
        if max(values) == 0:
            return 1.0
        return max(values) / min(values) if min(values) > 0 else math.inf

    return sorted(methods[0].tensors, key=spread, reverse=True)[:_MOST_LISTED]


def _amax(method: MethodResult, tensor: str) -> float:
    return float(np.max(method.tensors[tensor].range.amax))


def _print_difference(console: Console, difference: CacheDifference) -> None:
    console.print()
    console.print(Text("The calibration given, against a fresh one", style="bold"))
    if difference.written_by:
        console.print(Text(f"  written by {difference.written_by}"))
    if difference.missing:
        console.print(Text("  not judged: it lacks ranges that INT8 layers need", style="yellow"))
    for what, names in (
        ("missing", difference.missing),
        ("not in the model", difference.unknown),
        ("zero or denormal", difference.degenerate),
    ):
        if names:
            more = "" if len(names) <= 3 else f" and {len(names) - 3} more"
            listed = ", ".join(map(printable, names[:3]))
            console.print(Text(f"  {what}: {listed}{more}", style="yellow"), soft_wrap=True)
    if difference.unused:
        console.print(f"  not compared: {difference.unused} that no INT8 layer reads")
    if difference.different:
        console.print(
            f"  off by more than {FACTOR:g} times: {counted(len(difference.different), 'range')}"
        )
        for entry in difference.different[:_MOST_LISTED]:
            given, fresh = number(entry.given, 3), number(entry.fresh, 3)
            told = f"{given}, now {fresh} by {entry.method}"
            console.print(Text(f"    {printable(entry.tensor)}: {told}"), soft_wrap=True)
    else:
        console.print(f"  no range is off by more than {FACTOR:g} times")
