"""Each command gives on workers what it gives in one process, bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import onnx
import pytest
from half_networks import Builder
from producers import small_network

import qdebug
from qdebug.commands.sweep import builds
from qdebug.config.sweep import SweepSettings
from qdebug.decide.bisect.choices import costs_of
from qdebug.decide.remedies.result import RepairResult
from qdebug.errors import ClusterError, UsageError
from qdebug.execute.cluster import sharing
from qdebug.execute.cluster.dispatch import DaskExecutor
from qdebug.execute.cluster.files import SharedFile, shared_file
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.weights import serialized
from qdebug.results.compare import CompareResult
from qdebug.results.sweep import SweepResult, SweepRow
from qdebug.types import Progress

DATA = Path(__file__).parents[3] / "calib_data"
CNN = DATA / "digits_cnn.onnx"
HELD_OUT = DATA / "digits_holdout.npz"
COMPARE: dict[str, Any] = {
    "inputs": HELD_OUT,
    "samples": 32,
    "batch_size": 2,
    "effect": "fast",
    "cache": False,
}
BISECT: dict[str, Any] = {
    "inputs": HELD_OUT,
    "samples": 24,  # more executions than shards
    "batch_size": 1,
    "cache": False,
    "max_evaluations": 6,
}
SWEEP: dict[str, Any] = {
    "inputs": HELD_OUT,
    "samples": 24,
    "precision": ("int8", "fp32"),
    "weights": ("per-channel", "per-tensor"),
    "backend": "onnxruntime",
    "cache": False,
}


class Killing:
    """Takes the progress of a command, and kills a worker at the first of what workers did."""

    def __init__(self, executor: DaskExecutor) -> None:
        self._executor = executor
        self.killed = 0

    def __call__(self, step: Progress) -> None:
        if "worker" in step.note and not self.killed:
            self.killed = next(iter(self._executor.client.run(os.getpid).values()))
            os.kill(self.killed, signal.SIGKILL)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_network(tmp_path_factory.mktemp("small"))


@pytest.fixture
def killing(executor: DaskExecutor) -> Killing:
    return Killing(executor)


def compared(result: CompareResult) -> CompareResult:
    """All but times: sums are equal, bit for bit."""
    return replace(result, timings_s={}, run_file=None)


def test_compare_with_a_metric_and_activations_that_are_kept(
    address: str, small: Path, tmp_path: Path
) -> None:
    how: dict[str, Any] = {**COMPARE, "metric": "top1", "keep": "worst:20", "group": "labels"}
    one = qdebug.compare(small, **how, output=tmp_path / "one.h5")
    other = qdebug.compare(small, **how, output=tmp_path / "other.h5", cluster=address)
    assert compared(one) == compared(other)
    kept = [qdebug.load_run(tmp_path / name) for name in ("one.h5", "other.h5")]
    assert set(kept[0].samples) == set(kept[1].samples)
    tensor = one.layers[0].tensor
    for sample in kept[0].samples:
        for run in ("reference", "candidate"):
            a, b = (getattr(file.tensors[tensor], run)[sample] for file in kept)
            assert np.array_equal(a, b)


def network() -> onnx.ModelProto:
    """One that chooses, and selects by a threshold."""
    b = Builder(7)
    h = b.linear("x", 16, 32)
    scores = b.add("Sigmoid", b.linear(h, 32, 8))
    chosen = b.add("Where", b.add("Greater", scores, b.constant(0.5)), h8 := b.linear(h, 32, 8), h8)
    return b.model({"x": ["n", 16]}, [chosen, b.add("Cast", b.add("ArgMax", scores, axis=1), to=1)])


X = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def test_compare_of_objects_in_memory_in_groups_of_tensors(address: str) -> None:
    def feeds() -> Iterator[dict[str, np.ndarray]]:
        yield from ({"x": row[None]} for row in X)

    how: dict[str, Any] = {"calib_data": {"x": X}, "memory_budget": "12K"}
    for inputs, more in (({"x": X}, {"batch_size": 2}), (feeds, {})):
        one = qdebug.compare(network(), inputs=inputs, **how, **more)
        other = qdebug.compare(network(), inputs=inputs, **how, **more, cluster=address)
        assert compared(one) == compared(other)


def test_compare_of_a_quantized_model_with_its_weights_in_a_file(
    address: str, small: Path, tmp_path: Path
) -> None:
    qdebug.compare(small, **{**COMPARE, "effect": "none"}, save_plan=tmp_path / "plan.yaml")
    qdebug.export(tmp_path / "plan.yaml", to="onnx", output=tmp_path / "int8.onnx")
    model, path = onnx.load(tmp_path / "int8.onnx"), tmp_path / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    how: dict[str, Any] = {**COMPARE, "reference": small}
    one, other = (qdebug.compare(path, **how, cluster=where) for where in (None, address))
    assert compared(one) == compared(other)


def test_samples_that_workers_do_not_see(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another machine, whose drives are others."""

    def elsewhere(path: str | Path, *beside: Any, **more: Any) -> SharedFile:
        file = shared_file(path, *beside, **more)
        return replace(file, folder=f"/elsewhere{file.folder}") if path == str(HELD_OUT) else file

    monkeypatch.setattr(sharing, "shared_file", elsewhere)
    with pytest.raises(ClusterError) as found:
        qdebug.compare(CNN, **COMPARE, cluster=address)
    assert found.value.code == "QD-CLUSTER-FILE-NOT-SEEN"
    assert f"/elsewhere{HELD_OUT}" in found.value.message


