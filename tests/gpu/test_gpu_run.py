"""FP32, TF32, FP16 and INT8 engines against ONNX Runtime on the CPU."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.tensorrt.backend import WAYS, TensorRTBackend
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.execute.cuda import Cuda, DeviceMemoryError
from qdebug.backends.tensorrt.execute.runtime import load_engine
from qdebug.backends.tensorrt.execute.session import TensorRTSession
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import Library
from qdebug.errors import BackendError
from qdebug.execute.engine.observe import preflight
from qdebug.metrics.sums import ErrorSums
from qdebug.metrics.tensor import sqnr_of
from qdebug.results.attribution import RELEVANT_DB
from qdebug.results.observation import add_errors

DATA = Path(__file__).parents[2] / "calib_data"
AT_LEAST_DB = {"fp32": 90, "fp16": 60, "int8": 45}
"""Against the simulation of the same precision."""


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_an_engine_computes_what_the_simulation_does(
    case: Callable[..., Any], figures: dict[str, Any], net: str, kind: str
) -> None:
    if (net, kind) == ("digits_cnn", "int8"):
        pytest.skip("TensorRT for RTX 1.6 has no INT8 convolution on compute capability 9.0")
    one = case(net, kind)
    proto = one.lowered.graph.proto
    simulation = one.job.context.simulation.open(proto, [])
    errors: dict[str, ErrorSums] = {}
    with TensorRTSession(one.job.runtime.factory.make(proto)[0]) as session:
        for batch in one.job.subset.batches:
            feeds = one.job.feeds(batch)
            add_errors(errors, simulation.run(feeds), session.run(feeds))
        latency = session.latency_ms(feeds)
        times = session.layer_times(feeds)
    found = sqnr_of(errors["logits"])
    figures[f"{net} {kind}"] = {
        "engine_vs_simulation_db": round(found, 2),
        "latency_ms": round(latency, 4),
        "layers": len(times),
        "sum_of_layers_ms": round(sum(t.ms for t in times), 4),
    }
    assert found >= AT_LEAST_DB[kind]
    assert latency > 0
    assert len(times) > 5 and all(t.name and t.ms >= 0 for t in times)


@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_tf32_is_less_exact(cuda: Cuda, figures: dict[str, Any], net: str) -> None:
    flags = [
        *("--inputs", str(DATA / "digits_holdout.npz"), "--samples", "16"),
        *("--precision", "fp32", "--tf32", "--backend", "tensorrt-rtx"),
        *("--json", "-", "--no-progress"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "qdebug", "compare", str(DATA / f"{net}.onnx"), *flags],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tensors = found["engine"]["execution"]["tensors"]
    below = [t for t in tensors if t["total_db"] is not None and t["total_db"] < RELEVANT_DB]
    logits = found["outputs"][0]["sqnr_db"]
    figures[f"{net} tf32"] = {
        "engine_vs_simulation_db": round(logits, 2),
        "tensors": len(tensors),
        "below 60 dB": [(t["tensor"], t["total_db"], t["label"]) for t in below],
        "worst": sorted(t["total_db"] for t in tensors if t["total_db"] is not None)[:3],
    }
    print(f"{net} TF32: {len(below)} of {len(tensors)} tensors below 60 dB")
    assert AT_LEAST_DB["fp16"] < logits < AT_LEAST_DB["fp32"]
    # The simulation computes FP32 in full: what TF32 loses is no quantization, and not ranked.
    assert all(t["quantization_db"] is None for t in tensors)
    assert {t["label"] for t in below} <= {"kernel", "reference-mismatch"}


@pytest.mark.parametrize(("net", "kind"), [("digits_encoder", "int8"), ("digits_cnn", "fp16")])
def test_preflight(case: Callable[..., Any], figures: dict[str, Any], net: str, kind: str) -> None:
    one = case(net, kind)
    found = preflight(one.job, one.reference, one.lowered.graph)
    figures[f"preflight {net} {kind}"] = {
        "fp32_db": {n: round(db, 2) for n, db in found.fp32_db.items()},
        "repeat_db": dict(found.repeat_db),
        "repeatable": found.repeatable,
    }
    assert found.reference_mismatch == () and set(found.fp32_db) == {"logits"}
    assert found.fp32_db["logits"] > 90 and found.repeat_db["logits"] > 100


def test_dynamic_shapes(case: Callable[..., Any]) -> None:
    one = case("digits_encoder", "fp16")
    proto = one.lowered.graph.proto
    simulation = one.job.context.simulation.open(proto, [])
    images = np.random.default_rng(0).normal(size=(16, 1, 8, 8)).astype(np.float32)
    with TensorRTSession(one.job.runtime.factory.make(proto)[0]) as session:
        with pytest.raises(BackendError, match="was built for"):
            session.run({"input": images[:3]})  # all batches have 16: the profile admits no other
        np.testing.assert_allclose(
            session.run({"input": images})["logits"],
            simulation.run({"input": images})["logits"],
            rtol=0.05,
            atol=0.05,
        )


def test_an_engine_that_is_none(library: Library, cuda: Cuda, case: Callable[..., Any]) -> None:
    with pytest.raises(BackendError) as refused:
        load_engine(library, b"nothing of the kind" * 100, cuda)
    assert refused.value.code == "QD-BACKEND-ENGINE-REFUSED"
    one = case("digits_cnn", "fp32")
    whole = build_engine(library, one.reference.proto, one.job.runtime.factory.settings).engine
    with pytest.raises(BackendError, match="cut off"):
        load_engine(library, whole[:-1000], cuda)


def big(megabytes: int) -> onnx.ModelProto:
    """x → Relu → y, of so many megabytes each."""
    shape = [megabytes, 1024, 256]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu")],
        "big",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def free_bytes(cuda: Cuda) -> int:
    """The GPU's free memory."""
    import pycuda.driver

    with cuda.current():
        return int(pycuda.driver.mem_get_info()[0])


