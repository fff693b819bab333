"""Large constants as external data: same values, same results, in files that go away."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from producers import small_network

import qdebug
from qdebug.backends.simulation import SimulationBackend
from qdebug.network import weights
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.weights import (
    lightened,
    model_digest,
    model_files,
    on_disk,
    place_of,
    tensor_of,
    values_of,
    with_data,
)
from tests.helpers.refusals import refused

DATA = Path(__file__).parents[2] / "calib_data"
SIZE = 512
RNG = np.random.default_rng(5)
LARGE = RNG.standard_normal((SIZE, SIZE)).astype(np.float32)


def product(weight: TensorProto) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [value("x", TensorProto.FLOAT, ["n", SIZE])],
        [value("y", TensorProto.FLOAT, ["n", SIZE])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64, np.float64])
def test_a_large_constant_lies_in_a_file(dtype: Any) -> None:
    values = np.repeat(LARGE, 4, axis=0).astype(dtype)
    tensor = tensor_of(values, "w")
    assert tensor.ByteSize() < 500
    np.testing.assert_array_equal(values_of(tensor), values)
    assert values_of(tensor).dtype == values.dtype
    whole = with_data(product(tensor)).graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(whole), values)


def test_small_ones_and_text_stay() -> None:
    assert place_of(tensor_of(np.zeros(weights.LARGE_BYTES // 4 - 1, np.float32), "w")) is None
    assert place_of(tensor_of(np.zeros(weights.LARGE_BYTES // 4, np.float32), "w")) is not None
    proto = product(helper.make_tensor("w", TensorProto.STRING, [2], [b"x" * 2**20] * 2))
    assert lightened(proto) == proto


def test_the_same_is_kept_once() -> None:
    first, second = (place_of(tensor_of(LARGE.copy(), name)) for name in ("a", "b"))
    assert first == second
    assert place_of(tensor_of(LARGE + 1, "c")) != first


def test_the_digest_follows_the_values_wherever_they_lie(tmp_path: Path) -> None:
    one, same = (model_digest(product(tensor_of(LARGE.copy(), "w"))) for _ in range(2))
    other = model_digest(product(tensor_of(LARGE + 1, "w")))
    assert one == same != other
    for name, values in (("a", LARGE), ("b", LARGE), ("c", LARGE + 1)):
        proto = product(numpy_helper.from_array(values, "w"))
        onnx.save(
            proto, tmp_path / f"{name}.onnx", save_as_external_data=True, location=f"{name}.w"
        )
    found = [read_model(tmp_path / f"{name}.onnx") for name in "abc"]
    assert len({model_digest(file.proto) for file in found}) == 2


def test_the_digest_does_not_depend_on_how_a_dimension_inside_is_written() -> None:
    """Symbolic shape inference writes it in another way in each process."""
    found = []
    for dim in ("n//2 + 1", "floor(n/2 + 1)"):
        model = product(tensor_of(LARGE.copy(), "w"))
        value = helper.make_tensor_value_info("between", TensorProto.FLOAT, [dim])
        model.graph.value_info.append(value)
        found.append(model_digest(model))
    assert len(set(found)) == 1


def test_users_external_data_are_mapped_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        product(numpy_helper.from_array(LARGE, "w")), path, save_as_external_data=True, location="w"
    )
    graph = prepare_model(read_model(path)).graph
    place = place_of(graph.initializers["w"])
    assert place is not None
    assert place.path == (tmp_path / "w").resolve()
    np.testing.assert_array_equal(graph.constant("w"), LARGE)
    x = RNG.standard_normal((3, SIZE)).astype(np.float32)
    session = SimulationBackend().open(graph.proto, ())
    np.testing.assert_allclose(session.run({"x": x})["y"], x @ LARGE, rtol=1e-4, atol=1e-4)


def test_external_data_that_are_not_aligned_are_read(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"?" + LARGE.tobytes())
    weight = TensorProto(
        name="w", dims=LARGE.shape, data_type=1, data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "w"), ("offset", "1"), ("length", str(LARGE.nbytes))):
        weight.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(product(weight).SerializeToString())
    found = read_model(tmp_path / "m.onnx").proto.graph.initializer[0]
    np.testing.assert_array_equal(values_of(found), LARGE)


@pytest.mark.parametrize("entries", [{"length": "8"}, {"offset": "4"}])
def test_external_data_that_do_not_fit_are_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    path = tmp_path / "m.onnx"
    proto = product(numpy_helper.from_array(LARGE, "w"))
    onnx.save(proto, path, save_as_external_data=True, location="w")
    proto = onnx.load(path, load_external_data=False)
    given = {e.key: e.value for e in proto.graph.initializer[0].external_data} | entries
    del proto.graph.initializer[0].external_data[:]
    for key, value in given.items():
        proto.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    with refused("QD-MODEL-EXTERNAL-DATA", "'w'"):
        read_model(path)


def test_a_model_over_the_limit_is_written_in_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "ONE_FILE_BYTES", 1000)
    proto = product(tensor_of(LARGE, "w"))
    weights.write_model(proto, str(tmp_path / "m.onnx"), "--output", force=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    loaded = onnx.load(tmp_path / "m.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), LARGE)
    onnx.checker.check_model(str(tmp_path / "m.onnx"))
    assert ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    with on_disk(proto) as path:
        np.testing.assert_array_equal(
            numpy_helper.to_array(onnx.load(path).graph.initializer[0]), LARGE
        )
    assert not path.exists()
    assert list(model_files(product(tensor_of(LARGE[:2], "w")), path)) == [
        path,
        Path(f"{path}.data"),
    ]


def test_a_disk_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with refused("QD-STORE-TEMPORARY", "1.0 MB"):
        tensor_of(RNG.standard_normal((SIZE, SIZE)).astype(np.float32), "w")


KEEPING = """
import numpy as np
from qdebug.network.weights import place_of, tensor_of
place = place_of(tensor_of(np.ones(2**20, np.float32), "w"))
print(oct(place.path.stat().st_mode), place.path)
"""


def test_the_file_is_private_and_goes_with_the_process(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", KEEPING]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert said.stdout.startswith("0o100600 " + str(tmp_path)) and not list(tmp_path.iterdir())


def _results(folder: Path) -> tuple[Any, ...]:
    """Of every command that rewrites a model."""
    cnn = str(small_network(folder))
    calib, holdout = (str(DATA / n) for n in ("digits_calib.npz", "digits_holdout.npz"))
    given: dict[str, Any] = {"calib_data": calib, "calib_samples": 64, "weights": "per-tensor"}
    compared = qdebug.compare(cnn, inputs=holdout, samples=32, **given)
    half = qdebug.compare(cnn, inputs=holdout, samples=32, precision="fp16", effect="none")
    found = qdebug.bisect(cnn, inputs=holdout, samples=32, target="output.sqnr_db>=30", **given)
    repaired = qdebug.repair(
        cnn, calib_data=calib, samples=64, weights="per-tensor", only="channel-scales,least-squares"
    )
    found.save_plan(folder / "plan.yaml")
    qdebug.export(folder / "plan.yaml", to="onnx", model=cnn, output=folder / "m.onnx")
    proto = onnx.load_from_string(repaired.model_bytes())
    del proto.metadata_props[:]  # a digest in it is of the weights as they lie
    record = replace(repaired.record(), question="")
    return (
        [(x.name, x.metrics, x.causes) for x in compared.layers],
        [(x.name, x.metrics) for x in half.layers],
        (found.pinned, found.evaluations, found.achieved),
        repaired.repaired,
        (record, repaired.applied, proto.SerializeToString(deterministic=True)),
        onnx.load(folder / "m.onnx"),
    )


def test_results_do_not_depend_on_where_constants_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, limit in (("files", 256), ("messages", 2**40)):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / name / "cache"))
        monkeypatch.setattr(weights, "LARGE_BYTES", limit)
        found.append(_results(tmp_path / name))
    for in_files, in_messages in zip(*found, strict=True):
        assert in_files == in_messages
