"""A time limit holds, set-up included, on a clock that only what is slow moves."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdebug
from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.simulation import OrtSession
from qdebug.backends.sizing import Parallelism
from qdebug.commands.check.trials import suspicions
from qdebug.errors import UsageError
from qdebug.execute.context import simulation_context
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.samples import open_samples
from qdebug.types import Array, ignore_progress

DATA = Path(__file__).parents[2] / "calib_data"
NETWORK = DATA / "digits_cnn.onnx"
METRIC_S, RUN_S = 10.0, 1.0
AT_ONCE = 4
"""Runs that may be under way, or be waited for, when the time is over."""


class Clock:
    """Moved by what is slow; see `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, real = Clock(), time.perf_counter
    monkeypatch.setattr(time, "monotonic", clock)
    # Never still, for what divides by how long something took.
    monkeypatch.setattr(time, "perf_counter", lambda: real() + clock())
    return clock


@pytest.fixture
def slow_network(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    run = OrtSession.run

    def slow(session: Any, feeds: Any) -> Any:
        clock.move(RUN_S)
        return run(session, feeds)

    monkeypatch.setattr(OrtSession, "run", slow)


def slow_metric(clock: Clock) -> Callable[..., float]:
    def closeness(outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> float:
        clock.move(METRIC_S)
        (found,), (exact,) = outputs.values(), reference.values()
        return float(1 - np.abs(found - exact).mean() / np.abs(exact).mean())

    return closeness


def repaired(limit: float | None, target: str | None = "metric>=0.9999", **more: Any) -> Any:
    return qdebug.repair(
        NETWORK, calib_data=DATA / "digits_calib.npz", inputs=DATA / "digits_holdout.npz",
        calib_samples=24, weights="per-tensor", cache=False, target=target, time_limit=limit,
        **more,
    )  # fmt: skip


def searched(limit: float | None, target: str = "metric>=0.9999", **more: Any) -> Any:
    return qdebug.bisect(
        NETWORK, inputs=DATA / "digits_holdout.npz", samples=48, batch_size=2,
        weights="per-tensor", cache=False, target=target, time_limit=limit, **more,
    )  # fmt: skip


ONE_JUDGEMENT_S = 13 * METRIC_S
"""Of repair: the metric on all samples, and without each of twelve groups."""
ONE_CANDIDATE_S = 2 * METRIC_S
"""Of bisect: two candidates are evaluated side by side where there are two cores."""


@pytest.mark.parametrize(
    ("limit", "target"), [(600.0, "metric>=0.9999"), (1500.0, "metric>=0.9999"), (3000.0, None)]
)
def test_repair_with_a_slow_metric(clock: Clock, limit: float, target: str | None) -> None:
    started = clock()
    result = repaired(limit, target, metric=slow_metric(clock), batch_size=25)
    assert clock() - started <= limit + ONE_JUDGEMENT_S
    assert "time limit" in result.explanation
    assert result.proof.samples and result.proof.start.metric is not None


@pytest.mark.parametrize("limit", [80.0, 150.0, 400.0])
def test_bisect_with_a_slow_metric(clock: Clock, limit: float) -> None:
    started = clock()
    result = searched(limit, metric=slow_metric(clock))
    assert clock() - started <= limit + ONE_CANDIDATE_S
    assert result.search.outcome == "unfinished" or result.passed


@pytest.mark.usefixtures("slow_network")
@pytest.mark.parametrize("limit", [1500.0, 2500.0])
def test_repair_of_a_slow_network(clock: Clock, limit: float) -> None:
    started = clock()
    result = repaired(limit, "output.sqnr_db>=90")
    one = result.choosing_samples * RUN_S
    assert clock() - started <= limit + one + AT_ONCE * RUN_S
    assert "time limit" in result.explanation
    assert np.isfinite(result.proof.start.sqnr_db)


@pytest.mark.usefixtures("slow_network")
def test_repair_leaves_half_of_the_time_for_the_search_for_pins() -> None:
    """A search that can try nothing and everything only pins everything. Held-out samples are run
    before the first remedy, which takes 504 s."""
    result = repaired(9000.0 + 504.0, "output.sqnr_db>=45")
    assert result.pinning is not None and len(result.pinning.history) >= 5
    assert 0 < len(result.pinned) < result.pinning.candidates


@pytest.mark.usefixtures("slow_network")
@pytest.mark.parametrize("limit", [150.0, 300.0, 900.0])
def test_bisect_of_a_slow_network(clock: Clock, limit: float) -> None:
    started = clock()
    result = searched(limit, "output.sqnr_db>=60")
    one = 2 * result.samples * RUN_S
    assert clock() - started <= limit + one + AT_ONCE * RUN_S


@pytest.mark.usefixtures("slow_network")
@pytest.mark.parametrize(("limit", "runs"), [(40.0, 2), (math.inf, 32)])
def test_the_look_at_the_samples_takes_a_small_part_of_the_time(
    clock: Clock, limit: float, runs: int
) -> None:
    context = simulation_context(Parallelism(1, 1), ignore_progress, DEFAULT_SESSIONS)
    graph = prepare_model(read_model(str(NETWORK))).graph
    samples = open_samples(str(DATA / "digits_holdout.npz"), graph.inputs, batch_size=1)
    started = clock()
    suspicions(context, graph, samples, load_metric("top1"), ends_at=started + limit)
    assert clock() - started == runs * RUN_S


@pytest.mark.usefixtures("slow_network")
@pytest.mark.parametrize("command", [repaired, searched])
def test_a_limit_that_the_setup_takes_is_said_at_once(
    clock: Clock, command: Callable[..., Any]
) -> None:
    started = clock()
    with pytest.raises(UsageError) as caught:
        command(5.0, "output.sqnr_db>=60")
    assert caught.value.code == "QD-USAGE-TIME-LIMIT"
    assert clock() - started <= 5.0 + AT_ONCE * RUN_S


def test_without_a_limit_nothing_is_cut(clock: Clock) -> None:
    result = searched(None, "metric>=0.9", metric=slow_metric(clock))
    assert result.passed and result.search.outcome != "unfinished"