def test_out_of_memory_is_said_and_nothing_is_lost(library: Library, cuda: Cuda) -> None:
    made = EngineFactory(library, BuildSettings(), cuda=cuda).make(big(64))[0]
    x = np.ones((64, 1024, 256), np.float32)
    session = TensorRTSession(made)
    del made
    with cuda.current():
        hog = cuda.allocate(free_bytes(cuda) - 2**27)
    try:
        with pytest.raises(DeviceMemoryError, match="no memory") as caught:
            for _ in range(2):
                session.run({"x": x * 2})
                session.run({"x": x * 3})
                pytest.skip("the engine fitted in what was left")
        assert caught.value.hint
    finally:
        hog.free()
    np.testing.assert_array_equal(session.run({"x": x})["y"], x)
    session.close()
    gc.collect()


def small() -> onnx.ModelProto:
    """x → MatMul → Relu → y."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], "mm"),
            helper.make_node("Relu", ["m"], ["r"], "relu"),
            helper.make_node("MatMul", ["r", "w"], ["y"], "mm2"),
        ],
        "small",
        [value("x", TensorProto.FLOAT, [256, 1024])],
        [value("y", TensorProto.FLOAT, [256, 1024])],
        [numpy_helper.from_array(np.eye(1024, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_memory_is_freed(library: Library, cuda: Cuda, figures: dict[str, Any]) -> None:
    maker = EngineFactory(library, BuildSettings(), cuda=cuda)
    feeds = {"x": np.ones((256, 1024), np.float32)}

    def use_all() -> int:
        for way in WAYS:
            session = TensorRTBackend(maker).open(small(), ["m", "r"], way)
            session.run(feeds)
            session.close()
        forgotten = TensorRTSession(maker.make(small())[0])
        forgotten.run(feeds)
        del forgotten
        with (
            pytest.raises(BackendError, match="no feed"),
            TensorRTSession(maker.make(small())[0]) as failing,
        ):
            failing.layer_times(feeds, rounds=1)
            failing.run({})
        with ThreadPoolExecutor(4) as pool, TensorRTSession(maker.make(small())[0]) as shared:
            list(pool.map(shared.run, [feeds] * 8))
        gc.collect()
        return free_bytes(cuda)

    left = [use_all() for _ in range(3)]  # the first loads libraries, which stay
    figures["free bytes after each of three rounds"] = left
    assert left[1] == left[2]
