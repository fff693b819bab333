"""`repair` on a cluster gives what it gives in one process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qdebug
from qdebug.decide.remedies.result import RepairResult
from qdebug.decide.repair.spread import Wanted, attempts_elsewhere
from qdebug.execute.cluster.dispatch import Cluster, Pool
from qdebug.network.weights import serialized

DATA = Path(__file__).parents[3] / "calib_data"


def found(result: RepairResult) -> Any:
    """All that a repair says but times."""
    assert result.pinning is not None and result.network is not None
    history = [replace(e.measurement, seconds=0.0) for e in result.pinning.search.history]
    steps = [replace(step, seconds=0.0) for step in result.steps]
    start, repaired = result.baseline, result.repaired
    network = serialized(result.network.proto())
    return steps, start, repaired, result.plan, history, result.pinning.search.pins, network


def test_the_same_remedies_and_pins(
    cluster: Cluster, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One remedy rewrites the network: what is pinned is no file of the user's."""
    cluster.client.wait_for_workers(2)  # another test may have ended one
    given: list[Any] = []
    give = Pool.give

    def counted(self: Any, part: Any, home: int | None = None) -> int:
        given.append(part)
        return give(self, part, home)

    with np.load(DATA / "digits_holdout.npz") as arrays:
        few = {"input": arrays["input"][:64]}
    how: dict[str, Any] = {
        "calib_data": DATA / "digits_calib.npz",
        "inputs": few,
        "samples": 48,
        "only": ("channel-scales", "bias-correction"),
        "target": "output.sqnr_db>=38",
        "cache": False,
    }
    one = qdebug.repair(DATA / "digits_cnn.onnx", **how)
    monkeypatch.setattr(Pool, "give", counted)
    other = qdebug.repair(DATA / "digits_cnn.onnx", **how, cluster=address)
    assert found(one) == found(other)
    assert any(step.accepted and step.remedy == "channel-scales" for step in one.steps)
    attempts = [part for part in given if isinstance(part, Wanted)]
    assert len(attempts) > len(one.steps) > 1  # some were begun in vain
    assert {part.network is None for part in attempts} == {True, False}


def test_processes_that_share_the_commands_cores_get_no_attempts(cluster: Cluster) -> None:
    """Each of them would have one of these cores, and most of them nothing to do."""
    assert cluster.here
    setup: Any = SimpleNamespace(context=SimpleNamespace(cluster=cluster), start=None, study=None)
    with ExitStack() as stack:
        assert attempts_elsewhere(stack, setup, None) is None
