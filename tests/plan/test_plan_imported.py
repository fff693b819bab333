"""An imported model gives the bits of the file that it was imported from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from producers import ONNX_RUNTIME, TOOLS, quantized_by_onnx_runtime

from qdebug.execute.model_pair import explicit
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
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


def test_without_rounding_it_is_the_fp32_model() -> None:
    reference = prepare_model(read_model(str(MADE / "fp32.onnx"))).graph
    model = import_quantized(read(MADE / "modelopt.onnx").graph, reference)
    (own,), (found,) = plain(reference.proto), plain(model.network)
    np.testing.assert_allclose(found, own, atol=1e-5 * np.abs(own).max())
