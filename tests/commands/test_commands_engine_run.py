"""FP32, simulation and engine side by side, on a fake GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.backends.budget import Budget
from qdebug.backends.engine import BuiltEngine, CaptureWay
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import Parallelism
from qdebug.backends.tensorrt.backend import WAYS, TensorRTBackend
from qdebug.errors import BackendError
from qdebug.execute.context import Context
from qdebug.execute.engine.attribute import EngineFindings, attribute_engine
from qdebug.execute.engine.build import fitted
from qdebug.execute.engine.observe import EngineJob, preflight
from qdebug.network.graph import Graph
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.testing.cuda import FakeCuda
from qdebug.testing.tensorrt import fake_build, fake_maker
from qdebug.types import ignore_progress

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(2, 8, 8)).astype(np.float32) / 3


def network(scale: float = 1.0) -> Graph:
    """x → MatMul m → Relu r → MatMul y; `scale` is applied to the first weights."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["m"], "first"),
            helper.make_node("Relu", ["m"], ["r"], "relu"),
            helper.make_node("MatMul", ["r", "w1"], ["y"], "second"),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 8])],
        [value("y", TensorProto.FLOAT, ["N", 8])],
        [
            numpy_helper.from_array(WEIGHTS[0] * np.float32(scale), "w0"),
            numpy_helper.from_array(WEIGHTS[1], "w1"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return Graph(onnx.shape_inference.infer_shapes(proto))


REFERENCE = network()
COARSE = network(1.03)
"""Stands for a lowered model: about 30 dB from the reference everywhere."""
TENSORS = {t: t for t in ("x", "m", "r", "y")}

Build = Callable[..., BuiltEngine]


@pytest.fixture
def job(tmp_path: Any) -> EngineJob:
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(10, 8)).astype(np.float32))
    samples = open_samples(str(tmp_path / "x.npz"), REFERENCE.inputs, batch_size=4)
    batches = list(samples.batches())
    runtime = fitted(TensorRTBackend(fake_maker(cuda=FakeCuda())), REFERENCE, samples, batches)
    context = Context(SimulationBackend(), SimulationBackend(), Parallelism(2, 1), ignore_progress)
    return EngineJob(runtime, context, whole(samples))


def built_by(job: EngineJob, build: Build, ways: Sequence[CaptureWay] | None = None) -> EngineJob:
    runtime = job.runtime
    assert isinstance(runtime, TensorRTBackend)
    factory = replace(runtime.factory, build=build)
    return replace(job, runtime=replace(runtime, factory=factory, ways=ways or runtime.ways))


def run(
    job: EngineJob,
    build: Build = fake_build,
    ways: Sequence[CaptureWay] | None = None,
    **changes: Any,
) -> EngineFindings:
    job = replace(built_by(job, build, ways), **changes)
    found = attribute_engine(job, REFERENCE, COARSE, TENSORS)
    assert isinstance(job.runtime, TensorRTBackend)
    cuda = job.runtime.factory.cuda
    assert cuda is not None and cuda.used_bytes == 0  # all given back
    return found


def wrong_kernels(when: Callable[[Sequence[str], Any], bool]) -> Build:
    """A builder whose engines compute with other weights where `when(outputs, settings)`."""

    def build(
        library: Any, proto: Any, settings: Any, *, outputs: Sequence[str] = (), **rest: Any
    ) -> BuiltEngine:
        if when(outputs, settings):
            spoilt = numpy_helper.from_array(WEIGHTS[1] * np.float32(1.5), "w1")
            copied = onnx.ModelProto()
            copied.CopyFrom(proto)
            copied.graph.initializer[1].CopyFrom(spoilt)
            proto = copied
        return fake_build(library, proto, settings, outputs=outputs, **rest)

    return build


@pytest.mark.parametrize("way", WAYS)
def test_every_way_sees_the_same(job: EngineJob, way: CaptureWay) -> None:
    found = run(job, ways=(way,))
    assert found.way is way and found.skipped == ()
    assert [a.tensor for a in found.attributions] == ["m", "r", "y"]
    for a in found.attributions:
        assert a.label == "quantization" and a.kernel_db > 100
        assert a.quantization_db == pytest.approx(30.5, abs=0.5)
    assert found.agreement.within == 1.0
    assert [a.tensor for a in found.clean] == ["y"]
    assert found.checks[0].observed == 2 and found.checks[0].hides == ""
    assert found.latency_ms == 1.0 and found.latency_samples == 4


