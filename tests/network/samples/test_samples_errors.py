"""Every error names the file, what is wrong, and the next step."""

from __future__ import annotations

import base64
import io
import json
import zipfile

import numpy as np
import pytest
from refusals import refused

from qdebug.errors import SampleError
from qdebug.network.samples import open_samples


@pytest.fixture
def x(make_spec):
    return [make_spec("x", None, 3)]


def fails(code: str, spec, inputs, *says: str, **options) -> None:
    """Reading the samples raises this code, names the data and `says`, and gives a next step."""
    with refused(code, str(spec).split(":")[0], *says) as error:
        samples = open_samples(str(spec), inputs, **options)
        for batch in samples.batches():
            samples.feeds(batch.start, batch.count)
    assert isinstance(error.value, SampleError) and error.value.hint


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_no_such_file(tmp_path, x) -> None:
    fails("QD-SAMPLES-NOT-FOUND", tmp_path / "data.npz", x)
    fails("QD-SAMPLES-NOT-FOUND", f"{tmp_path}/load.py:function", x)


def test_unknown_kind(tmp_path, x) -> None:
    (tmp_path / "data.txt").touch()
    fails("QD-SAMPLES-FORMAT", tmp_path / "data.txt", x)


def test_bad_limits(tmp_path, x) -> None:
    np.savez(tmp_path / "a.npz", x=ones(2, 3))
    with refused("QD-SAMPLES-COUNT"):
        open_samples(str(tmp_path / "a.npz"), x, limit=0)
    with refused("QD-SAMPLES-BATCH"):
        open_samples(str(tmp_path / "a.npz"), x, batch_size=0)
    with refused("QD-SAMPLES-NO-INPUTS"):
        open_samples(str(tmp_path / "a.npz"), [])


@pytest.mark.parametrize("content", [b"this is { no data", b""], ids=["garbage", "empty"])
@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.h5", "a.json"])
def test_not_what_the_suffix_says(tmp_path, x, name, content) -> None:
    (tmp_path / name).write_bytes(content)
    nothing = name == "a.json" and not content  # no damage: a file of no feeds
    fails("QD-SAMPLES-EMPTY" if nothing else "QD-SAMPLES-DAMAGED", tmp_path / name, x)


@pytest.mark.parametrize("keep", [0.1, 0.6, 0.99])
@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.h5", "a.json"])
def test_truncated(tmp_path, x, write_hdf5, name, keep) -> None:
    data = np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32)
    path = tmp_path / name
    if name == "a.npz":
        np.savez_compressed(path, x=data)
    elif name == "a.npy":
        np.save(path, data)
    elif name == "a.h5":
        write_hdf5(tmp_path, {"x": data})
        (tmp_path / "data.h5").rename(path)
    else:
        path.write_text(json.dumps({"x": {"array": "A" * 5000, "polygraphy_class": "ndarray"}}))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    fails("QD-SAMPLES-DAMAGED", path, x)


def test_damaged_member(tmp_path, x) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).standard_normal((999, 3)).astype("f4"))
    content = bytearray(path.read_bytes())
    content[5000:5100] = bytes(100)
    path.write_bytes(content)
    fails("QD-SAMPLES-DAMAGED", path, x, "'x'")


def test_member_shorter_than_its_header(tmp_path, x) -> None:
    stream = io.BytesIO()
    np.save(stream, ones(50, 3))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", stream.getvalue()[:-40])
    fails("QD-SAMPLES-DAMAGED", tmp_path / "a.npz", x, "'x'", "600", "560")


def test_pickles_are_refused(tmp_path, x) -> None:
    ragged = np.array([ones(1), ones(2)], dtype=object)
    np.save(tmp_path / "a.npy", ragged, allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=ragged)
    for name in ("a.npy", "a.npz"):
        fails("QD-SAMPLES-OBJECTS", tmp_path / name, x)
    stream = io.BytesIO()
    np.save(stream, ragged, allow_pickle=True)
    text = base64.b64encode(stream.getvalue()).decode()
    feed = {"x": {"array": text, "polygraphy_class": "ndarray"}}
    (tmp_path / "a.json").write_text(json.dumps([feed]))
    fails("QD-SAMPLES-OBJECTS", tmp_path / "a.json", x)


@pytest.mark.parametrize("damage", [b"\x00d", b"\x1cd", b"''", b"(d"])
def test_a_header_that_is_no_python(tmp_path, x, damage) -> None:
    stream = io.BytesIO()
    np.save(stream, ones(1))
    whole = stream.getvalue()
    (tmp_path / "a.npy").write_bytes(damaged := whole.replace(b"'d", damage, 1))
    fails("QD-SAMPLES-DAMAGED", tmp_path / "a.npy", x)
    text = base64.b64encode(damaged).decode()
    feed = {"x": {"array": text, "polygraphy_class": "ndarray"}}
    (tmp_path / "a.json").write_text(json.dumps([feed]))
    fails("QD-SAMPLES-DAMAGED", tmp_path / "a.json", x, "'x'")


def test_a_zip_with_a_name_that_is_no_text(tmp_path, x) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, ä=np.zeros((2, 3), np.float32))
    data = path.read_bytes()
    assert data.count("ä".encode()) == 2
    path.write_bytes(data.replace("ä".encode(), b"x\xbd"))
    fails("QD-SAMPLES-DAMAGED", path, x)


