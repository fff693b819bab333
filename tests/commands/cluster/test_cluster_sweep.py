"""`sweep` on a cluster gives the rows that it gives in one process."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qdebug
from qdebug.commands.sweep import spread
from qdebug.commands.sweep.measured import OutputEvaluator
from qdebug.config.sweep import SweepSettings
from qdebug.errors import ClusterError, UsageError
from qdebug.execute.cluster.dispatch import Cluster, Pool
from qdebug.results.sweep import SweepResult, SweepRow
from qdebug.types import Progress

DATA = Path(__file__).parents[3] / "calib_data"
CNN = DATA / "digits_cnn.onnx"
HOW: dict[str, Any] = {
    "inputs": DATA / "digits_holdout.npz",
    "samples": 24,
    "precision": ("int8", "fp32"),
    "weights": ("per-channel", "per-tensor"),
    "metric": "top1",
    "backend": "onnxruntime",
}


def timeless(result: SweepResult) -> SweepResult:
    """All but times, which may differ."""
    return replace(result, combinations=tuple(map(_timeless, result.combinations)), timings_s={})


def _timeless(row: SweepRow) -> SweepRow:
    assert row.engine is not None
    run = row.execution and replace(row.execution, latency_ms=1.0)
    return replace(row, engine=replace(row.engine, build_s=0.0), execution=run)


@pytest.mark.parametrize(("metric", "size"), [("top1", None), ("top1", 4), (None, 4)])
def test_a_worker_that_dies_changes_no_row(
    cluster: Cluster, address: str, metric: str | None, size: int | None
) -> None:
    def kill_one(step: Progress) -> None:
        if step.stage == "sweep" and not killed:
            killed.append(next(iter(cluster.client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    how = {**HOW, "cache": False, "metric": metric, "batch_size": size}
    one = qdebug.sweep(CNN, **how)
    other = qdebug.sweep(CNN, **how, cluster=address, progress=kill_one)
    assert timeless(one) == timeless(other)
    assert killed and len(one.combinations) == 3
    assert all(row.latency_ms for row in other.combinations)


def test_local_workers_execute_the_engines_and_the_command_times_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = qdebug.sweep(CNN, **HOW, cache=False)
    monkeypatch.setattr(OutputEvaluator, "of", None)  # in this process
    other = qdebug.sweep(CNN, **HOW, cache=False, cluster="local:2")
    assert timeless(one) == timeless(other)
    assert all(row.latency_ms for row in other.combinations)


@pytest.mark.parametrize(
    ("executed", "metric", "divided"),
    [(False, None, True), (True, None, False), (False, "top1", False)],
)
def test_workers_divide_the_samples_of_simulations(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    executed: bool,
    metric: str | None,
    divided: bool,
) -> None:
    """Not where each of them runs FP32 on all samples anyway, for engines, or for a metric."""
    given: list[tuple[int | None, int | None]] = []
    give = Pool.give

    def spy(self: Any, part: Any, home: int | None = None) -> int:
        if isinstance(part, spread.Wanted) and part.build is None:
            given.append((part.part, home))
        return give(self, part, home)

    monkeypatch.setattr(Pool, "give", spy)
    monkeypatch.setattr(spread, "local_processes", lambda _: 2 if executed else 0)
    how = {**HOW, "cache": False, "batch_size": 4, "precision": "int8", "metric": metric}
    found = qdebug.sweep(CNN, **how, cluster=address)
    assert given == (2 * [(0, 0), (1, 1)] if divided else 2 * [(None, None)])
    assert timeless(found) == timeless(qdebug.sweep(CNN, **how))


def test_engines_are_saved_and_a_sweep_that_was_killed_finds_them(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    how = {
        **HOW,
        "backend": "tensorrt-rtx",
        "precision": "int8",
        "weights": "per-channel",
        "compute_capability": ("8.6", "8.9"),
    }
    found = qdebug.sweep(CNN, **how, save_engines=str(tmp_path / "out"), cluster=address)
    for row in found.combinations:
        assert row.engine is not None
        size = (tmp_path / "out" / f"{row.number}.engine").stat().st_size
        assert size == row.engine.size_bytes
    # What workers made is kept as in one process, as far as they share the folder.
    monkeypatch.setattr(OutputEvaluator, "of", None)
    again = qdebug.sweep(CNN, **how)
    assert [row.engine and row.engine.cached for row in again.combinations] == [True, True]
    assert [row.simulation for row in again.combinations] == [
        row.simulation for row in found.combinations
    ]


def test_workers_that_would_disturb_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spread, "visible_gpus", lambda: ("0", "1"))
    settings = SweepSettings("m.onnx", "x.npz", backend="tensorrt", cluster="local:2")
    spread.check_cluster(settings)
    spread.check_cluster(replace(settings, backend="tensorrt-rtx", cluster="local:9"))
    for wrong in (
        replace(settings, cluster="local:3"),
        replace(settings, timing_cache="t.cache"),
    ):
        with pytest.raises(UsageError) as found:
            spread.check_cluster(wrong)
        assert found.value.code == "QD-USAGE-CLUSTER"


def test_a_worker_with_another_builder_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "_builder", lambda _: ("another library", "another GPU"))
    with pytest.raises(ClusterError) as found:
        qdebug.sweep(CNN, **HOW, cluster=address)
    assert found.value.code == "QD-CLUSTER-OTHER-BUILDER"
