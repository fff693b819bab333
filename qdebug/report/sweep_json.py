"""The machine contract of `sweep`, schema qdebug.sweep/1, and its table as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

from qdebug.measure.metrics import METRIC_NAMES
from qdebug.measure.sweep import ENGINE_VALUES, EngineFacts, OutputErrors, SweepResult, SweepRow
from qdebug.report.numbers import finite

SWEEP_SCHEMA = "qdebug.sweep/1"


def sweep_to_json(result: SweepResult) -> dict[str, Any]:
    """`result` as JSON types; null for what was not measured or is not told."""
    values = [row.combination.values for row in result.rows]
    best = result.best
    return {
        "schema": SWEEP_SCHEMA,
        "model": {"path": result.model_path, "sha256": result.model_sha256},
        "backend": result.backend,
        "library": result.library,
        "device": result.device or None,
        "samples": result.samples,
        "metric": finite({"name": result.metric, "reference": result.reference_task})
        if result.metric
        else None,
        "axes": {axis: list(dict.fromkeys(v[axis] for v in values)) for axis in values[0]},
        "verdict": {"passed": result.passed if result.gated else None},
        "best": None if best is None else best + 1,
        "combinations": [_row(k, row) for k, row in enumerate(result.rows, start=1)],
        "notes": list(result.notes),
        "timings_s": {"total": result.seconds},
    }


def _row(k: int, row: SweepRow) -> dict[str, Any]:
    return {
        "number": k,
        **row.combination.values,
        "engine": row.engine and _engine(row.engine),
        "failure": row.failure and asdict(row.failure),
        "executed": row.latency_ms is not None,
        "not_executed_because": row.not_run or None,
        "simulation": _errors(row.simulation),
        "execution": row.execution and _errors(row.execution.errors),
        "latency_ms": row.latency_ms,
        "passed": row.passed,
        "conditions": [
            finite({"expression": c.expression, "value": c.value, "passed": c.passed})
            for c in row.conditions
        ],
    }


def _engine(engine: EngineFacts) -> dict[str, Any]:
    return {
        "built_for": engine.built_for,
        "build_s": engine.seconds,
        "cached": engine.cached,
        "size_bytes": engine.size_bytes,
        "sha256": engine.digest,
        "layers": engine.layers,
        "values": dict(engine.values),
        "mismatches": [asdict(m) for m in engine.mismatches],
        "unknown": list(engine.unknown),
        "warnings": list(engine.warnings),
    }


def _errors(errors: OutputErrors) -> dict[str, Any]:
    return {
        "failure": errors.failure or None,
        **finite({"sqnr_db": errors.sqnr_db, "cosine": errors.cosine, "metric": errors.task}),
        "outputs": [
            {"tensor": name, **finite({n: getattr(m, n) for n in METRIC_NAMES})}
            for name, m in errors.outputs.items()
        ],
    }


def sweep_to_csv(result: SweepResult) -> str:
    """One line per combination, all figures of engines in columns; empty where there is none."""
    text = io.StringIO()
    axes = list(result.rows[0].combination.values)
    columns = ["number", *axes, *ENGINE_VALUES, "errors_of", "sqnr_db", "cosine", "metric"]
    writer = csv.DictWriter(text, [*columns, "passed", "failure"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_line(k, row) for k, row in enumerate(result.rows, start=1))
    return text.getvalue()


def _line(k: int, row: SweepRow) -> dict[str, Any]:
    errors = row.errors
    return {
        "number": k,
        **row.combination.values,
        **{name: row.engine_value(name) for name in ENGINE_VALUES},
        "errors_of": "engine" if row.execution else "simulation",
        "sqnr_db": errors.sqnr_db,
        "cosine": errors.cosine,
        "metric": errors.task,
        "passed": row.passed,
        "failure": row.failure.message if row.failure else "",
    }