def test_a_kernel_that_is_wrong_is_told_from_quantization(job: EngineJob) -> None:
    found = run(job, wrong_kernels(lambda outputs, settings: True))
    assert [a.label for a in found.attributions] == ["quantization", "quantization", "kernel"]
    assert found.clean[0].label == "kernel" and found.clean[0].kernel_share > 0.9


def test_an_error_that_observing_hides_is_looked_for_in_the_next_way(job: EngineJob) -> None:
    found = run(job, wrong_kernels(lambda outputs, settings: not outputs))
    assert [c.way for c in found.checks] == ["outputs", "debug"] and found.way is CaptureWay.DEBUG
    assert "'y' has" in found.checks[0].hides and found.checks[1].hides == ""
    assert found.attributions[-1].label == "kernel"


def test_a_way_that_cannot_be_built_is_left_out(job: EngineJob) -> None:
    def build(library: Any, proto: Any, settings: Any, **rest: Any) -> BuiltEngine:
        if rest["outputs"]:
            raise BackendError("too many outputs")
        if rest["debug"]:
            raise BackendError("debug tensors are not supported")
        return fake_build(library, proto, settings, **rest)

    found = run(job, build)
    assert found.way is CaptureWay.UNFUSED and [c.observed for c in found.checks] == [0, 0, 2]
    assert "no tensor" in found.checks[0].hides and "not supported" in found.checks[1].hides
    alone = run(job, build, ways=(CaptureWay.OUTPUTS,))
    assert {s.tensor for s in alone.skipped} == {"m", "r"}
    assert "too many outputs" in alone.skipped[0].reason
    with refused("QD-BACKEND-NOT-OBSERVABLE"):
        run(job, build, ways=(CaptureWay.DEBUG,))


def test_marks_that_nobody_reports_lead_to_the_next_way(job: EngineJob) -> None:
    """So does TensorRT for RTX 1.6.1."""

    def build(library: Any, proto: Any, settings: Any, **rest: Any) -> BuiltEngine:
        return fake_build(library, proto, settings, **{**rest, "debug": ()})

    found = run(job, build, ways=(CaptureWay.DEBUG, CaptureWay.UNFUSED))
    assert found.way is CaptureWay.UNFUSED and [c.observed for c in found.checks] == [0, 2]
    assert "never reported it" in found.checks[0].hides
    alone = run(job, build, ways=(CaptureWay.DEBUG,))
    assert {s.tensor for s in alone.skipped} == {"m", "r"} and alone.clean[0].tensor == "y"


def test_a_tensor_for_which_there_is_no_room_gets_an_engine_of_its_own(job: EngineJob) -> None:
    built: list[Sequence[str]] = []

    def build(library: Any, proto: Any, settings: Any, **rest: Any) -> BuiltEngine:
        built.append(rest["outputs"])
        return fake_build(library, proto, settings, **rest)

    little = replace(job.context, budget=Budget(4 * 8 * 4))
    found = run(job, build, ways=(CaptureWay.OUTPUTS,), context=little)
    assert built == [(), ["m"], ["r"]]
    assert [a.tensor for a in found.attributions] == ["m", "r", "y"] and found.skipped == ()


def test_a_reference_that_the_engine_misses_too(job: EngineJob) -> None:
    wrong = wrong_kernels(lambda outputs, settings: True)
    job = built_by(job, wrong)
    found = attribute_engine(job, REFERENCE, COARSE, TENSORS, mismatch=True)
    assert [a.label for a in found.attributions][-1] == "reference-mismatch"
    checked = preflight(job, REFERENCE, COARSE)
    assert checked.reference_mismatch == ("y",) and checked.repeatable


def test_preflight_of_an_engine_that_is_right(job: EngineJob) -> None:
    checked = preflight(job, REFERENCE, COARSE)
    assert checked.reference_mismatch == () and checked.fp32_db["y"] > 100
    assert checked.repeat_db == {"y": math.inf}
