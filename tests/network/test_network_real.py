"""Two real exports: an IR-3 detector with BatchNorm, and a transformer with external data."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qdebug.errors import ModelError
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model

ASSETS = Path(__file__).resolve().parents[3] / "shared" / "assets"

pytestmark = pytest.mark.skipif(not ASSETS.is_dir(), reason=f"no real models at {ASSETS}")


@pytest.fixture(scope="module")
def detector() -> Model:
    return prepare_model(read_model(ASSETS / "ultraface_slim" / "model.onnx"))


@pytest.fixture(scope="module")
def transformer() -> Model:
    return prepare_model(read_model(ASSETS / "minilm_l6" / "model.onnx"))


def test_old_export(detector: Model, execute: Any, capfd: Any) -> None:
    x = np.load(ASSETS / "ultraface_slim" / "inputs.npz")["input"][:1]
    assert [s.name for s in detector.graph.inputs] == ["input"]
    assert detector.graph.outputs == ("scores", "boxes")
    expected = execute(read_model(detector.file.path).proto, {"input": x})
    found = execute(detector.graph.proto, {"input": x})
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_old_export_folds_and_maps_back(detector: Model) -> None:
    user = {n.name or None for n in detector.file.proto.graph.node}
    kinds = [n.op_type for n in detector.graph.nodes]
    assert "BatchNormalization" not in kinds and kinds.count("Conv") > 20
    for node in detector.graph.nodes:
        if node.op_type == "Conv" and len(detector.origins[node.name]) > 1:
            assert len(detector.origins[node.name]) == 2
    if None not in user:
        assert {n for names in detector.origins.values() for n in names} <= user


def test_old_export_layers(detector: Model) -> None:
    layers = find_layers(detector.graph)
    fused = [layer for layer in layers if len(layer.nodes) > 1]
    assert sum(layer.quantizable for layer in layers) == sum(
        n.op_type == "Conv" for n in detector.graph.nodes
    )
    assert len(fused) > 10
    floats = set(detector.graph.activations())
    assert {layer.output for layer in layers} <= floats


def test_external_data(transformer: Model, execute: Any) -> None:
    file = transformer.file
    digest = hashlib.sha256(file.sha256.encode())
    weights = (ASSETS / "minilm_l6" / "weights.bin").read_bytes()
    blocks = (weights[i : i + (64 << 20)] for i in range(0, len(weights), 64 << 20))
    digest.update(hashlib.sha256(b"".join(hashlib.sha256(b).digest() for b in blocks)).digest())
    assert file.digest == digest.hexdigest() != file.sha256
    data = np.load(ASSETS / "minilm_l6" / "inputs.npz")
    feeds = {s.name: data[s.name][:1] for s in transformer.graph.inputs}
    expected, found = (
        execute(read_model(file.path).proto, feeds),
        execute(transformer.graph.proto, feeds),
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-3, atol=1e-5)


def test_external_data_left_behind(tmp_path: Path) -> None:
    shutil.copyfile(ASSETS / "minilm_l6" / "model.onnx", tmp_path / "model.onnx")
    with refused("QD-MODEL-EXTERNAL-DATA", "'weights.bin'"):
        read_model(tmp_path / "model.onnx")


def test_transformer_layers(transformer: Model) -> None:
    """This export has Gemm between Reshapes; 6 blocks of q, k, v, out and two of the MLP."""
    quantizable = [x for x in find_layers(transformer.graph) if x.quantizable]
    assert len([x for x in quantizable if x.op_type == "Gemm" and x.weight]) == 36
    assert len([x for x in quantizable if x.op_type == "MatMul" and not x.weight]) == 12
    assert len(quantizable) == 48


def test_transformer_layers_of_free_length() -> None:
    """The other export has MatMul and bias Add, which are one layer."""
    model = prepare_model(read_model(ASSETS / "minilm_l6" / "model_dynamic.onnx"))
    layers = [x for x in find_layers(model.graph) if x.op_type == "MatMul" and x.weight]
    assert len(layers) == 36
    for layer in layers:
        assert "Add" in [model.graph.by_name[n].op_type for n in layer.nodes]
    assert [s.shape[0] for s in model.graph.inputs] != [1, 1, 1]


def test_a_real_file_cut_short(tmp_path: Path) -> None:
    data = (ASSETS / "ultraface_slim" / "model.onnx").read_bytes()
    path = tmp_path / "model.onnx"
    for length in [1, 2, 10, 100, *range(1000, len(data), 60_001), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"truncated|no graph"):
            read_model(path)
