"""What is put into a run file comes out of it."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdebug.errors import StoreError
from qdebug.store.reader import RunReader
from qdebug.store.schema import NETWORK, ROLES, SHOWN, FloatStorage, Keep, RangeRecord
from qdebug.store.writer import RunWriter, storable

ALL = Keep("all")
NAMES = ["/a/b:0", "a;b", "é層/" * 100, "", ".", "..", " x ", "a" * 300, "A", "'\"\n"]


def write(
    path: Path, by_sample: dict[int, dict[str, np.ndarray]], dtype: FloatStorage = "float32"
) -> Path:
    """A run whose candidate is its reference, sample by sample in row order."""
    with RunWriter(path, overwrite=True) as writer:
        writer.choose(ALL, list(by_sample), dtype)
        for sample, tensors in by_sample.items():
            for role in ROLES:
                writer.put(role, sample, tensors)
        return writer.finish('{"verdict": {"passed": true}}')


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


def test_any_name_keeps_its_tensor(tmp_path: Path) -> None:
    tensors = {name: np.full((2, 3), i, np.float32) for i, name in enumerate(NAMES)}
    path = write(tmp_path / "run.h5", {0: tensors})
    with RunReader(path) as run:
        assert run.tensors("reference") == run.tensors("candidate") == tuple(NAMES)
        for name in NAMES:
            assert_same(run.read("candidate", name, 0), tensors[name])


def test_texts_and_ranges(tmp_path: Path) -> None:
    manifest = {"model": {"path": "é/m.onnx", "sha256": "00"}, "samples": ["x" * 64] * 3000}
    ranges = {
        "/a:0": RangeRecord(
            {"amin": -1.5, "amax": float("inf"), "count": 2**40, "first_bin": -7},
            {"histogram": np.arange(9), "empty": np.zeros(0, np.int64)},
        ),
        "b": RangeRecord(),
    }
    with RunWriter(tmp_path / "run.h5", overwrite=False) as writer:
        writer.set_plan("replaced")
        writer.set_plan("layers: {é: int8}\n")
        writer.set_json(NETWORK, "replaced")
        writer.set_json(NETWORK, '{"é": 1}')
        writer.set_json(SHOWN, '[{"é": 1}]')
        writer.set_manifest(manifest)
        writer.set_ranges({"replaced": RangeRecord()})
        writer.set_ranges(ranges)
        writer.finish(json.dumps({"outputs": [], "value": None}))
    with RunReader(tmp_path / "run.h5") as run:
        assert run.manifest == manifest
        assert run.plan_text == "layers: {é: int8}\n"
        assert run.network_text == '{"é": 1}'
        assert run.shown == [{"é": 1}]
        assert run.results == {"outputs": [], "value": None}
        assert run.samples == ()
        assert run.tensors("reference") == ()
        found = run.ranges()
    assert list(found) == ["/a:0", "b"]
    assert found["/a:0"].scalars == ranges["/a:0"].scalars
    assert isinstance(found["/a:0"].scalars["count"], int)
    for key, array in ranges["/a:0"].arrays.items():
        assert_same(found["/a:0"].arrays[key], array)


def test_rows_in_any_order_and_a_tensor_that_comes_late(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run.h5", overwrite=False) as writer:
        writer.choose(ALL, (5, 30, 1), "float32")
        writer.put("reference", 30, {"a": np.float32([3])})
        writer.put("reference", 5, {"a": np.float32([0]), "late": np.int64(7)})
        writer.put("reference", 1, {"a": np.float32([1, 2])})
        writer.put("reference", 1, {"a": np.float32([1, 2, 200])})
        writer.put("reference", 5, {"a": np.float32([-1])})
        writer.finish("{}")
    with RunReader(tmp_path / "run.h5") as run:
        assert run.samples == (1, 5, 30)
        assert [run.read("reference", "a", s)[-1] for s in run.samples] == [200, -1, 3]
        assert_same(run.read("reference", "late", 5), np.asarray(np.int64(7)))
        assert run.tensors("candidate") == ()
        assert run.samples_of("reference", "late") == (5,)
        with pytest.raises(StoreError, match=r"(?s)sample 30.*QD-STORE-NO-TENSOR"):
            run.read("reference", "late", 30)


def test_rows_of_another_shape(tmp_path: Path) -> None:
    by_sample = {
        s: {"ids": np.full((1, n), n, np.int64), "x": np.full((1, n), n, np.float32)}
        for s, n in enumerate([4, 7, 4, 0, 2])
    }
    path = write(tmp_path / "run.h5", by_sample)
    with RunReader(path) as run:
        for sample, tensors in by_sample.items():
            for name, array in tensors.items():
                assert_same(run.read("candidate", name, sample), array)
    with h5py.File(path) as file:
        group = file["tensors/00001"]
        assert group["reference"].shape == (5, 1, 4)
        assert group["reference"].attrs["ragged"].tolist() == [1, 3, 4]
        assert np.isnan(group["reference"][1]).all()
        assert group["ragged_reference/1"].shape == (1, 7)


def test_float16_narrows_floats_but_never_invents_an_infinity(tmp_path: Path) -> None:
    small = {"x": np.float32([1.5, np.inf, np.nan]), "n": np.int32([70000])}
    large = {"x": np.float32([1e6, 0, 0]), "n": np.int32([70001])}
    path = write(tmp_path / "run.h5", {0: small, 1: large}, dtype="float16")
    with RunReader(path) as run:
        assert_same(run.read("reference", "x", 0), small["x"].astype(np.float16))
        assert_same(run.read("reference", "x", 1), large["x"])
        assert_same(run.read("reference", "n", 1), large["n"])


def test_a_tensor_stays_wide_only_where_a_finite_value_would_become_infinite() -> None:
    for value, dtype in (
        (65519.9, np.float16), (-65520.0, np.float32), (np.inf, np.float16), (np.nan, np.float16),
    ):  # fmt: skip
        array = np.full((3, 5), value, np.float32)
        found = storable("a", array, "float16")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, array.astype(dtype))


def test_rows_of_any_layout_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    by_sample = {
        s: {
            "big": np.maximum(rng.standard_normal((1, 7, 33, 29)), 0).astype(np.float32),
            "tiny": rng.random(2),
            "view": rng.random((8, 6))[::2, ::-1],
            "other endian": rng.random(4).astype(">f4"),
        }
        for s in range(3)
    }
    path = write(tmp_path / "run.h5", by_sample)
    with RunReader(path) as run:
        for sample, tensors in by_sample.items():
            for key, array in tensors.items():
                got = run.read("reference", key, sample)
                assert_same(got, array.astype(array.dtype.newbyteorder("=")))


def test_plain_h5py_reads_the_documented_layout(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write(tmp_path / "run.h5", {4: {"a/b": x, "m": np.bool_([True])}, 9: {"a/b": x + 1}})
    with h5py.File(path) as file:
        assert file.attrs["schema"] == "qdebug.run/1"
        assert file.attrs["complete"]
        assert json.loads(file.attrs["manifest"]) == {}
        assert file["plan"].asstr()[()] == ""
        assert json.loads(file["results"].asstr()[()])["verdict"]["passed"]
        assert file["samples"][()].tolist() == [4, 9]
        assert file["tensors/00000"].attrs["name"] == "a/b"
        assert_same(file["tensors/00000/reference"][()], np.stack([x, x + 1]))
        assert file["tensors/00001/candidate"].dtype == np.bool_
        assert file["tensors/00001/candidate"].attrs["missing"].tolist() == [1]


def test_keep_none_stores_no_activations(tmp_path: Path) -> None:
    path = write(tmp_path / "run.h5", {})
    with (
        RunReader(path) as run,
        pytest.raises(StoreError, match="QD-STORE-NOT-KEPT"),
    ):
        run.read("reference", "a", 0)


def test_a_thousand_tensors(tmp_path: Path) -> None:
    tensors = {f"layer_{i}": np.full((1, 4), i, np.float32) for i in range(1000)}
    path = write(tmp_path / "run.h5", {0: tensors, 1: tensors})
    with RunReader(path) as run:
        assert run.tensors("candidate") == tuple(tensors)
        assert run.read("candidate", "layer_777", 1)[0, 0] == 777


DTYPES = st.sampled_from(
    [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_]
)
ROWS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=st.lists(
        st.dictionaries(st.sampled_from(NAMES), ROWS, max_size=4), min_size=1, max_size=4
    ),
)
def test_any_arrays_round_trip(table: list[dict[str, np.ndarray]], tmp_path: Path) -> None:
    path = write(tmp_path / "run.h5", dict(enumerate(table)))
    with RunReader(path) as run:
        for sample, tensors in enumerate(table):
            for name in tensors:
                assert_same(run.read("candidate", name, sample), tensors[name])