@pytest.mark.parametrize("fallback", ["fp32", "fp16"])
def test_calibrate(address: str, small: Path, fallback: str) -> None:
    how: dict[str, Any] = {
        "calib_data": DATA / "digits_calib.npz",
        "holdout": HELD_OUT,
        "batch_size": 8,
        "metric": "top1",
        "fallback_precision": fallback,
        "cache": False,
    }
    one, other = (qdebug.calibrate(small, **how, cluster=where) for where in (None, address))
    assert one.to_dict() == other.to_dict()


def searched(result: qdebug.BisectResult) -> Any:
    """All that a search says but times."""
    history = [replace(e.measurement, seconds=0.0) for e in result.search.history]
    search = result.search
    return search.pins, history, search.outcome, result.condition.bound


@pytest.mark.parametrize(
    "more",
    [
        {"target": "output.sqnr_db>=40"},
        {"target": "layer.cosine>=0.9999", "backend": "onnxruntime", "samples": 8},
    ],
    ids=["parts of the samples", "engines"],
)
def test_bisect(address: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # An engine measures costs in milliseconds, which decide the order of the search.
    monkeypatch.setattr(
        "qdebug.decide.bisect.steps._costs",
        lambda how, setup: costs_of(how, setup.pair, setup.searched.samples, None),
    )
    how = BISECT | more
    one, other = (qdebug.bisect(CNN, **how, cluster=where) for where in (None, address))
    assert searched(one) == searched(other)
    assert one.evaluations > 3


def test_compare_and_bisect_while_a_worker_dies(
    executor: DaskExecutor, address: str, small: Path
) -> None:
    for stage in (0, 1):
        killing, command = Killing(executor), (qdebug.compare, qdebug.bisect)[stage]
        how: dict[str, Any] = (COMPARE, {**BISECT, "target": "output.sqnr_db>=40"})[stage]
        one = command(small, **how)
        other = command(small, **how, cluster=address, progress=killing)
        assert killing.killed
        if isinstance(one, CompareResult):
            assert compared(one) == compared(other)
        else:
            assert searched(one) == searched(other)


METRIC = """
import numpy as np
def share(outputs, labels):
    return float(np.mean(np.argmax(next(iter(outputs.values())), 1) == labels["labels"]))
"""


def test_bisect_with_a_metric_of_a_file_and_one_in_memory(address: str, tmp_path: Path) -> None:
    path, space = tmp_path / "metric.py", dict[str, Any]()
    path.write_text(METRIC, encoding="utf-8")
    exec(METRIC, space)
    how: dict[str, Any] = {**BISECT, "max_drop": 0.0}
    one = qdebug.bisect(CNN, **how, metric=f"{path}:share")
    for metric in (f"{path}:share", space["share"]):
        assert searched(one) == searched(qdebug.bisect(CNN, **how, metric=metric, cluster=address))


def timeless(result: SweepResult) -> SweepResult:
    """All but times, which may differ."""
    return replace(result, combinations=tuple(map(_timeless, result.combinations)), timings_s={})


def _timeless(row: SweepRow) -> SweepRow:
    assert row.engine is not None
    run = row.execution and replace(row.execution, latency_ms=1.0)
    return replace(row, engine=replace(row.engine, build_s=0.0), execution=run)


@pytest.mark.parametrize("metric", ["top1", None])
def test_sweep_while_a_worker_dies(killing: Killing, address: str, metric: str | None) -> None:
    how = {**SWEEP, "metric": metric, "batch_size": 1}
    one = qdebug.sweep(CNN, **how)
    other = qdebug.sweep(CNN, **how, cluster=address, progress=killing)
    assert timeless(one) == timeless(other)
    assert killing.killed and len(one.combinations) == 3
    assert all(row.latency_ms for row in other.combinations)


def test_workers_that_would_disturb_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builds, "visible_gpus", lambda: ("0", "1"))
    settings = SweepSettings("m.onnx", "x.npz", backend="tensorrt", cluster="local:2")
    builds.check_cluster(settings)
    builds.check_cluster(replace(settings, backend="tensorrt-rtx", cluster="local:9"))
    for wrong in (
        replace(settings, cluster="local:3"),
        replace(settings, timing_cache="t.cache"),
    ):
        with pytest.raises(UsageError) as found:
            builds.check_cluster(wrong)
        assert found.value.code == "QD-USAGE-CLUSTER"


