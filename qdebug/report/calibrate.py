"""Show and serialise what `calibrate` found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

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
from qdebug.measure.metrics import METRIC_NAMES
from qdebug.plan.quantize import scale_of
from qdebug.report.coverage import coverage_to_json, print_coverage
from qdebug.report.names import shorten
from qdebug.report.numbers import finite
from qdebug.report.tables import print_indented, print_table
from qdebug.report.view import counted, decibel, number, printable, share

CALIBRATE_SCHEMA = "qdebug.calibrate/1"
_MOST_LISTED = 5


def calibrate_to_json(result: CalibrateResult) -> dict[str, Any]:
    """Schema qdebug.calibrate/1."""
    difference = result.cache_difference
    return {
        "schema": CALIBRATE_SCHEMA,
        "model": {"path": result.model_path, "sha256": result.model_sha256},
        "calibration_samples": result.calibration_samples,
        "held_out_samples": result.held_out_samples,
        "metric": finite({"name": result.metric, "reference": result.reference_task})
        if result.metric
        else None,
        "methods": {m.name: _method(m) for m in result.methods},
        "weights": {
            tensor: {"amax": entry.amax, "method": entry.method}
            for tensor, entry in result.weights.items()
        },
        "best": result.best,
        "best_by": result.best_by,
        "coverage": coverage_to_json(result.coverage),
        "mix": dict(result.mix.counts) if result.mix else None,
        "mix_chosen_on_samples": result.mix.samples if result.mix else None,
        "from_cache": result.from_cache,
        "cache_difference": difference and _difference(difference),
        "notes": list(result.notes),
    }


def print_calibrate(console: Console, result: CalibrateResult) -> None:
    """The methods side by side, where they differ, coverage, and which one to take."""
    name = Path(result.model_path).name
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
    if result.metric and result.reference_task is not None:
        console.print(f"{result.metric} in FP32: {result.reference_task:.4f}")
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
    columns = [result.metric.rpartition(":")[2]] if result.metric else []
    for column in [*columns, "SQNR dB", "cosine", "clipped (mean)", "clipped (most)"]:
        table.add_column(Text(shorten(column, 20)), justify="right", no_wrap=True)
    for method in result.methods:
        trial = method.trial
        cosine = min((m.cosine for m in trial.outputs.values()), default=math.nan)
        clipped = list(method.clipped.values())
        cells = [f"{trial.task:.4f}"] if trial.task is not None else []
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
    shown = [m for m in result.methods if m.name != "mix"]
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
    return float(np.max(method.tensors[tensor].amax))


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


def _method(method: MethodResult) -> dict[str, Any]:
    outputs = {
        tensor: finite({name: getattr(metrics, name) for name in METRIC_NAMES})
        for tensor, metrics in method.trial.outputs.items()
    }
    return {
        "tensors": {
            tensor: {
                "amax": entry.amax,
                "scale": scale_of(entry.amax).tolist(),
                "method": entry.method,
                "clipped_fraction": method.clipped.get(tensor),
            }
            for tensor, entry in method.tensors.items()
        },
        "outputs": outputs,
        **finite({"sqnr_db": method.trial.sqnr_db, "metric": method.trial.task}),
    }


def _difference(difference: CacheDifference) -> dict[str, Any]:
    return {
        "written_by": difference.written_by,
        "missing": list(difference.missing),
        "unknown": list(difference.unknown),
        "unused": difference.unused,
        "degenerate": list(difference.degenerate),
        "different": [
            {"tensor": d.tensor, "given": d.given, "fresh": d.fresh, "method": d.method}
            for d in difference.different
        ],
    }
