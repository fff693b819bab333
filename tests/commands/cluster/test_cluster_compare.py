"""`compare` on a cluster gives what it gives in one process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from half_networks import Builder

import qdebug
from qdebug.errors import UsageError
from qdebug.execute.cluster import dispatch, sharing
from qdebug.execute.cluster.dispatch import Cluster
from qdebug.execute.cluster.files import SharedFile, shared_file
from qdebug.results.compare import CompareResult

ROOT = Path(__file__).parents[3]
DATA = ROOT / "calib_data"
CNN = DATA / "digits_cnn.onnx"
HOW = {"inputs": DATA / "digits_holdout.npz", "samples": 64, "batch_size": 4, "effect": "fast"}


def same(one: CompareResult, other: CompareResult) -> None:
    """All figures are equal, bit for bit: up to 16 executions the order of sums is the same."""
    assert strip(one) == strip(other)


def strip(result: CompareResult) -> CompareResult:
    return replace(result, timings_s={}, run_file=None)


def test_a_plan_with_a_metric(address: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {**HOW, "metric": "top1", "keep": "worst:20"}
    one = qdebug.compare(CNN, **how, output=tmp_path / "one.h5")
    other = qdebug.compare(CNN, **how, output=tmp_path / "other.h5", cluster=address)
    same(one, other)
    kept = [qdebug.load_run(tmp_path / name) for name in ("one.h5", "other.h5")]
    assert set(kept[0].samples) == set(kept[1].samples)
    tensor = one.layers[0].tensor
    for sample in kept[0].samples:
        for run in ("reference", "candidate"):
            a, b = (getattr(file.tensors[tensor], run)[sample] for file in kept)
            assert np.array_equal(a, b)


@pytest.mark.usefixtures("in_groups")
def test_layers_that_are_measured_in_groups(address: str) -> None:
    """Which are halved follows from what the workers found before."""
    one = qdebug.compare(CNN, **HOW)
    assert one.effect is not None and 0 < one.effect.grouped_layers < 14
    same(one, qdebug.compare(CNN, **HOW, cluster=address))


def network() -> onnx.ModelProto:
    """One that chooses, and selects by a threshold."""
    b = Builder(7)
    h = b.linear("x", 16, 32)
    scores = b.add("Sigmoid", b.linear(h, 32, 8))
    chosen = b.add("Where", b.add("Greater", scores, b.constant(0.5)), h8 := b.linear(h, 32, 8), h8)
    return b.model({"x": ["n", 16]}, [chosen, b.add("Cast", b.add("ArgMax", scores, axis=1), to=1)])


X = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def test_objects_in_memory_and_groups_of_tensors(address: str) -> None:
    def feeds() -> Iterator[dict[str, np.ndarray]]:
        yield from ({"x": row[None]} for row in X)

    how: dict[str, Any] = {"calib_data": {"x": X}, "batch_size": 2, "memory_budget": "12K"}
    one = qdebug.compare(network(), inputs={"x": X}, **how)
    same(one, qdebug.compare(network(), inputs={"x": X}, **how, cluster=address))
    how.pop("batch_size")
    one = qdebug.compare(network(), inputs=feeds, **how)
    same(one, qdebug.compare(network(), inputs=feeds, **how, cluster=address))


@pytest.mark.parametrize("referenced", [True, False])
def test_a_quantized_model(address: str, tmp_path: Path, referenced: bool) -> None:
    qdebug.compare(CNN, **{**HOW, "effect": "none"}, save_plan=tmp_path / "plan.yaml")
    qdebug.export(tmp_path / "plan.yaml", to="onnx", output=tmp_path / "int8.onnx")
    how: dict[str, Any] = {**HOW, "reference": CNN if referenced else None}
    one = qdebug.compare(tmp_path / "int8.onnx", **how)
    same(one, qdebug.compare(tmp_path / "int8.onnx", **how, cluster=address))


def test_a_run_file_is_not_reused(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as found:
        qdebug.compare(CNN, **HOW, reference=tmp_path / "run.h5", cluster=address)
    assert found.value.code == "QD-USAGE-CLUSTER"


def test_files_that_workers_do_not_see(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, external data, samples and jobs are sent: workers run in another folder, where the
    relative paths lead nowhere."""
    model = onnx.load(CNN)
    path = tmp_path / "cnn.onnx"
    onnx.save(model, path, save_as_external_data=True, location="cnn.data", size_threshold=0)
    how = {**HOW, "inputs": shutil.copy(DATA / "digits_holdout.npz", tmp_path)}
    sent: list[str] = []
    send = Cluster.send

    def counted(self: Cluster, file: SharedFile, to: str, *, again: bool = False) -> None:
        sent.extend(file.names)
        send(self, file, to, again=again)

    def relative(path: str | Path, beside: Sequence[str] = ()) -> SharedFile:
        file = shared_file(path, beside)
        return replace(file, folder=os.path.relpath(file.folder, tmp_path))

    one = qdebug.compare(path, **how)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Cluster, "send", counted)
    monkeypatch.setattr(dispatch, "shared_file", relative)
    monkeypatch.setattr(sharing, "shared_file", relative)
    same(one, qdebug.compare(path, **how, cluster=address))
    assert {"cnn.onnx", "cnn.data", "digits_holdout.npz"} < set(sent)
