"""What every format does alike, and what each does on its own."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qdebug.errors import SampleError
from qdebug.network.samples import Batch, Samples, open_samples
from qdebug.network.samplespec import SampleSpec
from qdebug.wording import option


def everything(samples: Samples) -> dict[str, np.ndarray]:
    feeds = [samples.feeds(batch.start, batch.count) for batch in samples.batches()]
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def assert_is(samples: Samples, arrays, count: int = 11) -> None:
    read = everything(samples)
    assert list(read) == ["image", "ids"]
    for name, array in read.items():
        np.testing.assert_array_equal(array, arrays[name][:count])
        assert array.dtype == arrays[name].dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable


# every format


def test_round_trip_on_two_passes(tmp_path, write, arrays, inputs) -> None:
    samples = open_samples(write(tmp_path, arrays), inputs)
    assert samples.count == 11
    assert samples.batch_size == 1
    assert samples.batch_is_free
    assert_is(samples, arrays)
    assert_is(samples, arrays)
    np.testing.assert_array_equal(samples.extras["labels"], arrays["labels"])
    assert list(samples.extras) == ["labels"]


def test_any_batch_size_when_the_leading_axes_are_dynamic(tmp_path, write, arrays, inputs) -> None:
    samples = open_samples(write(tmp_path, arrays), inputs, batch_size=4)
    assert list(samples.batches()) == [Batch(0, 0, 4), Batch(1, 4, 4), Batch(2, 8, 3)]
    assert_is(samples, arrays)
    assert_is(samples.with_batch_size(11), arrays)
    assert samples.batch_size == 4


def test_fixed_batch(tmp_path, write, arrays, inputs, make_spec) -> None:
    inputs[0] = make_spec("image", 5, 3, 4, 5)
    spec = write(tmp_path, arrays)
    with refused("QD-SAMPLES-BATCH", "11", "10"):
        open_samples(spec, inputs)
    with pytest.raises(SampleError) as error:
        SampleSpec(spec, limited_by="calib_samples").open(inputs)
    assert option("calib_samples", "10") in error.value.hint
    with pytest.raises(SampleError) as error:
        SampleSpec(spec, limited_by="").open(inputs)
    assert "--" not in error.value.hint and "samples=" not in error.value.hint
    samples = open_samples(spec, inputs, limit=10)
    assert [batch.count for batch in samples.batches()] == [5, 5]
    assert not samples.batch_is_free
    assert_is(samples, arrays, 10)
    with refused("QD-SAMPLES-BATCH"):
        samples.with_batch_size(4)
    with refused("QD-SAMPLES-BATCH"):
        open_samples(spec, inputs, limit=10, batch_size=2)
    assert samples.with_batch_size(5).batch_size == 5
    with pytest.raises(ValueError, match="batches"):
        samples.feeds(1, 5)


def test_limit(tmp_path, write, arrays, inputs) -> None:
    spec = write(tmp_path, arrays)
    samples = open_samples(spec, inputs, limit=4)
    assert samples.count == 4
    assert_is(samples, arrays, 4)
    assert len(samples.extras["labels"]) == 4
    assert open_samples(spec, inputs, limit=99).count == 11
    with pytest.raises(ValueError, match="of 4"):
        samples.feeds(3, 2)


def test_threads(request, tmp_path, write, arrays, inputs) -> None:
    samples = open_samples(write(tmp_path, arrays), inputs, batch_size=2)
    interval = sys.getswitchinterval()
    request.addfinalizer(lambda: sys.setswitchinterval(interval))
    sys.setswitchinterval(1e-6)  # so that a missing lock shows
    batches = list(samples.batches()) * 8
    np.random.default_rng(1).shuffle(batches)
    with ThreadPoolExecutor(8) as pool:
        feeds = list(pool.map(lambda batch: samples.feeds(batch.start, batch.count), batches))
    for batch, feed in zip(batches, feeds, strict=True):
        stop = batch.start + batch.count
        np.testing.assert_array_equal(feed["image"], arrays["image"][batch.start : stop])
        np.testing.assert_array_equal(feed["ids"], arrays["ids"][batch.start : stop])


def test_feeds_are_the_callers_own(tmp_path, write, arrays, inputs) -> None:
    samples = open_samples(write(tmp_path, arrays), inputs)
    samples.feeds(0, 1)["image"][:] = 0
    np.testing.assert_array_equal(samples.feeds(0, 1)["image"], arrays["image"][:1])


def test_one_digest_in_every_format(tmp_path, write, arrays, inputs) -> None:
    np.savez(tmp_path / "reference.npz", **arrays)
    reference = open_samples(str(tmp_path / "reference.npz"), inputs, batch_size=3)
    samples = open_samples(write(tmp_path, arrays), inputs)
    assert samples.digest == reference.digest
    assert samples.digest == samples.digest
    assert len(samples.digest) == 64


def test_nan_is_named_when_read(tmp_path, write, arrays, inputs) -> None:
    arrays["image"][7, 1, 2, 3] = np.nan
    samples = open_samples(write(tmp_path, arrays), inputs, batch_size=4)
    samples.feeds(0, 4)
    with refused("QD-SAMPLES-NON-FINITE", "'image'"):
        samples.feeds(4, 4)
    arrays["image"][7, 1, 2, 3] = 0


def test_missing_input(tmp_path, write, arrays, inputs, make_spec) -> None:
    inputs[0] = make_spec("images", "N", 3, 4, 5)
    found = "'ids', 'image', 'labels'"
    with refused("QD-SAMPLES-NAMES", str(tmp_path), "'images'", found):
        open_samples(write(tmp_path, arrays), inputs)


def test_wrong_type(tmp_path, write, arrays, inputs) -> None:
    changed = {**arrays, "image": arrays["image"].astype(np.float64)}
    with refused("QD-SAMPLES-DTYPE", "'image'", "float64", ".astype(np.float32)"):
        open_samples(write(tmp_path, changed), inputs)


def test_wrong_shape(tmp_path, write, arrays, inputs, make_spec) -> None:
    inputs[0] = make_spec("image", "N", 3, 4, 6)
    with refused("QD-SAMPLES-SHAPE", "'image'", "[N, 3, 4, 6]"):
        open_samples(write(tmp_path, arrays), inputs)


# the digest


@pytest.mark.parametrize("name", ["image", "ids", "labels"])
def test_digest_sees_every_change(tmp_path, arrays, inputs, name) -> None:
    def digest(data) -> str:
        np.savez(tmp_path / "data.npz", **data)
        return open_samples(str(tmp_path / "data.npz"), inputs).digest

    before = digest(arrays)
    changed = arrays[name].copy()
    changed.flat[-1] += 1
    assert digest({**arrays, name: changed}) != before
    assert digest(arrays) == before


def test_digest_sees_names_limits_and_shapes(tmp_path, make_spec) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 6), np.float32))
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 2, 3), np.float32))
    path, x = str(tmp_path / "a.npz"), make_spec("x", None, 6)
    digests = {
        open_samples(path, [x]).digest,
        open_samples(path, [x], limit=3).digest,
        open_samples(path, [replace(x, name="y")]).digest,
        open_samples(str(tmp_path / "b.npz"), [make_spec("x", None, 2, 3)]).digest,
    }
    assert len(digests) == 4


# single formats


def test_lone_npy_and_unnamed_npz(tmp_path, arrays, make_spec) -> None:
    np.save(tmp_path / "anything.npy", arrays["image"])
    np.savez(tmp_path / "anything.npz", arrays["image"])
    for name in ("anything.npy", "anything.npz"):
        samples = open_samples(str(tmp_path / name), [make_spec("image", 1, 3, 4, 5)])
        assert samples.count == 11
        np.testing.assert_array_equal(samples.feeds(6, 1)["image"], arrays["image"][6:7])
        assert not samples.extras


def test_lone_npy_needs_a_single_input(tmp_path, arrays, inputs) -> None:
    np.save(tmp_path / "x.npy", arrays["image"])
    with refused("QD-SAMPLES-NAMES", "'image'", "'x'"):
        open_samples(str(tmp_path / "x.npy"), inputs)


@pytest.mark.parametrize("axis", [True, False])
def test_directory_of_npy_in_natural_order(tmp_path, arrays, make_spec, axis) -> None:
    for index, sample in enumerate(arrays["image"]):
        np.save(tmp_path / f"img{index}.npy", sample[None] if axis else sample)
    samples = open_samples(str(tmp_path), [make_spec("image", 1, 3, 4, 5)])
    assert samples.count == 11
    np.testing.assert_array_equal(samples.feeds(10, 1)["image"], arrays["image"][10:])


def test_directory_of_npy_batches_for_a_model_of_one(tmp_path, arrays, make_spec) -> None:
    np.save(tmp_path / "a.npy", arrays["image"][:6])
    np.save(tmp_path / "b.npy", arrays["image"][6:])
    samples = open_samples(str(tmp_path), [make_spec("image", 1, 3, 4, 5)])
    assert samples.count == 11
    np.testing.assert_array_equal(samples.feeds(7, 1)["image"], arrays["image"][7:8])


def test_directory_with_one_unnamed_npy_is_stacked(tmp_path, arrays, make_spec) -> None:
    np.save(tmp_path / "all.npy", arrays["image"])
    assert open_samples(str(tmp_path), [make_spec("image", None, 3, 4, 5)]).batch_is_free


def test_names_with_slashes_and_colons(tmp_path, arrays, make_spec) -> None:
    import h5py

    inputs = [make_spec("/net/x:0", None, 3, 4, 5)]
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "_net_x_0.npy", arrays["image"])
    np.save(tmp_path / "npy" / "labels.npy", arrays["labels"])
    np.savez(tmp_path / "exact.npz", **{"/net/x:0": arrays["image"], "labels": arrays["labels"]})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["net/x:0"] = arrays["image"]
        file["labels"] = [b"cat"] * 11
        file["version"] = 3
    for name in ("npy", "exact.npz", "a.h5"):
        samples = open_samples(str(tmp_path / name), inputs)
        np.testing.assert_array_equal(samples.feeds(3, 2)["/net/x:0"], arrays["image"][3:5])
        assert list(samples.extras) == ["labels"]
    assert samples.extras["labels"].tolist() == ["cat"] * 11


def test_names_that_become_one(tmp_path, arrays, make_spec) -> None:
    np.save(tmp_path / "a_b.npy", arrays["image"])
    inputs = [make_spec("a/b", None, 3, 4, 5), make_spec("a:b", None, 3, 4, 5)]
    with refused("QD-SAMPLES-NAMES", "'a_b'", "'a/b'", "'a:b'"):
        open_samples(str(tmp_path), inputs)


def test_other_byte_order_and_bfloat16(tmp_path, arrays, make_spec) -> None:
    import ml_dtypes

    np.save(tmp_path / "big.npy", arrays["image"].astype(">f4"))
    feed = open_samples(str(tmp_path / "big.npy"), [make_spec("x", None, 3, 4, 5)]).feeds(2, 1)
    assert feed["x"].dtype == np.float32
    assert feed["x"].dtype.isnative
    np.testing.assert_array_equal(feed["x"], arrays["image"][2:3])

    half = arrays["image"].astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "half.npy", half)
    x = make_spec("x", None, 3, 4, 5, dtype=ml_dtypes.bfloat16)
    feed = open_samples(str(tmp_path / "half.npy"), [x]).feeds(2, 1)
    assert feed["x"].dtype == ml_dtypes.bfloat16
    assert feed["x"].tobytes() == half[2:3].tobytes()


def write_data_sets(path: Path, arrays, names: bool) -> None:
    import onnx
    from onnx import numpy_helper

    for index in range(11):
        folder = path / f"test_data_set_{index}"
        folder.mkdir()
        for position, name in enumerate(("image", "ids")):
            tensor = numpy_helper.from_array(
                arrays[name][index : index + 1], name if names else f"other{position}"
            )
            onnx.save_tensor(tensor, folder / f"input_{1 - position if names else position}.pb")
        onnx.save_tensor(numpy_helper.from_array(np.zeros(3), "y"), folder / "output_0.pb")


@pytest.mark.parametrize("names", [True, False])
def test_onnx_test_data(tmp_path, arrays, inputs, names) -> None:
    write_data_sets(tmp_path, arrays, names)
    (tmp_path / "model.onnx").touch()
    samples = open_samples(str(tmp_path), inputs)
    assert samples.count == 11
    assert_is(samples, arrays)
    assert not samples.extras
    one = open_samples(str(tmp_path / "test_data_set_10"), inputs)
    np.testing.assert_array_equal(one.feeds(0, 1)["image"], arrays["image"][10:])


def test_onnx_test_data_that_is_damaged_or_too_much(tmp_path, arrays, inputs) -> None:
    write_data_sets(tmp_path, arrays, names=False)
    extra = tmp_path / "test_data_set_3" / "input_2.pb"
    extra.write_bytes((tmp_path / "test_data_set_3" / "input_0.pb").read_bytes())
    with refused("QD-SAMPLES-NAMES", "input_2.pb", "'other0'"):
        open_samples(str(tmp_path), inputs)
    extra.write_bytes(b"\xff\xff\xff")
    with refused("QD-SAMPLES-DAMAGED", "input_2.pb"):
        open_samples(str(tmp_path), inputs)


def test_json_bare_feed_and_strings_with_brackets(tmp_path, arrays, make_spec) -> None:
    json = pytest.importorskip("polygraphy.json")
    name = 'x{[\\"}'
    json.save_json({name: arrays["image"][:1]}, str(tmp_path / "one.json"))
    samples = open_samples(str(tmp_path / "one.json"), [make_spec(name, None, 3, 4, 5)])
    np.testing.assert_array_equal(samples.feeds(0, 1)[name], arrays["image"][:1])


READ = """
import subprocess
import sys
if sys.argv[2] == "without":
    sys.modules["hdf5plugin"] = None
from pathlib import Path
from qdebug.errors import SampleError
from qdebug.network.samples.readers.hdf5 import open_hdf5
try:
    print(open_hdf5(Path(sys.argv[1]))["x"].read(1, 2).sum())
except SampleError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("plugin", "expected"), [("with", "40.0"), ("without", "QD-SAMPLES-FILTER")]
)
def test_compressed_hdf5_needs_the_plugin_and_says_so(
    plugin: str, expected: str, tmp_path: Path
) -> None:
    import h5py
    import hdf5plugin

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.full((3, 40), 1.0), **hdf5plugin.Bitshuffle(cname="lz4"))
    done = subprocess.run(
        [sys.executable, "-c", READ, tmp_path / "a.h5", plugin],
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected in done.stdout, done.stderr
