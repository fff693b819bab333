"""Every way a model file can be wrong is one clear ModelError."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.errors import ModelError, QdebugError
from qdebug.network import load
from qdebug.network.graph import opset_of
from qdebug.network.load import newest_opset, read_model
from qdebug.network.prepare import prepare_model

Save = Callable[[onnx.ModelProto], Path]


def small(net: Any, opset: int = 13) -> onnx.ModelProto:
    return net(opset).conv("x", "c").batch_norm("c", "b").add("Relu", "b", "y").model()


def fails(code: str, path: Path, *says: str) -> None:
    """Reading the model raises a ModelError of this code, which names the file and `says`."""
    with refused(code, str(path), *says) as caught:
        read_model(path)
    assert isinstance(caught.value, ModelError) and caught.value.exit_code == 2
    assert "\n" not in caught.value.message


def test_a_good_file(net: Any, save: Save) -> None:
    proto = small(net)
    path = save(proto)
    file = read_model(str(path))
    assert file.path == path
    assert file.proto == proto
    assert file.sha256 == file.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_missing_file(tmp_path: Path) -> None:
    fails("QD-MODEL-NOT-FOUND", tmp_path / "absent.onnx")


def test_directory(tmp_path: Path) -> None:
    fails("QD-MODEL-UNREADABLE", tmp_path)


def test_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    fails("QD-MODEL-UNREADABLE", tmp_path / "f" / "m.onnx")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
        b"<!DOCTYPE html><html><body>Not found</body></html>",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        b"PK\x03\x04" + b"\0" * 64,
        b"\0" * 128,
    ],
)
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    fails("QD-MODEL-TRUNCATED", path)


def test_a_model_without_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08")  # an IR version and nothing else
    fails("QD-MODEL-NO-GRAPH", path)


def test_truncated_at_every_length(net: Any, save: Save) -> None:
    data = (path := save(small(net))).read_bytes()
    proto = read_model(path).proto
    head = len(onnx.ModelProto(ir_version=proto.ir_version).SerializeToString())
    del proto.opset_import[:]  # which stands after the graph
    codes = {head: "QD-MODEL-NO-GRAPH", proto.ByteSize(): "QD-MODEL-NO-OPSET"}
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        fails(codes.get(length, "QD-MODEL-TRUNCATED"), path)


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
    supported = f"9 to {newest_opset()}"
    fails("QD-MODEL-OPSET", save(small(net, opset)), f"opset {opset} ", supported)


def test_an_opset_newer_than_onnx_runtime_takes(net: Any, save: Save) -> None:
    proto = small(net)
    for newer in (newest_opset() + 1, onnx.defs.onnx_opset_version() + 1):
        proto.opset_import[0].version = newer
        fails("QD-MODEL-OPSET", save(proto), f"opset {newer} ")


def test_newest_opset_is_what_onnx_runtime_takes(net: Any, execute: Any) -> None:
    newest = newest_opset()
    assert 21 <= newest <= onnx.defs.onnx_opset_version()
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    execute(small(net, newest), feeds)


def test_no_opset(net: Any, save: Save) -> None:
    proto = small(net)
    del proto.opset_import[:]
    fails("QD-MODEL-NO-OPSET", save(proto))
    proto.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    fails("QD-MODEL-NO-OPSET", save(proto))


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


def test_every_byte_of_external_data_counts(
    net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_BLOCK", 50)  # as if it were large
    path = with_external_data(net, tmp_path)
    data = path.with_name("w.bin").read_bytes()
    assert len(data) > 3 * 50
    found = {read_model(path).digest}
    for changed in (0, 49, 50, len(data) - 1):
        other = bytearray(data)
        other[changed] ^= 1
        path.with_name("w.bin").write_bytes(other)
        found.add(read_model(path).digest)
    assert len(found) == 5


def test_external_data_missing(net: Any, tmp_path: Path) -> None:
    path = with_external_data(net, tmp_path)
    (tmp_path / "w.bin").unlink()
    fails("QD-MODEL-EXTERNAL-DATA", path, "'w.bin'")


@pytest.mark.parametrize("name", [b"w\xffbin", b"w\nbin"], ids=["no text", "two lines"])
def test_external_data_under_a_damaged_name(net: Any, tmp_path: Path, name: bytes) -> None:
    path = with_external_data(net, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"w.bin", name))
    with refused("QD-MODEL-EXTERNAL-DATA", str(path)) as caught:
        read_model(path)
    assert "\n" not in caught.value.message + caught.value.hint


def test_external_data_is_a_directory(net: Any, tmp_path: Path) -> None:
    path = with_external_data(net, tmp_path)
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").mkdir()
    fails("QD-MODEL-EXTERNAL-DATA", path, "w.bin")


def test_external_data_truncated(net: Any, tmp_path: Path) -> None:
    path = with_external_data(net, tmp_path)
    data = (tmp_path / "w.bin").read_bytes()
    for length in (0, 5, len(data) // 2, len(data) - 1):
        (tmp_path / "w.bin").write_bytes(data[:length])
        fails("QD-MODEL-EXTERNAL-DATA", path)


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
    fails("QD-MODEL-EXTERNAL-DATA", path)


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
    fails("QD-MODEL-EXTERNAL-DATA", path, "inner.bin")
    (tmp_path / "inner.bin").write_bytes(raw)
    file = read_model(path)
    assert file.digest != file.sha256
    assert file.proto.graph.node[0].attribute[0].g.initializer[0].raw_data == raw


@pytest.mark.parametrize("protobuf", ["upb", "python"])
def test_a_name_that_is_no_text_whatever_protobuf_reads_it(tmp_path: Path, protobuf: str) -> None:
    path = tmp_path / "model.onnx"
    data = (Path(__file__).parents[2] / "calib_data" / "digits_cnn.onnx").read_bytes()
    name = b"/stem/conv/Conv_output_0"
    assert name in data
    path.write_bytes(data.replace(name, b"\xeb" + name[1:]))
    done = subprocess.run(
        [sys.executable, "-m", "qdebug", "inspect", str(path)],
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": protobuf},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "QD-MODEL-" in done.stderr
