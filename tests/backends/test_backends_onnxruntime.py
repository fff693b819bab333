"""ONNX Runtime as deployed: what is beyond the contract of every backend."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.onnxruntime import OnnxRuntimeBackend
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.stream import available_cores
from qdebug.engine_info.files.onnx_file import with_nodes
from qdebug.engine_info.mismatch import explain_mismatch
from qdebug.errors import UsageError
from qdebug.network.graph import Graph
from qdebug.testing.contract import quantized
from qdebug.types import Precision


def with_quantized_output() -> onnx.ModelProto:
    """x → Conv conv → Q/DQ → y: the group that ONNX Runtime has an INT8 kernel for."""
    proto = quantized()
    graph = proto.graph
    kept = [n for n in graph.node if n.name in ("x_Q", "x_DQ", "cw_DQ", "conv")]
    kept += [
        helper.make_node("QuantizeLinear", ["c", "ps", "zero"], ["c_code"], "c_Q"),
        helper.make_node("DequantizeLinear", ["c_code", "ps", "zero"], ["y"], "c_DQ"),
    ]
    del graph.node[:]
    graph.node.extend(kept)
    graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 9, 9]))
    return proto


def test_a_convolution_runs_in_int8_where_its_output_is_quantized_too() -> None:
    backend = OnnxRuntimeBackend()
    for proto, built in ((with_quantized_output(), "int8"), (quantized(), "fp32")):
        conv = backend.open(proto, []).engine_info().layer_of("conv")
        assert conv is not None and conv.precision == built
    layer = backend.open(with_quantized_output(), []).engine_info().layer_of("conv")
    assert layer is not None and layer.layer_type == "QLinearConv"


@pytest.mark.parametrize(
    ("provider", "reason"), [("CPU", "no QuantizeLinear reads"), ("CUDA", "no kernels for Q/DQ")]
)
def test_why_a_convolution_did_not_run_in_int8(provider: str, reason: str) -> None:
    proto = quantized()
    read = OnnxRuntimeBackend().open(proto, []).engine_info()
    info = with_nodes(replace(read, provider=f"{provider}ExecutionProvider"), Graph(proto))
    layer = info.layer_of("conv")
    assert layer is not None
    node = next(n for n in info.nodes if n.name == "conv")
    said, _ = explain_mismatch(node, Precision.INT8, "fp32", layer, info)
    assert reason in said


def test_its_kernels_round_otherwise_than_the_simulation() -> None:
    """By one step of the quantized output at most."""
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 8, 9, 9)).astype(np.float32)}
    proto = with_quantized_output()
    deployed = OnnxRuntimeBackend().open(proto, []).run(feeds)["y"]
    simulated = SimulationBackend(1).open(proto, []).run(feeds)["y"]
    step = 0.02
    assert np.max(np.abs(deployed - simulated)) <= step * 1.001


def test_matrices_of_activations_in_int8() -> None:
    """Tensors that ONNX Runtime makes while it optimizes have no type in its file."""
    value = helper.make_tensor_value_info
    nodes = []
    for name in ("a", "b"):
        nodes += [
            helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}q"], f"{name}_Q"),
            helper.make_node(
                "DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"], f"{name}_DQ"
            ),
        ]
    nodes.append(helper.make_node("MatMul", ["ad", "bd"], ["y"], "product"))
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, TensorProto.FLOAT, [4, 4]) for name in ("a", "b")],
        [value("y", TensorProto.FLOAT, [4, 4])],
        [
            numpy_helper.from_array(np.array(0.03, np.float32), "s"),
            numpy_helper.from_array(np.zeros((), np.int8), "z"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    product = OnnxRuntimeBackend().open(proto, []).engine_info().layer_of("product")
    assert product is not None
    assert (product.layer_type, product.precision) == ("MatMulIntegerToFloat", "int8")


def test_fused_nodes_are_told() -> None:
    info = OnnxRuntimeBackend().open(quantized(), []).engine_info()
    conv, relu = info.layer_of("conv"), info.layer_of("relu")
    assert conv is not None and conv == relu and conv.layer_type == "FusedConv"


@pytest.mark.parametrize("name", [None, "CPU", "cpu", "CPUExecutionProvider"])
def test_names_of_providers(name: str | None) -> None:
    assert OnnxRuntimeBackend(name).device_name == "CPUExecutionProvider"


def test_a_provider_that_is_not_there() -> None:
    with pytest.raises(UsageError) as caught:
        OnnxRuntimeBackend("Nobody")
    assert caught.value.code == "QD-USAGE-PROVIDER"
    assert "CPUExecutionProvider" in caught.value.hint


_TELL_THREADS = """
import json, os, sys
from qdebug.config.engine import EngineSettings
from qdebug.execute.engine.build import open_runtime
from qdebug.testing.contract import quantized

threads, cores = json.loads(sys.argv[1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
settings = EngineSettings(backend="onnxruntime")
runtime = open_runtime(settings, cached=False, threads=threads)
built = runtime.build(quantized())
before = os.listdir("/proc/self/task")
session = runtime.clean(quantized(), built)
print(len(os.listdir("/proc/self/task")) - len(before))
"""


@pytest.mark.skipif(available_cores() < 2, reason="there is one core only")
@pytest.mark.parametrize(("threads", "cores", "more"), [(None, 1, 0), (1, 2, 0), (2, 2, 1)])
def test_no_thread_beyond_what_a_process_may_use(
    threads: int | None, cores: int, more: int
) -> None:
    """ONNX Runtime's default takes the cores of the machine, whatever the process may use."""
    words = [sys.executable, "-c", _TELL_THREADS, json.dumps([threads, cores])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) == more


def test_tensors_in_bf16_are_observed_in_fp32() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["low"], to=TensorProto.BFLOAT16),
            helper.make_node("Cast", ["low"], ["y"], to=TensorProto.FLOAT),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = OnnxRuntimeBackend().open(model, ["low"])
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    found = session.run({"x": x})
    assert session.dtypes["low"] == np.float32
    np.testing.assert_array_equal(found["low"], x.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(found["low"], found["y"])