def test_a_zip_of_a_version_to_come(tmp_path, x) -> None:
    np.savez(tmp_path / "a.npz", x=ones(1))
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    whole[whole.index(b"PK\1\2") + 6] = 151  # the version that is needed to extract
    (tmp_path / "a.npz").write_bytes(whole)
    fails("QD-SAMPLES-DAMAGED", tmp_path / "a.npz", x)


def test_empty_containers(tmp_path, x) -> None:
    import h5py

    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    fails("QD-SAMPLES-FORMAT", tmp_path / "a.npz", x)
    h5py.File(tmp_path / "a.h5", "w").close()
    fails("QD-SAMPLES-FORMAT", tmp_path / "a.h5", x)
    (tmp_path / "folder").mkdir()
    fails("QD-SAMPLES-FORMAT", tmp_path / "folder", x)
    (tmp_path / "a.json").write_text("[]")
    fails("QD-SAMPLES-EMPTY", tmp_path / "a.json", x)


def test_mixed_directory(tmp_path, x) -> None:
    np.save(tmp_path / "a.npy", ones(1, 3))
    np.savez(tmp_path / "a.npz", x=ones(1, 3))
    fails("QD-SAMPLES-FORMAT", tmp_path, x, ".npy", ".npz")


def test_zero_samples(tmp_path, x, write_hdf5) -> None:
    np.savez(tmp_path / "a.npz", x=ones(0, 3))
    np.savez_compressed(tmp_path / "b.npz", x=ones(0, 3))
    (tmp_path / "feeds").mkdir()
    np.savez(tmp_path / "feeds" / "0.npz", x=ones(0, 3))
    for name in ("a.npz", "b.npz", "feeds"):
        fails("QD-SAMPLES-EMPTY", tmp_path / name, x, "'x'")


def test_counts_differ(tmp_path, x, make_spec) -> None:
    np.savez(tmp_path / "a.npz", x=ones(10, 3), y=ones(8, 3))
    inputs = [*x, make_spec("y", None, 3)]
    fails("QD-SAMPLES-LENGTHS", tmp_path / "a.npz", inputs, "'x' has 10", "'y' has 8")


def test_extras_of_another_length(tmp_path, x) -> None:
    np.savez(tmp_path / "a.npz", x=ones(10, 3), labels=np.arange(9), classes=np.int64(3))
    fails("QD-SAMPLES-LABELS", tmp_path / "a.npz", x, "'labels'", " 9 ", " 10 ", limit=5)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"label": np.arange(3)}, ["1.npz", " 3 ", " 4"]),
        ({}, ["1.npz"]),
        ({"label": np.ones((4, 2))}, []),
    ],
    ids=["rows", "missing", "shape"],
)
def test_extras_of_feeds(tmp_path, x, second, says) -> None:
    np.savez(tmp_path / "0.npz", x=ones(4, 3), label=np.arange(4))
    np.savez(tmp_path / "1.npz", x=ones(4, 3), **second)
    fails("QD-SAMPLES-LABELS", tmp_path, x, "'label'", *says)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float64, "U3", "S3"])
def test_no_type_is_converted_silently(tmp_path, x, dtype) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), dtype))
    fails("QD-SAMPLES-DTYPE", tmp_path / "a.npz", x, "'x'", ".astype(np.float32)")


@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (2, 1, 4), (2, 1, 1, 3)])
def test_wrong_shapes(tmp_path, x, shape) -> None:
    np.savez(tmp_path / "a.npz", x=ones(*shape))
    fails("QD-SAMPLES-SHAPE", tmp_path / "a.npz", x, "'x'", str(list(shape)), "[?, 3]")


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "Inf"), (-np.inf, "Inf")])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_not_finite(tmp_path, make_spec, dtype, value, word) -> None:
    data = np.full((20, 4), np.finfo(dtype).max, dtype)
    data[13, 2] = value
    np.save(tmp_path / "a.npy", data)
    inputs = [make_spec("x", None, 4, dtype=dtype)]
    says = ("'x'", word, "sample 13 ", "(1 ")
    fails("QD-SAMPLES-NON-FINITE", tmp_path / "a.npy", inputs, *says, batch_size=6)


def test_not_finite_in_a_whole_feed(tmp_path, make_spec) -> None:
    data = ones(5, 4, 3)
    data[2, 3, 0] = np.nan
    np.save(tmp_path / "a.npy", data)
    fails("QD-SAMPLES-NON-FINITE", tmp_path / "a.npy", [make_spec("x", 4, 3)], "sample 2 ")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ('{"lst": [1, 2], "polygraphy_class": "RunResults"}', "QD-SAMPLES-FORMAT", "'lst'"),
        ('{"x": [1.0, 2.0, 3.0]}', "QD-SAMPLES-FORMAT", "'x'"),
        ('{"x": 1,}', "QD-SAMPLES-DAMAGED", "a.json"),
    ],
)
def test_json_of_something_else(tmp_path, x, text, code, says) -> None:
    (tmp_path / "a.json").write_text(text)
    fails(code, tmp_path / "a.json", x, says)


def test_data_that_disappears(tmp_path, x) -> None:
    for index in range(3):
        np.save(tmp_path / f"{index}.npy", ones(1, 3))
    samples = open_samples(str(tmp_path), x)
    (tmp_path / "0.npy").unlink()
    with refused("QD-SAMPLES-DAMAGED"):
        samples.feeds(0, 1)
