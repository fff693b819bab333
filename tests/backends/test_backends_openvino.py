"""OpenVINO: what is beyond the contract of every backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.host import HostRuntime
from qdebug.backends.openvino import OpenVINOBackend, _nodes, saturates
from qdebug.config.engine import EngineSettings
from qdebug.engine_info.files.layer_info import layer_info_json, read_layer_info
from qdebug.engine_info.layers import Role
from qdebug.errors import BackendError
from qdebug.execute.engine.build import open_runtime
from qdebug.testing.contract import quantized

pytest.importorskip("openvino")


@pytest.mark.parametrize(
    ("told", "nodes"),
    [
        ("conv", ["conv"]),
        ("conv/WithoutBiases,Multiply_7,conv,relu", ["conv", "conv", "relu"]),
        ("a/b/MatMul/DequantizationMultiply,y", ["a/b/MatMul", "dense"]),
        ("one, two,conv", ["one, two", "conv"]),
        ("a/b/MatMul/Part,one, two", ["a/b/MatMul", "one, two"]),
        ("Constant_12,", []),
    ],
)
def test_nodes_in_what_openvino_tells(told: str, nodes: list[str]) -> None:
    names = ("conv", "relu", "a/b/MatMul", "one, two", "dense")
    owners = {name: name for name in names} | {"y": "dense"}
    assert list(_nodes(told.split(","), owners)) == nodes


def test_layers_survive_their_file() -> None:
    import json

    session = OpenVINOBackend().open(quantized(), [])
    info = session.engine_info()
    again = read_layer_info(json.loads(layer_info_json(info)), "layers.json")
    assert [x.name for x in again.layers] == [x.name for x in info.layers]
    for before, after in zip(info.layers, again.layers, strict=True):
        assert (after.precision, after.role, after.onnx_nodes, after.tactic) == (
            before.precision,
            before.role,
            before.onnx_nodes,
            before.tactic,
        )
    conv, dense = info.layer_of("conv"), info.layer_of("dense")
    assert conv is not None and dense is not None
    assert (conv.role, conv.precision) == (dense.role, dense.precision) == (Role.MATRIX, "int8")


def test_a_feed_of_another_type_is_not_converted_in_silence() -> None:
    session = OpenVINOBackend().open(quantized(), [])
    with pytest.raises(BackendError) as caught:
        session.run({"x": np.zeros((1, 8, 9, 9), np.float64)})
    assert caught.value.code == "QD-BACKEND-FEED"


def test_an_integer_input_with_dynamic_axes() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"], "gather")],
        "g",
        [value("ids", TensorProto.INT64, ["N", "T"])],
        [value("y", TensorProto.FLOAT, ["N", "T", 3])],
        [numpy_helper.from_array(np.arange(15, dtype=np.float32).reshape(5, 3), "table")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = OpenVINOBackend().open(proto, [])
    for ids in ([[1, 4]], [[0], [3], [2]]):
        fed = np.array(ids, np.int64)
        expected = np.arange(15, dtype=np.float32).reshape(5, 3)[fed]
        np.testing.assert_array_equal(session.run({"ids": fed})["y"], expected)


def test_a_scalar_input() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "scale"], ["y"], "mul")],
        "g",
        [value("x", TensorProto.FLOAT, ["N"]), value("scale", TensorProto.FLOAT, [])],
        [value("y", TensorProto.FLOAT, ["N"])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = OpenVINOBackend().open(proto, [])
    found = session.run({"x": np.ones(3, np.float32), "scale": np.array(2, np.float32)})
    np.testing.assert_array_equal(found["y"], np.full(3, 2, np.float32))


def test_threads_of_a_worker() -> None:
    runtime = open_runtime(EngineSettings(backend="openvino"), cached=False, threads=1)
    assert isinstance(runtime, HostRuntime)
    session = runtime.backend.open(quantized(), [])
    properties = session._compiled.get_property
    assert properties("INFERENCE_NUM_THREADS") == 1
    assert not properties("ENABLE_CPU_PINNING")


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        ("flags : avx avx2 avx512f", "", True),
        ("flags : avx avx2 avx512f", "AVX2", True),
        ("flags : avx2 avx512_vnni", "", False),
        ("flags : avx2 avx_vnni", "AVX512_CORE", True),
        ("flags : avx2 avx_vnni", "AVX512_CORE_AMX", False),
        ("Features : asimd dotprod", "", False),
        (None, "", False),
    ],
)
def test_processors_whose_products_saturate(
    flags: str | None, limit: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(flags)
    monkeypatch.setattr("qdebug.backends.openvino._CPU_FLAGS", file)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert saturates() is expected


@pytest.mark.parametrize("saturating", [False, True])
def test_what_saturates_is_a_warning_of_the_build(
    saturating: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdebug.backends.openvino.saturates", lambda: saturating)
    runtime = open_runtime(EngineSettings(backend="openvino"), cached=False, threads=1)
    assert runtime is not None
    found = runtime.build(quantized()).warnings
    assert ["VNNI" in w.text for w in found] == [True] * saturating
