"""Every way a model file can be wrong is one clear ModelError."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.errors import ModelError, QdebugError
from qdebug.model.graph import opset_of
from qdebug.model.load import newest_opset, read_model
from qdebug.model.prepare import prepare_model

Save = Callable[[onnx.ModelProto], Path]


def small(net: Any, opset: int = 13) -> onnx.ModelProto:
    return net(opset).conv("x", "c").batch_norm("c", "b").add("Relu", "b", "y").model()


def error_of(path: Path | str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_model(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2
    return caught.value


def test_a_good_file(net: Any, save: Save) -> None:
    proto = small(net)
    path = save(proto)
    file = read_model(str(path))
    assert file.path == path
    assert file.proto == proto
    assert file.sha256 == file.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_missing_file(tmp_path: Path) -> None:
    assert "no such file" in error_of(tmp_path / "absent.onnx").message


def test_directory(tmp_path: Path) -> None:
    assert "is a directory" in error_of(tmp_path).message


def test_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    assert "cannot be read" in error_of(tmp_path / "f" / "m.onnx").message


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    assert "empty" in error_of(tmp_path / "m.onnx").message


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
        b"<!DOCTYPE html><html><body>Not found</body></html>",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"PK\x03\x04" + b"\0" * 64,
        b"\0" * 128,
        b"\x08\x08",  # an IR version and nothing else
    ],
)
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert "not an ONNX" in error_of(path).message


def test_truncated_at_every_length(net: Any, save: Save) -> None:
    data = (path := save(small(net))).read_bytes()
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        message = error_of(path).message
        assert "truncated" in message or "no graph" in message, (length, message)


def test_damaged_bytes_never_escape_as_foreign_errors(net: Any, save: Save) -> None:
    data = (path := save(small(net, 11))).read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data), 3):
            damaged[position] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            graph = prepare_model(read_model(path)).graph
            assert graph.inputs is not None and list(graph.activations())
        except QdebugError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("opset", [1, 8])
def test_an_opset_too_old(net: Any, save: Save, opset: int) -> None:
    error = error_of(save(small(net, opset)))
    assert f"opset {opset} is not supported" in error.message
    assert f"9 to {newest_opset()}" in error.message
    assert "version_converter" in error.hint


def test_an_opset_newer_than_onnx_runtime_takes(net: Any, save: Save) -> None:
    proto = small(net)
    proto.opset_import[0].version = newest_opset() + 1
    assert f"opset {newest_opset() + 1} is not supported" in error_of(save(proto)).message
    proto.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    assert "is not supported" in error_of(save(proto)).message


def test_newest_opset_is_what_onnx_runtime_takes(net: Any, execute: Any) -> None:
    newest = newest_opset()
    assert 21 <= newest <= onnx.defs.onnx_opset_version()
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    execute(small(net, newest), feeds)


def test_no_opset(net: Any, save: Save) -> None:
    proto = small(net)
    del proto.opset_import[:]
    assert "names no opset" in error_of(save(proto)).message


def test_the_default_domain_has_two_names(net: Any, save: Save) -> None:
    proto = small(net)
    proto.opset_import[0].domain = "ai.onnx"
    assert opset_of(read_model(save(proto)).proto) == 13


def with_external_data(net: Any, tmp_path: Path, location: str = "w.bin") -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(
        small(net),
        str(path),
        save_as_external_data=True,
        location=location,
        size_threshold=0,
    )
    return path


def test_external_data_is_read_and_hashed(net: Any, tmp_path: Path) -> None:
    path = with_external_data(net, tmp_path)
    file = read_model(path)
    expected = {w.name: numpy_helper.to_array(w) for w in small(net).graph.initializer}
    for weight in file.proto.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(weight), expected[weight.name])
    assert file.digest != file.sha256
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "w.bin").write_bytes(data)
    changed = read_model(path)
    assert (changed.sha256 == file.sha256) and changed.digest != file.digest


def test_external_data_missing(net: Any, tmp_path: Path) -> None:
    path = with_external_data(net, tmp_path)
    (tmp_path / "w.bin").unlink()
    error = error_of(path)
    assert "'w.bin' is missing" in error.message
    assert "beside the model" in error.hint


def test_external_data_is_a_directory(net: Any, tmp_path: Path) -> None:
    path = with_external_data(net, tmp_path)
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").mkdir()
    assert "w.bin" in error_of(path).message


def test_external_data_truncated(net: Any, tmp_path: Path) -> None:
    path = with_external_data(net, tmp_path)
    data = (tmp_path / "w.bin").read_bytes()
    for length in (0, 5, len(data) // 2, len(data) - 1):
        (tmp_path / "w.bin").write_bytes(data[:length])
        assert "external data" in error_of(path).message, length


def test_external_data_outside_the_folder(net: Any, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = with_external_data(net, tmp_path / "inner")
    (tmp_path / "inner" / "w.bin").rename(tmp_path / "w.bin")
    proto = onnx.load(str(path), load_external_data=False)
    for weight in proto.graph.initializer:
        for entry in weight.external_data:
            if entry.key == "location":
                entry.value = "../w.bin"
    path.write_bytes(proto.SerializeToString())
    assert "external data" in error_of(path).message


def test_external_data_of_a_subgraph_counts(net: Any, tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.ones((1, 3, 8, 8), np.float32), "k")
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [1, 3, 8, 8])
    body = helper.make_graph([helper.make_node("Neg", ["k"], ["o"])], "t", [], [out], [value])
    proto = (
        net().const("c", np.array(True)).add("If", "c", "y", then_branch=body, else_branch=body)
    ).model()
    inner = proto.graph.node[0].attribute[0].g.initializer[0]
    raw = inner.raw_data
    onnx.external_data_helper.set_external_data(inner, "inner.bin", 0, len(raw))
    inner.ClearField("raw_data")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert "inner.bin" in error_of(path).message
    (tmp_path / "inner.bin").write_bytes(raw)
    file = read_model(path)
    assert file.digest != file.sha256
    assert file.proto.graph.node[0].attribute[0].g.initializer[0].raw_data == raw
