"""An imported model gives the bits of the file that it was imported from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from producers import ONNX_RUNTIME, TOOLS, quantized_by_onnx_runtime

from qdebug.backends.simulation import SimulationBackend
from qdebug.execute.model_pair import explicit
from qdebug.network.graph import Graph
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.plan.correspond import align
from qdebug.plan.imported import PAIRS, Imported, import_quantized

ROOT = Path(__file__).parents[2]
MADE = ROOT / "tests" / "producers"
CNN = ROOT / "calib_data" / "digits_cnn.onnx"
IMAGES = np.load(ROOT / "calib_data" / "digits_holdout.npz")["input"][:64]


def read(path: Path) -> Model:
    return explicit(prepare_model(read_model(str(path))))[0]


def plain(proto: onnx.ModelProto) -> list[Any]:
    """The outputs in ONNX Runtime without any optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    given = session.get_inputs()[0]
    images = IMAGES[:1] if given.shape[0] == 1 else IMAGES
    return list(session.run(None, {given.name: images}))


def same_bits(path: Path) -> Imported:
    model = import_quantized(read(path).graph)
    for own, found in zip(plain(onnx.load(path)), plain(model.lowered), strict=True):
        np.testing.assert_array_equal(own, found)
    return model


@pytest.mark.parametrize("tool", TOOLS)
def test_models_of_other_tools_keep_their_bits(tool: str) -> None:
    model = same_bits(MADE / f"{tool}.onnx")
    assert model.exact and PAIRS.isdisjoint(node.op_type for node in model.network.graph.node)


@pytest.mark.parametrize("way", sorted({*ONNX_RUNTIME} - {"qoperator", "dynamic"}))
def test_models_of_onnx_runtime_keep_their_bits(way: str, tmp_path: Path) -> None:
    same_bits(quantized_by_onnx_runtime(way, CNN, tmp_path))


@pytest.mark.parametrize("way", ["qoperator", "dynamic"])
def test_operators_on_integers_are_within_a_step(way: str, tmp_path: Path) -> None:
    path = quantized_by_onnx_runtime(way, CNN, tmp_path)
    model = import_quantized(read(path).graph)
    (own,), (found,) = plain(onnx.load(path)), plain(model.lowered)
    far = np.abs(own - found)
    assert np.mean(far > 1e-3 * np.abs(own).max()) < 0.2
    assert np.mean(own.argmax(axis=-1) == found.argmax(axis=-1)) >= 0.95


@pytest.mark.parametrize("blocked", [[], ["Conv"], ["Clip", "Add"]])
def test_a_model_in_fp16_computes_as_its_file(blocked: list[str], tmp_path: Path) -> None:
    """In the simulation: without optimizations ONNX Runtime drops Casts to FP16 and back."""
    path = tmp_path / "half.onnx"
    onnx.save(convert_float_to_float16(onnx.load(CNN), op_block_list=blocked), path)
    reference = prepare_model(read_model(str(CNN))).graph
    own = align(reference, read(path).graph).graph
    model = import_quantized(own, reference)
    np.testing.assert_array_equal(simulated(model.lowered), simulated(own.proto))
    close = np.abs(simulated(own.proto)).max() * 1e-5
    np.testing.assert_allclose(simulated(model.network), simulated(reference.proto), atol=close)
    convolutions = [n for n in model.narrow if reference.by_name[n].op_type == "Conv"]
    assert len(convolutions) == (0 if "Conv" in blocked else 13)
    wide = model.without(convolutions).lowered.graph.node
    kinds = Graph.inferred(model.without(convolutions).lowered).types
    assert all(kinds[n.output[0]] == TensorProto.FLOAT for n in wide if n.op_type == "Conv")


def simulated(proto: onnx.ModelProto) -> Any:
    return next(iter(SimulationBackend(1).open(proto, ()).run({"input": IMAGES}).values()))


def test_codes_that_are_clipped_to_a_narrow_range() -> None:
    """As Brevitas writes them: QuantizeLinear, Clip to ±7, DequantizeLinear, of weights as well."""
    node, rng = helper.make_node, np.random.default_rng(0)
    weight = rng.normal(size=(3, 4)).astype(np.float32)
    constants = {"w": weight, "s": np.float32(0.2), "z": np.int8(0), "high": np.int8(7)}
    constants["low"] = np.int8(-7)
    nodes = [
        made
        for t in ("x", "w")
        for made in (
            node("QuantizeLinear", [t, "s", "z"], [f"{t}q"], f"{t}q"),
            node("Clip", [f"{t}q", "low", "high"], [f"{t}c"], f"{t}c"),
            node("DequantizeLinear", [f"{t}c", "s", "z"], [f"{t}d"], f"{t}d"),
        )
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, node("MatMul", ["xd", "wd"], ["y"], "product")],
        "g",
        [value("x", TensorProto.FLOAT, [2, 3])],
        [value("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = import_quantized(Graph.inferred(proto))
    x = rng.normal(size=(2, 3)).astype(np.float32)

    def run(proto: onnx.ModelProto) -> Any:
        return SimulationBackend(1).open(proto, ()).run({"x": x})["y"]

    np.testing.assert_array_equal(run(model.lowered), run(proto))
    np.testing.assert_allclose(run(model.network), x @ weight, rtol=1e-5)
    exact = model.reading({"product": {"wd": model.exact["product"]["wd"]}}).lowered
    clipped = np.clip(np.rint(x / np.float32(0.2)), -7, 7) * np.float32(0.2)
    np.testing.assert_allclose(run(exact), clipped @ weight, rtol=1e-5)


def test_what_only_moves_codes_rounds_nothing() -> None:
    """A MaxPool between two pairs of one grid: the rounding is that of the Conv behind it."""
    node, images = helper.make_node, np.random.default_rng(0).normal(size=(1, 1, 4, 4))
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q1"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "d1"),
        node("MaxPool", ["xd"], ["p"], "pool", kernel_shape=[2, 2]),
        node("QuantizeLinear", ["p", "s", "z"], ["pq"], "q2"),
        node("DequantizeLinear", ["pq", "s", "z"], ["pd"], "d2"),
        node("Conv", ["pd", "w"], ["y"], "conv"),
    ]
    constants = {"s": np.float32(0.1), "z": np.int8(3), "w": np.ones((1, 1, 3, 3), np.float32)}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = import_quantized(Graph.inferred(proto))
    assert model.exact == {"conv": {"pd": "p"}}
    feeds = {"x": images.astype(np.float32)}
    session = SimulationBackend(1)
    found = [session.open(p, ()).run(feeds)["y"] for p in (proto, model.lowered)]
    np.testing.assert_array_equal(*found)


def test_without_rounding_it_is_the_fp32_model() -> None:
    reference = prepare_model(read_model(str(MADE / "fp32.onnx"))).graph
    model = import_quantized(read(MADE / "modelopt.onnx").graph, reference)
    (own,), (found,) = plain(reference.proto), plain(model.network)
    np.testing.assert_allclose(found, own, atol=1e-5 * np.abs(own).max())
