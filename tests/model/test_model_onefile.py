"""Large weights are left out of the message, and what cannot be followed is parsed as it was."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.model.load import read_model
from qdebug.model.onefile import put_back, without_weights
from qdebug.model.weights import LARGE_BYTES, lightened, with_data

COUNT = LARGE_BYTES // 4
"""Values of float32 that are just large enough."""


def model(*tensors: TensorProto) -> onnx.ModelProto:
    """A model that has these initializers."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tensor(name: str, count: int = COUNT, kind: Any = np.float32) -> TensorProto:
    values = np.random.default_rng(count).standard_normal(count) * 100
    return numpy_helper.from_array(values.astype(kind), name)


def message(path: Path) -> tuple[onnx.ModelProto, int]:
    """The message that is parsed of a file, and how many weights are not in it."""
    with path.open("rb") as file:
        data, skipped = without_weights(file)
    return onnx.ModelProto.FromString(data), len(skipped)


def test_large_weights_are_left_out_and_put_back(tmp_path: Path) -> None:
    kinds = (np.float32, np.float16, np.int8, np.int64, bool)
    tensors = [tensor(f"{np.dtype(kind).name}", LARGE_BYTES, kind) for kind in kinds]
    tensors[2:2] = [tensor("small", 3), tensor("just too small", COUNT - 1)]
    proto = model(*tensors)
    onnx.save(proto, path := tmp_path / "m.onnx")
    light, left_out = message(path)
    assert left_out == len(kinds) and light.ByteSize() < 2 * LARGE_BYTES
    found = read_model(path)
    assert found.proto == lightened(proto) and with_data(found.proto) == proto
    assert found.sha256 == found.digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_what_numpy_does_not_have_stays_in_the_message(tmp_path: Path, kind: Any) -> None:
    proto = model(tensor("w", 2 * LARGE_BYTES, kind))
    onnx.save(proto, path := tmp_path / "m.onnx")
    assert message(path)[1] == 1
    assert read_model(path).proto == proto


def test_data_that_are_no_raw_data(tmp_path: Path) -> None:
    values = np.arange(COUNT, dtype=np.float32)
    proto = model(helper.make_tensor("w", TensorProto.FLOAT, [COUNT], values))
    onnx.save(proto, path := tmp_path / "m.onnx")
    assert message(path) == (proto, 0)
    assert with_data(read_model(path).proto).graph.initializer[0].raw_data == values.tobytes()


@pytest.mark.parametrize("shape", [[COUNT - 1], [-COUNT], [2**40, 2**40]])
def test_data_that_do_not_fit_their_shape(tmp_path: Path, shape: list[int]) -> None:
    weight = tensor("w")
    weight.dims[:] = shape
    onnx.save(model(weight), path := tmp_path / "m.onnx")
    with refused("QD-MODEL-INVALID", str(path), "'w'"):
        read_model(path)


def test_data_of_a_tensor_that_says_they_are_elsewhere(tmp_path: Path) -> None:
    weight, other = tensor("w"), np.ones(COUNT, np.float32)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(other.tobytes())
    (tmp_path / "m.onnx").write_bytes(model(weight).SerializeToString())
    read = with_data(read_model(tmp_path / "m.onnx").proto)
    np.testing.assert_array_equal(numpy_helper.to_array(read.graph.initializer[0]), other)


def length(number: int) -> bytes:
    """A varint, padded to five bytes, as a writer may that fills in lengths later."""
    rest = [number >> 7 * i & 0x7F for i in range(5)]
    return bytes([*(byte | 0x80 for byte in rest[:-1]), rest[-1]])


def padded(proto: onnx.ModelProto) -> bytes:
    graph = proto.graph.SerializeToString()
    return b"\x08\x08" + b"\x3a" + length(len(graph)) + graph + b"\x42\x02\x10\x11"


def in_two_parts(proto: onnx.ModelProto) -> bytes:
    """The graph in two fields, which a parser joins."""
    other = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor("v")]))
    return proto.SerializeToString() + other.SerializeToString()


def twice(proto: onnx.ModelProto) -> bytes:
    """Data that are given twice, of which the last count."""
    values = b"\x4a" + length(4 * COUNT) + bytes(4 * COUNT)
    weight = proto.graph.initializer[0].SerializeToString() + values
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.initializer[:]
    graph = bare.graph.SerializeToString() + b"\x2a" + length(len(weight)) + weight
    return b"\x08\x08" + b"\x3a" + length(len(graph)) + graph + b"\x42\x02\x10\x11"


def with_unknown(proto: onnx.ModelProto) -> bytes:
    """Fields that nobody knows: a varint, 64 bits, 32 bits and bytes."""
    unknown = b"\xf8\x3e\x05" + b"\xf9\x3e" + bytes(8) + b"\xfd\x3e" + bytes(4) + b"\xfa\x3e\x01a"
    return unknown + proto.SerializeToString()


def with_a_group(proto: onnx.ModelProto) -> bytes:
    return b"\xfb\x3e\xfc\x3e" + proto.SerializeToString()


@pytest.mark.parametrize(
    ("written", "left_out"),
    [(padded, 1), (with_unknown, 1), (in_two_parts, 0), (twice, 0), (with_a_group, 0)],
)
def test_other_ways_to_write_it(
    tmp_path: Path, written: Callable[[onnx.ModelProto], bytes], left_out: int
) -> None:
    data = written(model(tensor("w")))
    (path := tmp_path / "m.onnx").write_bytes(data)
    assert message(path)[1] == left_out
    whole = onnx.ModelProto.FromString(data)
    assert with_data(read_model(path).proto).graph == with_data(lightened(whole)).graph


def test_a_file_that_was_cut_off_anywhere(tmp_path: Path) -> None:
    data = model(tensor("w"), tensor("v", 3)).SerializeToString()
    path = tmp_path / "m.onnx"
    for end in [*range(LARGE_BYTES, len(data), 9), len(data) - 5]:
        path.write_bytes(data[:end])
        with refused("QD-MODEL-TRUNCATED", str(path), f"{end} bytes"):
            read_model(path)


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    onnx.save(model(tensor("w")), path := tmp_path / "m.onnx")
    with path.open("rb") as file:
        data, skipped = without_weights(file)
        path.write_bytes(path.read_bytes()[:LARGE_BYTES])
        file.seek(0)
        with pytest.raises(OSError, match="shorter"):
            put_back(file, onnx.ModelProto.FromString(data), skipped)


PEAK = """
import resource, sys
from qdebug.model.load import read_model
import onnx.checker, onnxruntime
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_model(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_one_weight_at_a_time_is_in_memory(tmp_path: Path) -> None:
    one = 16 << 20
    tensors = [tensor(f"w{i}", one // 4) for i in range(8)]
    onnx.save(model(*tensors), path := tmp_path / "m.onnx")
    command = [sys.executable, "-c", PEAK, str(path)]
    peak = 1024 * int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert peak < 3 * one
