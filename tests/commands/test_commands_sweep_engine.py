"""The engine of a combination executed on a fake GPU: its own errors, latency, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import parallelism
from qdebug.backends.tensorrt.backend import TensorRTBackend
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.commands.sweep.measured import FoundEngine, PairEvaluator, executed
from qdebug.execute.context import Context
from qdebug.memo import Memo
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.results.sweep import EngineFacts, EngineRun
from qdebug.testing.cuda import FakeCuda
from qdebug.testing.tensorrt import fake_build, fake_maker
from qdebug.types import Precision, ignore_progress

FACTS = EngineFacts("a GPU", 0.1, 1, 1, {}, (), (), (), "0f")
RNG = np.random.default_rng(0)


def subject_in(folder: Path) -> ModelPair:
    """y = x·w in INT8."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 8])],
        [value("y", TensorProto.FLOAT, ["N", 8])],
        [numpy_helper.from_array(RNG.normal(size=(8, 8)).astype(np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(proto, folder / "m.onnx")
    model = prepare_model(read_model(folder / "m.onnx"))
    plan = PrecisionPlan(Precision.INT8, tensors={"x": TensorRange(3.0)})
    return planned_pair(model, bind_plan(plan, model, find_layers(model.graph)))


def test_an_engine_is_executed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "cache"))
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(10, 8)).astype(np.float32))
    pair, cuda = subject_in(tmp_path), FakeCuda()
    samples = open_samples(str(tmp_path / "x.npz"), pair.reference.inputs, batch_size=4)
    memo, backend = Memo(), SimulationBackend()
    context = Context(backend, backend, parallelism(), ignore_progress, batch_size=4, memo=memo)
    judge = PairEvaluator(context, whole(samples), None)
    here = Device("a GPU", (8, 9), 1)
    factory = replace(fake_maker(cuda=cuda), cache=Memo(tmp_path / "engines"))
    runtime = TensorRTBackend(factory, here)
    runtime = runtime.fitted(pair.candidate.inputs, [{"x": (4, 8)}, {"x": (2, 8)}])
    built = fake_build(factory.library, pair.candidate.proto, runtime.factory.settings)

    def run(found: FoundEngine, on: Device = here) -> EngineRun:
        return executed(replace(runtime, device=on), pair, found, judge, memo)

    first = run(FoundEngine(FACTS, built))
    simulation = judge.simulated(pair)
    assert first.errors.sqnr_db == pytest.approx(simulation.sqnr_db, abs=0.1)
    assert 30 < (first.errors.sqnr_db or 0) < 60 and first.latency_ms == 1.0
    assert cuda.used_bytes == 0
    nothing = replace(built, engine=b"")  # would fail to load
    assert run(FoundEngine(FACTS, nothing)) == first
    failed = run(FoundEngine(FACTS, nothing), Device("another", (8, 9), 1))
    assert failed.errors.failure and failed.latency_ms is None
    assert not failed.errors.outputs and cuda.used_bytes == 0
