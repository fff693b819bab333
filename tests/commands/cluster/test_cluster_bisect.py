"""`bisect` on a cluster finds what it finds in one process, by the same evaluations."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dask_workers import joining

import qdebug
from qdebug.decide.bisect import rounds
from qdebug.decide.bisect.candidates import PartRun
from qdebug.decide.bisect.evaluation import SEARCHED, Verifier
from qdebug.decide.bisect.spread import SpreadRunner
from qdebug.decide.search.oracle import Oracle
from qdebug.decide.search.outcome import Check
from qdebug.decide.search.problem import Measurement, Pins, pins_of
from qdebug.execute.cluster import dispatch
from qdebug.execute.cluster.dispatch import Cluster, Pool
from qdebug.types import Precision

DATA = Path(__file__).parents[3] / "calib_data"
METRIC = """
import numpy as np
def share(outputs, labels):
    return float(np.mean(np.argmax(next(iter(outputs.values())), 1) == labels["labels"]))
"""


def found(result: qdebug.BisectResult) -> Any:
    """All that a search says but times."""
    history = [replace(e.measurement, seconds=0.0) for e in result.search.history]
    return (
        result.search.pins,
        history,
        result.search.outcome,
        result.condition.bound,
        result.execution,
    )


@pytest.mark.parametrize(
    "more",
    [
        {"target": "output.sqnr_db>=40"},
        {"target": "layer.cosine>=0.9999", "strategy": "ddmin", "backend": "onnxruntime"},
    ],
    ids=["output", "layer"],
)
def test_the_same_search(address: str, more: dict[str, Any]) -> None:
    how = {
        "inputs": DATA / "digits_holdout.npz",
        "samples": 24,
        "batch_size": 4,  # each worker has some
        "cache": False,
        "max_evaluations": 12,
        **more,
    }
    one = qdebug.bisect(DATA / "digits_cnn.onnx", **how)
    other = qdebug.bisect(DATA / "digits_cnn.onnx", **how, cluster=address)
    assert found(one) == found(other)
    assert one.search.evaluations > 3


def test_workers_that_join_during_a_search_get_samples(
    cluster: Cluster, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, asked = SpreadRunner.evaluate_many, list[set[str]]()
    how: dict[str, Any] = {
        "inputs": DATA / "digits_holdout.npz",
        "samples": 24,
        "batch_size": 4,
        "cache": False,
        "target": "output.sqnr_db>=40",
        "max_evaluations": 8,
    }
    one = qdebug.bisect(DATA / "digits_cnn.onnx", **how)
    cluster.client.wait_for_workers(2)
    with ExitStack() as stack:

        def joined(self: SpreadRunner, *given: Any, **more: Any) -> Any:
            if len(asked) == 1:
                for name in ("first", "second"):
                    stack.enter_context(joining(address, tmp_path / name))
                self._cluster.client.wait_for_workers(4)
            results = evaluate(self, *given, **more)
            asked.append(set(self._cluster._homes.values()))
            return results

        monkeypatch.setattr(SpreadRunner, "evaluate_many", joined)
        other = qdebug.bisect(DATA / "digits_cnn.onnx", **how, cluster=address)
    assert found(one) == found(other)
    assert [len(places) for places in asked[:3]] == [2, 4, 4]


def test_a_metric_of_a_file_and_one_in_memory(address: str, tmp_path: Path) -> None:
    path = tmp_path / "metric.py"
    path.write_text(METRIC, encoding="utf-8")
    space: dict[str, Any] = {}
    exec(METRIC, space)
    how: dict[str, Any] = {
        "inputs": DATA / "digits_holdout.npz",
        "precision": "int8",
        "max_drop": 0.0,
        "samples": 40,
        "batch_size": 8,
        "cache": False,
    }
    one = qdebug.bisect(DATA / "digits_cnn.onnx", **how, metric=f"{path}:share")
    for metric in (f"{path}:share", space["share"]):
        other = qdebug.bisect(DATA / "digits_cnn.onnx", **how, metric=metric, cluster=address)
        assert found(one) == found(other)


def test_where_kernels_fail_for_some_samples_all_run_literally(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are asked twice, and what the search is told is what literal Q/DQ gives."""
    asked: list[bool] = []

    class Failing(Pool[Any, Any]):
        def take(self, number: int) -> Any:
            unit = self._units[number].part
            found = super().take(number)
            if isinstance(found, PartRun) and unit.overrides:
                asked.append(unit.literal)
                return replace(found, failure="" if unit.literal else "no kernel")
            return found

    monkeypatch.setattr(dispatch, "Pool", Failing)
    how = {
        "inputs": DATA / "digits_holdout.npz",
        "samples": 24,
        "batch_size": 4,
        "cache": False,
        "target": "output.sqnr_db>=40",
        "max_evaluations": 3,
    }
    address = str(cluster.client.scheduler.address)
    result = qdebug.bisect(DATA / "digits_cnn.onnx", **how, cluster=address)
    assert all(not e.measurement.failure for e in result.search.history)
    assert False in asked and asked.count(True) >= asked.count(False) > 1


@pytest.mark.parametrize("batch_size", [4, 12], ids=["parts", "whole candidates"])
def test_a_search_that_is_repeated_in_the_simulation(
    address: str, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """Workers that have run it on INT8 kernels before."""

    class Disagreeing(Verifier):
        def check(self, pins: Pins) -> Check:
            check = super().check(pins)
            if check.on != SEARCHED:
                return check
            return replace(check, answer=replace(check.answer, passed=False))

    monkeypatch.setattr(rounds, "Verifier", Disagreeing)
    how: dict[str, Any] = {
        "inputs": DATA / "digits_holdout.npz",
        "samples": 24,
        "batch_size": batch_size,
        "holdout_share": 0.5,
        "cache": False,
        "target": "output.sqnr_db>=40",
        "max_evaluations": 4,
        "time_limit": 60,
    }
    one = qdebug.bisect(DATA / "digits_cnn.onnx", **how)
    other = qdebug.bisect(DATA / "digits_cnn.onnx", **how, cluster=address)
    assert one.search.evaluations == 4
    assert found(one) == found(other)


def test_what_is_expected_is_no_evaluation() -> None:
    asked: list[Pins] = []
    expected: list[Pins] = []

    class Evaluate:
        def __call__(self, sets: Any) -> list[Measurement]:
            asked.extend(sets)
            return [Measurement(1.0, True) for _ in sets]

        def expect(self, sets: Any) -> None:
            expected.extend(sets)

    a, b = (pins_of({name: Precision.FP32}) for name in "ab")
    oracle = Oracle(Evaluate())
    oracle.ask(a)
    oracle.expect([a, b, b])
    assert expected == [b]
    assert oracle.evaluations == 1
    assert asked == [a]
