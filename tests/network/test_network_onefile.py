"""Large weights are left out of the message, and what cannot be followed is parsed as it was."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.errors import ModelError
from qdebug.network import load
from qdebug.network.load import read_model
from qdebug.network.onefile import put_back, without_weights
from qdebug.network.weights import LARGE_BYTES, lightened, with_data

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
        serialized, skipped = without_weights(file)
    return onnx.ModelProto.FromString(serialized), len(skipped)


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


@pytest.mark.parametrize("offset", [0, 2])
def test_data_of_a_tensor_that_says_they_are_elsewhere(tmp_path: Path, offset: int) -> None:
    """The external data count. Those at an unaligned offset are loaded rather than mapped."""
    weight, other = tensor("w"), np.ones(COUNT, np.float32)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    weight.external_data.add(key="offset", value=str(offset))
    (tmp_path / "w.bin").write_bytes(bytes(offset) + other.tobytes())
    (tmp_path / "m.onnx").write_bytes(model(weight).SerializeToString())
    read = with_data(read_model(tmp_path / "m.onnx").proto)
    np.testing.assert_array_equal(numpy_helper.to_array(read.graph.initializer[0]), other)


def varint(number: int, size: int = 5) -> bytes:
    """Padded, as a writer may that fills in lengths later."""
    rest = [number >> 7 * i & 0x7F for i in range(size)]
    return bytes([*(byte | 0x80 for byte in rest[:-1]), rest[-1]])


def written(graph: bytes, size: int = 5) -> bytes:
    """A model with this graph, of whose length `size` bytes are written."""
    return b"\x08\x08" + b"\x3a" + varint(len(graph), size) + graph + b"\x42\x02\x10\x11"


def initializer(*parts: bytes) -> bytes:
    """The field of a graph that holds a tensor."""
    tensor = b"".join(parts)
    return b"\x2a" + varint(len(tensor)) + tensor


def data(*values: float) -> bytes:
    """The field of a tensor that holds its data."""
    raw = np.array(values, np.float32).tobytes()
    return b"\x4a" + varint(len(raw)) + raw


GRAPH = model().graph.SerializeToString()
WEIGHT = tensor("w").SerializeToString()
WHOLE = model(tensor("w")).SerializeToString()
OTHER = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor("v")])).SerializeToString()
UNKNOWN = b"\xf8\x3e\x05" + b"\xf9\x3e" + bytes(8) + b"\xfd\x3e" + bytes(4) + b"\xfa\x3e\x01a"
"""Fields that nobody knows: a varint, 64 bits, 32 bits and bytes."""


@pytest.mark.parametrize(
    ("written", "left_out"),
    [
        pytest.param(written(GRAPH + initializer(WEIGHT)), 1, id="padded lengths"),
        pytest.param(UNKNOWN + WHOLE, 1, id="unknown fields"),
        pytest.param(WHOLE + OTHER, 0, id="a graph in two fields"),
        pytest.param(
            written(GRAPH + initializer(WEIGHT, data(*range(COUNT)))), 0, id="data given twice"
        ),
        pytest.param(b"\xfb\x3e\xfc\x3e" + WHOLE, 0, id="a group"),
        pytest.param(
            written(GRAPH + b"\x28\x01" + initializer(WEIGHT)), 0, id="an initializer as a number"
        ),
        pytest.param(WHOLE + 200_001 * b"\x20\x20", 0, id="very many fields"),
    ],
)
def test_other_ways_to_write_it(tmp_path: Path, written: bytes, left_out: int) -> None:
    (path := tmp_path / "m.onnx").write_bytes(written)
    assert message(path)[1] == left_out
    whole = onnx.ModelProto.FromString(written)
    assert with_data(read_model(path).proto).graph == with_data(lightened(whole)).graph


@pytest.mark.parametrize(
    ("written", "code"),
    [
        pytest.param(
            written(GRAPH + initializer(WEIGHT, b"\x42\x01\xff")), "INVALID", id="a name of no text"
        ),
        pytest.param(
            written(GRAPH + initializer(WEIGHT, b"\x4a\x00")), "INVALID", id="no data at the end"
        ),
        pytest.param(
            written(GRAPH + initializer(65 * b"\x08\x01", WEIGHT)), "INVALID", id="too many axes"
        ),
        pytest.param(
            written(GRAPH + initializer(WEIGHT), size=10), "TRUNCATED", id="a length of ten bytes"
        ),
    ],
)
def test_what_is_no_model(tmp_path: Path, written: bytes, code: str) -> None:
    (path := tmp_path / "m.onnx").write_bytes(written)
    with refused(f"QD-MODEL-{code}", str(path)):
        read_model(path)


def test_a_file_that_was_cut_off_anywhere(tmp_path: Path) -> None:
    whole = model(tensor("w"), tensor("v", 3)).SerializeToString()
    path = tmp_path / "m.onnx"
    for end in [*range(LARGE_BYTES, len(whole), 9), len(whole) - 5]:
        path.write_bytes(whole[:end])
        with refused("QD-MODEL-TRUNCATED", str(path), f"{end} bytes"):
            read_model(path)


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    onnx.save(model(tensor("w")), path := tmp_path / "m.onnx")
    with path.open("rb") as file:
        serialized, skipped = without_weights(file)
        path.write_bytes(path.read_bytes()[:LARGE_BYTES])
        file.seek(0)
        with pytest.raises(OSError, match="shrank"):
            put_back(file, onnx.ModelProto.FromString(serialized), skipped)


def test_a_damaged_file_is_read_as_if_it_were_parsed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit anywhere but in the data, which are the same byte again and again."""
    weights = [numpy_helper.from_array(np.full(COUNT, 0x1A, np.uint8).repeat(4), n) for n in "wv"]
    whole = model(weights[0], tensor("small", 3), weights[1]).SerializeToString()
    places = [i for i in range(1, len(whole) - 1) if whole[i - 1 : i + 2] != b"\x1a\x1a\x1a"]
    assert 100 < len(places) < 200
    path, outcomes = tmp_path / "m.onnx", set()

    def outcome() -> object:
        try:
            return with_data(read_model(path).proto).SerializeToString(deterministic=True)
        except ModelError as error:
            return error.code, error.message

    for place in places:
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            found = outcome()
            with monkeypatch.context() as patched:
                patched.setattr(load, "without_weights", lambda file: (file.read(), ()))
                assert found == outcome(), (place, bit)
            outcomes.add(found[0] if isinstance(found, tuple) else "read")
    assert {"read", "QD-MODEL-INVALID", "QD-MODEL-TRUNCATED"} <= outcomes


PEAK = """
import resource, sys
from qdebug.network.load import read_model
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
