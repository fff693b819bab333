"""Which combination of a sweep passes, and which one is the best."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from qdebug.metrics.tensor import METRIC, METRICS, OUTPUT_METRICS, Metrics
from qdebug.result import ModelRef
from qdebug.results.conditions import parse_condition, parse_value_condition
from qdebug.results.sweep import (
    ENGINE_VALUES,
    Combination,
    EngineFacts,
    EngineRun,
    Failure,
    Misbuilt,
    OutputErrors,
    SweepResult,
    SweepRow,
    idle_axes,
)

VALUES = {"int8_share": 0.75, "mismatch_count": 0.0, "sparse_share": None}
ENGINE = EngineFacts("8.9", 1.5, 2_000_000, 12, VALUES, (), (), (), "0f")
POINT = Combination(
    "int8", "per-channel", "8.9", "default", "default", "strong", "off", "off", "off", "off"
)


def errors(*sqnr_db: float, task: float | None = None) -> OutputErrors:
    blank: dict[str, Any] = dict.fromkeys(METRIC, 0)
    return OutputErrors(
        {f"y{k}": Metrics(**{**blank, "sqnr_db": v}) for k, v in enumerate(sqnr_db)}, task, 1.0
    )


def row(**changes: Any) -> SweepRow:
    return replace(SweepRow(1, POINT, errors(30.0), "no GPU", ENGINE), **changes)


def swept(*rows: SweepRow) -> SweepResult:
    numbered = tuple(replace(row, number=k) for k, row in enumerate(rows, start=1))
    return SweepResult(
        model=ModelRef("m.onnx", ""),
        backend="tensorrt-rtx",
        library="TensorRT",
        device="",
        samples=4,
        metric=None,
        combinations=numbered,
    )


def test_every_metric_of_outputs_has_a_column() -> None:
    (cells,) = swept(row()).rows()
    assert {m.name for m in OUTPUT_METRICS} <= set(cells)
    assert cells["sqnr_db"] == 30 and all(m.better for m in OUTPUT_METRICS)


def test_the_worst_output_of_a_metric() -> None:
    known = {metric.name: metric for metric in METRICS}
    outputs = errors(30.0, 20.0).outputs
    assert known["sqnr_db"].worst(outputs) == 20 and known["sqnr_db"].worst({}) is None
    large = {k: replace(m, rmse=m.sqnr_db) for k, m in outputs.items()}
    assert known["rmse"].worst(large) == 30  # less is better
    assert math.isnan(
        known["rmse"].worst({**large, "z": replace(outputs["y0"], rmse=math.nan)}) or 0
    )


def sqnr(bound: float) -> Any:
    return parse_condition(f"output.sqnr_db>={bound}", {"output": ("sqnr_db",)})


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("int8_share>=0.75", True),
        ("int8_share>0.75", False),
        ("build_s<=2", True),
        ("size_bytes<1e6", False),
        ("latency_ms<=100", False),  # not measured
        ("sparse_share>=0", False),  # not told
    ],
)
def test_conditions_on_the_engine(text: str, passed: bool) -> None:
    condition = parse_value_condition(text, ENGINE_VALUES)
    assert row().judged([condition]).passed is passed
    assert not row(engine=None).judged([condition]).passed


def test_the_engines_own_errors_count_where_it_ran() -> None:
    assert row(simulation=errors(30.0, 12.0)).judged([sqnr(12)]).passed
    executed = row(execution=EngineRun(errors(10.0), 1.0))
    assert not executed.judged([sqnr(12)]).passed
    assert executed.errors.sqnr_db == 10
    broken = row(simulation=errors(30.0, math.nan))
    assert math.isnan(broken.errors.sqnr_db or 0) and not broken.judged([sqnr(-99)]).passed
    assert errors().sqnr_db is None


def test_the_best_is_the_fastest_that_passes_as_planned() -> None:
    wrong = replace(ENGINE, mismatches=(Misbuilt("conv", "int8", "fp32"),))
    rows = [
        row(execution=EngineRun(errors(30.0), 3.0)),
        row(execution=EngineRun(errors(30.0), 2.0)),
        row(execution=EngineRun(errors(30.0), 1.0), engine=wrong),
        row(execution=EngineRun(errors(5.0), 0.5)),
        row(engine=None, failure=Failure("no kernel")),
    ]
    assert swept(*rows).best == 4  # nothing is asked of its errors
    assert swept(*(r.judged([sqnr(20)]) for r in rows)).best == 2
    none = swept(*(r.judged([sqnr(40)]) for r in rows))
    assert none.best is None and not none.passed


def test_without_a_latency_nothing_is_best() -> None:
    found = swept(row(), row(simulation=errors(60.0)))
    assert found.best is None and found.passed and not found.gated


def built(digest: str, **values: str) -> SweepRow:
    return row(combination=replace(POINT, **values), engine=replace(ENGINE, sha256=digest))


def test_axes_that_changed_no_engine() -> None:
    product = [
        (p, level, tf32) for p in ("int8", "fp16") for level in "05" for tf32 in ("on", "off")
    ]
    rows = [
        built(precision + tf32, precision=precision, optimization_level=level, tf32=tf32)
        for precision, level, tf32 in product
    ]
    assert idle_axes(rows) == ["optimization_level"]
    # One engine that differs, and one that was not built.
    assert idle_axes([replace(rows[0], engine=replace(ENGINE, sha256="?")), *rows[1:]]) == []
    assert idle_axes([row(combination=rows[0].combination, engine=None), *rows[2:]]) == [
        "optimization_level"
    ]
    assert idle_axes([row(engine=None), rows[0]]) == idle_axes([]) == []
