"""How a sweep is shown: one table that fits a terminal, and a line of CSV per combination."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from qdebug.display.sweep import sweep_to_csv, view
from qdebug.display.terminal import print_view
from qdebug.metrics.tensor import METRIC, Metrics
from qdebug.result import ModelRef
from qdebug.results.calibrate import ReferenceMetric
from qdebug.results.conditions import Checked
from qdebug.results.sweep import (
    Combination,
    EngineFacts,
    EngineRun,
    Failure,
    Misbuilt,
    OutputErrors,
    SweepResult,
    SweepRow,
)

VALUES = {"int8_share": 1.0, "fused_share": 0.5, "reformat_count": 12.0}
METRICS = Metrics(**{**dict.fromkeys(METRIC, 0), "sqnr_db": float("inf"), "cosine": 1.0})
ENGINE = EngineFacts("8.9", 123.4, 1_234_567_890, 1234, VALUES, (), (), (), "0f")
MISBUILT = tuple(Misbuilt(f"layer{k}", "int8", "fp32") for k in range(5))


def result(*, gpu: bool) -> SweepResult:
    rows = []
    for precision in ("int8+fp16", "/plans/a-plan-with-a-rather-long-name.yaml"):
        for level in ("default", "5"):
            point = Combination(
                precision,
                "per-channel",
                compute_capability="8.6+8.9",
                optimization_level=level,
                tactic_sources="default",
                typing="strong",
                tf32="off",
                sparsity="on" if level else "",
                refit="off",
                version_compatible="off",
            )
            errors = OutputErrors({"y": METRICS}, 0.98, 0.99)
            held = (Checked("metric>=0.9", 0.98, True),)
            rows.append(
                SweepRow(
                    len(rows) + 1, point, errors, "" if gpu else "no GPU", ENGINE, conditions=held
                )
            )
    if gpu:
        rows = [replace(r, execution=EngineRun(r.simulation, 1.25 + k)) for k, r in enumerate(rows)]
    failure = Failure("no kernel for [bold]x[/]", "Build for another.", ("[E] much",))
    rows[2] = replace(rows[2], engine=None, failure=failure, execution=None)
    rows[3] = replace(rows[3], engine=replace(ENGINE, mismatches=MISBUILT))
    library, device = "TensorRT for RTX 1.7", "A GPU" if gpu else ""
    return SweepResult(
        model=ModelRef("/m/net.onnx", ""),
        backend="tensorrt-rtx",
        library=library,
        device=device,
        samples=500,
        metric=ReferenceMetric("top1", 0.99),
        combinations=tuple(rows),
        notes=("A note.",),
    )


def shown(found: SweepResult, width: int | None, *, detailed: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=width or 4096, force_terminal=width is not None, color_system=None
    )
    print_view(console, view(found, detailed=detailed))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("gpu", [False, True])
def test_it_fits_a_terminal(gpu: bool) -> None:
    lines = shown(result(gpu=gpu), 80)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "per-channel weights, compute capability 8.6+8.9" in text  # the same in all
    assert "No room for" in text and "json" in text
    assert "#3 failed: no kernel for [bold]x[/] Build for another." in text
    assert "rows layers requested built first layer #4 5 int8 fp32 layer0" in text
    assert "layer1" not in text and "much" not in text
    assert ("Best: #1" in text) is gpu
    assert ("Executed on A GPU" in text) is gpu
    assert ("no GPU" in text) is not gpu


def test_elsewhere_nothing_is_cut() -> None:
    lines = shown(result(gpu=True), None, detailed=True)
    head = next(line for line in lines if line.lstrip().startswith("#"))
    for column in ("precision", "level", "build s", "MB", "layers", "INT8", "fused", "reform.",
                   "audit", "SQNR dB", "cosine", "top1", "ms", "gate"):  # fmt: skip
        assert column in head
    assert any("a-plan-with-a-rather-long-name.yaml" in line for line in lines)
    assert "    [E] much" in lines
    assert "#4 int8 fp32 layer4" in [" ".join(line.split()) for line in lines]


def test_many_mismatches_take_few_lines() -> None:
    """Rows with the same mismatches share a line, however long the names are."""
    found = result(gpu=False)
    long = tuple(Misbuilt(f"/blocks/{k}/{'x' * 90}/Conv", "int8", "fp32") for k in range(40))
    engines = [replace(ENGINE, mismatches=long[k // 3 :]) for k in range(30)]
    rows = [replace(found.combinations[0], number=k, engine=engine)
            for k, engine in enumerate(engines, start=1)]  # fmt: skip
    before = len(shown(replace(found, combinations=tuple(rows[:1])), 80))
    lines = shown(replace(found, combinations=tuple(rows)), 80)
    assert max(map(len, lines)) <= 80
    assert len(lines) - before <= 29 + 8  # the table of all combinations, and the mismatches
    text = [" ".join(line.split()) for line in lines]
    first = next(line for line in text if line.startswith("#1–#3 40 int8 fp32 "))
    second = next(line for line in text if line.startswith("#4–#6 39 int8 fp32 "))
    assert first.split()[-1] != second.split()[-1]
    assert "and 2 more like these" in text


def test_json_and_csv() -> None:
    found = result(gpu=True).to_dict()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["best"] == 1
    rows = found["combinations"]
    assert [r["passed"] for r in rows] == [True, True, False, False]
    assert rows[0]["execution"]["sqnr_db"] is None and rows[0]["executed"]
    assert rows[2]["engine"] is None and rows[2]["failure"]["message"].startswith("no kernel")
    assert found["axes"]["optimization_level"] == ["default", "5"]
    lines = list(csv.DictReader(io.StringIO(sweep_to_csv(result(gpu=False)))))
    assert [line["number"] for line in lines] == ["1", "2", "3", "4"]
    assert lines[0]["int8_share"] == "1.0" and lines[0]["latency_ms"] == ""
    assert lines[0]["errors_of"] == "simulation" and lines[2]["size_bytes"] == ""
