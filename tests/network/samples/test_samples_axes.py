"""Which axis counts samples, and what becomes one execution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

from qdebug.network.samples import open_samples


def save(path, **arrays) -> str:
    np.savez(path / "data.npz", **arrays)
    return str(path / "data.npz")


def save_feeds(path, feeds) -> str:
    for index, feed in enumerate(feeds):
        np.savez(path / f"{index}.npz", **feed)
    return str(path)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_one_more_axis_is_a_whole_feed_per_sample(tmp_path, make_spec) -> None:
    x = floats(5, 2, 3)
    for first in (2, None):
        samples = open_samples(save(tmp_path, x=x), [make_spec("x", first, 3)])
        assert (samples.count, samples.batch_size, samples.batch_is_free) == (5, 1, False)
        assert [batch.count for batch in samples.batches()] == [1] * 5
        np.testing.assert_array_equal(samples.feeds(3, 1)["x"], x[3])
        with pytest.raises(ValueError, match="batches"):
            samples.feeds(0, 2)
    assert len(samples.digest) == 64


def test_scalar_input(tmp_path, make_spec) -> None:
    x, scale = floats(4, 3), floats(4)
    inputs = [make_spec("x", "N", 3), make_spec("scale")]
    feeds = [{"x": x[i : i + 1], "scale": scale[i]} for i in range(4)]
    (tmp_path / "feeds").mkdir()
    for spec in (save(tmp_path, x=x, scale=scale), save_feeds(tmp_path / "feeds", feeds)):
        samples = open_samples(spec, inputs)
        assert (samples.count, samples.batch_is_free) == (4, False)
        feed = samples.feeds(2, 1)
        assert feed["scale"].shape == ()
        assert feed["scale"] == scale[2]
        np.testing.assert_array_equal(feed["x"], x[2:3])


def test_a_single_number_is_for_all_samples(tmp_path, make_spec) -> None:
    """Such as a sampling rate; it does not keep samples from being batched."""
    x, inputs = floats(4, 3), [make_spec("x", "N", 3), make_spec("scale")]
    samples = open_samples(save(tmp_path, x=x, scale=np.float32(16)), inputs, batch_size=2)
    assert (samples.count, samples.batch_size) == (4, 2)
    feed = samples.feeds(2, 2)
    assert feed["scale"].shape == () and feed["scale"] == 16
    np.testing.assert_array_equal(feed["x"], x[2:])
    alone = open_samples(save(tmp_path, scale=np.float32(16)), [make_spec("scale")])
    assert alone.count == 1 and alone.feeds(0, 1)["scale"] == 16
    with refused("QD-SAMPLES-SHAPE", "'x'"):
        open_samples(save(tmp_path, x=np.float32(1), scale=np.float32(16)), inputs)


def test_whole_feeds_beside_a_batch_of_one(tmp_path, make_spec) -> None:
    x, box = floats(4, 3), floats(4, 2)
    samples = open_samples(
        save(tmp_path, x=x, box=box), [make_spec("x", 1, 3), make_spec("box", 2)]
    )
    feed = samples.feeds(3, 1)
    assert feed["x"].shape == (1, 3)
    np.testing.assert_array_equal(feed["box"], box[3])


def test_no_common_batch_axis(tmp_path, make_spec) -> None:
    spec = save(tmp_path, a=floats(4, 3), b=floats(4, 3))
    with refused("QD-SAMPLES-BATCH", "'b'", "[2, 3]"):
        open_samples(spec, [make_spec("a", 1, 3), make_spec("b", 2, 3)])


def test_feeds_without_a_common_axis_are_one_sample_each(tmp_path, make_spec) -> None:
    feeds = [{"a": floats(1, 3), "b": floats(2, 3), "label": np.int64(i)} for i in range(4)]
    spec = save_feeds(tmp_path, feeds)
    samples = open_samples(spec, [make_spec("a", 1, 3), make_spec("b", 2, 3)])
    assert (samples.count, samples.batch_is_free) == (4, False)
    np.testing.assert_array_equal(samples.feeds(1, 1)["b"], feeds[1]["b"])
    assert samples.extras["label"].tolist() == [0, 1, 2, 3]
    with refused("QD-SAMPLES-SHAPE", "0.npz", "'b'", "[2, 3]"):
        open_samples(spec, [make_spec("a", 1, 3), make_spec("b", 3, 3)])


def test_one_feed_without_a_common_axis_makes_all_of_them_so(tmp_path, make_spec) -> None:
    feeds = [{"a": floats(2), "b": floats(2)}, {"a": floats(2), "b": floats(3)}]
    spec = save_feeds(tmp_path, feeds)
    samples = open_samples(spec, [make_spec("a", None), make_spec("b", None)])
    assert samples.count == 2
    assert samples.feeds(1, 1)["b"].shape == (3,)


def test_larger_feeds_of_a_dynamic_model_run_as_given(tmp_path, make_spec) -> None:
    feeds = [{"x": floats(n, 3), "label": np.full(n, n)} for n in (4, 4, 2)]
    inputs = [make_spec("x", "N", 3)]
    samples = open_samples(save_feeds(tmp_path, feeds), inputs)
    assert (samples.count, samples.batch_size, samples.batch_is_free) == (10, 4, False)
    assert [(b.start, b.count) for b in samples.batches()] == [(0, 4), (4, 4), (8, 2)]
    np.testing.assert_array_equal(samples.feeds(8, 2)["x"], feeds[2]["x"])
    assert samples.extras["label"].tolist() == [4] * 8 + [2] * 2
    assert open_samples(str(tmp_path), inputs, limit=8).count == 8
    with refused("QD-SAMPLES-COUNT"):
        open_samples(str(tmp_path), inputs, limit=6)
    with refused("QD-SAMPLES-BATCH"):
        open_samples(str(tmp_path), inputs, batch_size=2)
    for start, count in ((0, 8), (1, 3), (9, 1)):
        with pytest.raises(ValueError, match="batches"):
            samples.feeds(start, count)


def test_feeds_of_varying_shape(tmp_path, make_spec) -> None:
    feeds = [{"ids": floats(1, n)} for n in (3, 7, 5)]
    samples = open_samples(save_feeds(tmp_path, feeds), [make_spec("ids", 1, "length")])
    for index, feed in enumerate(feeds):
        np.testing.assert_array_equal(samples.feeds(index, 1)["ids"], feed["ids"])
    free = open_samples(str(tmp_path), [make_spec("ids", "N", "length")])
    assert not free.batch_is_free
    assert free.feeds(1, 1)["ids"].shape == (1, 7)
    with refused("QD-SAMPLES-SHAPE"):
        open_samples(str(tmp_path), [make_spec("ids", 3, "length")])


def test_feeds_smaller_and_larger_than_the_fixed_batch(tmp_path, make_spec) -> None:
    x = floats(12, 3)
    parts = [{"x": x[:5]}, {"x": x[5]}, {"x": x[6:]}]
    samples = open_samples(save_feeds(tmp_path, parts), [make_spec("x", 4, 3)])
    assert samples.count == 12
    for batch in samples.batches():
        stop = batch.start + batch.count
        np.testing.assert_array_equal(samples.feeds(batch.start, 4)["x"], x[batch.start : stop])


def test_one_sample_without_its_axis(tmp_path, make_spec) -> None:
    with refused("QD-SAMPLES-SHAPE", "[None]"):
        open_samples(save(tmp_path, x=floats(3, 4, 5)), [make_spec("x", None, 3, 4, 5)])


def test_channels_last_is_recognised(tmp_path, make_spec) -> None:
    with refused("QD-SAMPLES-SHAPE"):
        open_samples(save(tmp_path, x=floats(2, 8, 9, 3)), [make_spec("x", None, 3, 8, 9)])


def test_fixed_batch_larger_than_the_data(tmp_path, make_spec) -> None:
    with refused("QD-SAMPLES-BATCH"):
        open_samples(save(tmp_path, x=floats(3, 4)), [make_spec("x", 8, 4)])


def test_feeds_whose_rows_no_output_keeps_are_one_sample_each(tmp_path, make_spec) -> None:
    feeds = [{"x": floats(n, 3), "labels": np.array([n])} for n in (4, 2, 5)]
    spec = replace(make_spec("x", "time", 3), holds_samples=False)
    samples = open_samples(save_feeds(tmp_path, feeds), [spec])
    assert (samples.count, samples.batch_size) == (3, 1)
    assert [samples.feeds(i, 1)["x"].shape for i in range(3)] == [(4, 3), (2, 3), (5, 3)]
    np.testing.assert_array_equal(samples.extras["labels"], [4, 2, 5])
