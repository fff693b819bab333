"""`qdebug sweep` where engines are executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qdebug.backends.tensorrt.execute.cuda import Cuda
from qdebug.commands.sweep.command import sweep
from qdebug.config.sweep import SweepSettings

DATA = Path(__file__).parents[2] / "calib_data"
AT_LEAST_DB = {"fp32": 90, "fp16": 50, "int8": 25}


def test_a_sweep_measures_the_engines_themselves(
    cuda: Cuda, figures: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path))
    settings = SweepSettings(
        str(DATA / "digits_encoder.onnx"),
        str(DATA / "digits_holdout.npz"),
        precision=("int8", "fp16", "fp32"),
        optimization_level=("0", "3"),
        calib_data=str(DATA / "digits_calib.npz"),
        samples=32,
        batch_size=16,
        fail_on=("output.sqnr_db>=45",),
    )
    found = sweep(settings)
    figures["sweep"] = [
        {**r.combination.values, "ms": r.latency_ms, "sqnr_db": r.errors.sqnr_db}
        for r in found.combinations
    ]
    assert found.device and not any(r.failure or r.not_executed_because for r in found.combinations)
    for row in found.combinations:
        assert row.execution is not None and (row.latency_ms or 0) > 0
        assert (row.errors.sqnr_db or 0) >= AT_LEAST_DB[row.combination.precision]
        if row.combination.precision == "int8":  # a coarse error is the same in both
            assert row.errors.sqnr_db == pytest.approx(row.simulation.sqnr_db, abs=1)
    passing = [row.latency_ms for row in found.combinations if row.passed and row.latency_ms]
    assert found.best is not None and found.combinations[found.best - 1].latency_ms == min(passing)
    again = sweep(settings)
    assert [row.execution for row in again.combinations] == [
        row.execution for row in found.combinations
    ]