def test_a_worker_with_another_builder_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "_builder", lambda _: ("another library", "another GPU"))
    with pytest.raises(ClusterError) as found:
        qdebug.sweep(CNN, **SWEEP, cluster=address)
    assert found.value.code == "QD-CLUSTER-OTHER-BUILDER"


def repaired(result: RepairResult) -> Any:
    """All that a repair says but times."""
    assert result.pinning is not None and result.network is not None
    history = [replace(e.measurement, seconds=0.0) for e in result.pinning.search.history]
    steps = [replace(step, seconds=0.0) for step in result.steps]
    figures = result.baseline, result.repaired, result.plan, result.pinning.search.pins
    return steps, figures, history, serialized(result.network.proto())


def test_repair(address: str) -> None:
    """One remedy rewrites the network: what is pinned is no file of the user's."""
    with np.load(HELD_OUT) as arrays:
        few = {"input": arrays["input"][:64]}
    how: dict[str, Any] = {
        "calib_data": DATA / "digits_calib.npz",
        "inputs": few,
        "samples": 48,
        "only": ("channel-scales", "bias-correction"),
        "target": "output.sqnr_db>=38",
        "cache": False,
    }
    one, other = (qdebug.repair(CNN, **how, cluster=where) for where in (None, address))
    assert repaired(one) == repaired(other)
    assert any(step.accepted and step.remedy == "channel-scales" for step in one.steps)


def test_a_metric_of_boxes_reads_outputs_alike_on_workers(tmp_path: Path) -> None:
    """With what it knows of the model, and with the user's function that reads its outputs."""
    (tmp_path / "read.py").write_text(
        "def boxes(outputs):\n    return outputs['b'], outputs['s']\n"
    )
    facts = ModelFacts({"x": (None, 3, 64, 64)}, {"y": (None, 7, 84)}, {"names": "['a']"})
    for decode in (None, "rt-detr", f"{tmp_path / 'read.py'}:boxes"):
        metric = load_metric("box-f1-to-reference", decode, facts)
        again = cloudpickle.loads(sharing.Sharing(tmp_path).dumps(metric))
        assert (again.name, again.facts) == (metric.name, facts)
        assert again.described == metric.described and again.key == metric.key
