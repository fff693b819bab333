"""Details of tensors, against straightforward numpy over all samples at once."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdebug.page.data import Picture, TensorDetails
from qdebug.page.details import (
    BINS,
    CELLS,
    MOST_CHANNELS,
    POINTS,
    KeptTensors,
    Pair,
    averaged,
    picture,
    shortened,
)
from qdebug.page.html import packed
from qdebug.plan.description import DescribedGrid
from qdebug.results.ranges import with_width
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter

SAMPLES = 7


def stored(path: Path, tensors: dict[str, tuple[Any, Any]]) -> RunReader:
    """A run file of arrays [samples, ...], one row for each."""
    samples = range(len(next(iter(tensors.values()))[0]))
    with RunWriter(path, overwrite=True) as writer:
        writer.choose(Keep("all"), samples, "float32")
        for sample in samples:
            for role, which in (("reference", 0), ("candidate", 1)):
                row = {name: pair[which][sample : sample + 1] for name, pair in tensors.items()}
                writer.put(role, sample, row)
        writer.finish("{}")
    return RunReader(path)


def pair_of(shape: tuple[int, ...], seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=(SAMPLES, *shape)).astype(np.float32)
    noise = rng.normal(size=reference.shape) * rng.uniform(
        0.01, 0.2, size=(SAMPLES, *[1] * len(shape))
    )
    return reference, (reference + noise).astype(np.float32)


def details(
    path: Path, reference: Any, candidate: Any, grid: DescribedGrid | None = None, **asked: Any
) -> TensorDetails:
    with stored(path, {"t": (reference, candidate)}) as reader:
        kept = KeptTensors(reader, {"t": grid} if grid else {}, {}, {})
        found = kept.details("t", **asked)
    assert found is not None
    return found


def test_histograms_count_every_value(tmp_path: Path) -> None:
    reference, candidate = pair_of((4, 9, 9))
    found = details(tmp_path / "r.h5", reference, candidate, DescribedGrid(-1.5, 1.5, 1.5 / 127))
    shown = found.histogram
    assert shown is not None and shown.reference is not None and shown.candidate is not None
    assert len(shown.reference) == len(shown.candidate) <= BINS
    edges = np.linspace(shown.low, shown.high, len(shown.reference) + 1)
    for counts, values in ((shown.reference, reference), (shown.candidate, candidate)):
        np.testing.assert_array_equal(counts, np.histogram(values.astype(np.float64), edges)[0])
        assert sum(counts) == values.size
    assert (shown.amax, shown.bounds, shown.step) == (1.5, (-1.5, 1.5), 1.5 / 127)
    assert shown.clipped == np.mean(np.abs(candidate) > 1.5)
    assert shown.samples == "kept"
    assert found.kept == tuple(range(SAMPLES)) and found.samples == SAMPLES


def test_a_range_that_is_not_symmetric_ends_half_a_step_beyond(tmp_path: Path) -> None:
    values = np.array([[-0.06, -0.04, 0.0, 1.04, 1.06, 5.0]], np.float32)
    found = details(tmp_path / "r.h5", values, values, DescribedGrid(0.0, 1.0, 0.1))
    assert found.histogram is not None and found.histogram.clipped == 3 / 6


def test_channels(tmp_path: Path) -> None:
    reference, candidate = pair_of((5, 4, 4))
    candidate[:, 2] = reference[:, 2]
    found = details(tmp_path / "r.h5", reference, candidate).channels
    assert found is not None and (found.axis, found.count) == (1, 5)
    wide = reference.astype(np.float64)
    noise = np.square(wide - candidate).sum(axis=(0, 2, 3))
    with np.errstate(divide="ignore"):
        sqnr = 10 * np.log10(np.square(wide).sum(axis=(0, 2, 3)) / noise)
    largest = np.abs(reference).max(axis=(0, 2, 3))
    np.testing.assert_allclose(np.asarray(found.amax, float), largest, rtol=1e-4)
    assert found.sqnr_db[2] is None
    others = [0, 1, 3, 4]
    np.testing.assert_allclose([found.sqnr_db[k] for k in others], sqnr[others], rtol=1e-3)


def test_of_many_channels_the_worst_are_shown(tmp_path: Path) -> None:
    reference, candidate = pair_of((600,))
    candidate[:, 77] += 1
    found = details(tmp_path / "r.h5", reference, candidate).channels
    assert found is not None and found.count == 600 and len(found.index) == MOST_CHANNELS
    assert 77 in found.index and list(found.index) == sorted(found.index)


@pytest.mark.parametrize(("shape", "axis"), [((3, 5), 2), ((6,), 1), ((2, 3, 4), 1)])
def test_where_channels_are(tmp_path: Path, shape: tuple[int, ...], axis: int) -> None:
    found = details(tmp_path / "r.h5", *pair_of(shape)).channels
    assert found is not None and found.axis == axis


def test_points_are_pairs_of_the_tensor(tmp_path: Path) -> None:
    reference, candidate = pair_of((30, 30))
    found = details(tmp_path / "r.h5", reference, candidate).scatter
    assert found is not None and len(found.reference) == POINTS
    every = np.stack([reference.ravel(), candidate.ravel()], axis=1).astype(np.float64)
    for pair in zip(found.reference, found.candidate, strict=True):
        assert np.isclose(every, pair, rtol=1e-4, atol=0).all(axis=1).any(), pair
    again = details(tmp_path / "s.h5", reference, candidate).scatter
    assert found == again


def test_points_come_from_all_samples_alike(tmp_path: Path) -> None:
    reference = np.repeat(np.arange(10, dtype=np.float32)[:, None], 1000, axis=1)
    found = details(tmp_path / "r.h5", reference, reference).scatter
    assert found is not None
    counts = np.bincount(np.asarray(found.reference, int), minlength=10)
    assert counts.min() > 25 and counts.max() < 85  # 50 each, within five deviations


def test_nan_is_left_out_of_counts_and_shown_in_the_picture(tmp_path: Path) -> None:
    reference = np.ones((2, 4), np.float32)
    candidate = np.array([[1, 1, 1, 1], [1, np.nan, np.inf, 1]], np.float32)
    found = details(tmp_path / "r.h5", reference, candidate)
    assert found.histogram is not None and found.histogram.candidate is not None
    assert sum(found.histogram.candidate) == 6
    assert found.picture is not None and found.picture.sample == 1
    assert list(base64.b64decode(found.picture.error)) == [0, 255, 255, 0]
    assert found.channels is not None and found.channels.sqnr_db[1] is None
    assert len(packed([found], ["t"], 10**6).blocks) == 1
    other = details(tmp_path / "s.h5", candidate, reference)
    assert other.channels is not None and other.channels.amax == (1, None, None, 1)
    assert len(packed([other], ["t"], 10**6).blocks) == 1


def test_two_shapes_are_not_compared(tmp_path: Path) -> None:
    found = details(tmp_path / "r.h5", np.ones((2, 3), np.float32), np.ones((2, 4), np.float32))
    assert (found.histogram, found.channels, found.scatter, found.picture) == (None,) * 4


def image(found: Picture | None, role: str = "reference") -> Any:
    assert found is not None
    codes = np.frombuffer(base64.b64decode(getattr(found, role)), np.uint8)
    return codes.reshape(found.height, found.width, found.colours)


def one(reference: Any, candidate: Any) -> Pair:
    return Pair(3, np.asarray(reference, np.float64), np.asarray(candidate, np.float64))


def test_an_image_has_colours() -> None:
    values = np.random.default_rng(0).uniform(size=(1, 3, 8, 6))
    found = picture(one(values, values))
    assert found is not None and (found.colours, found.height, found.width) == (3, 8, 6)
    assert found.channel is None and found.shape == (1, 3, 8, 6) and found.sample == 3
    expected = np.rint((values[0] - values.min()) / np.ptp(values) * 255).transpose(1, 2, 0)
    np.testing.assert_array_equal(image(found), expected)


def test_of_other_channels_the_worst_is_shown_or_the_one_asked_for() -> None:
    reference = np.random.default_rng(0).normal(size=(1, 7, 4, 4))
    candidate = reference.copy()
    candidate[0, 5] += 0.5
    found = picture(one(reference, candidate))
    assert found is not None and found.channel == 5 and found.colours == 1
    assert set(image(found, "error").ravel()) == {255} and found.largest_error == pytest.approx(0.5)
    assert picture(one(reference, candidate), channel=len(reference[0])) is None
    other = picture(one(reference, candidate), channel=2)
    assert other is not None and other.channel == 2 and other.largest_error == 0


def test_heat_maps_and_rows() -> None:
    table = picture(one(np.zeros((1, 5, 9)), np.zeros((1, 5, 9))))
    assert table is not None and (table.height, table.width) == (5, 9)
    row = picture(one(np.zeros((1, 9)), np.zeros((1, 9))))
    assert row is not None and (row.height, row.width) == (1, 9)
    assert picture(one(np.zeros(()), np.zeros(()))) is None


@given(hnp.array_shapes(min_dims=2, max_dims=2, max_side=200))
def test_a_larger_tensor_is_averaged_down(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=(1, *shape))
    cells = averaged(values)
    rows, columns = (min(size, CELLS) for size in shape)
    assert cells.shape == (1, rows, columns)

    def parts(size: int) -> list[Any]:
        bounds = [k * size // min(size, CELLS) for k in range(min(size, CELLS))] + [size]
        return [slice(*pair) for pair in pairwise(bounds)]

    expected = [[values[0, y, x].mean() for x in parts(shape[1])] for y in parts(shape[0])]
    np.testing.assert_allclose(cells[0], expected)


@pytest.mark.parametrize("low", [0.0, 1.0, 3e-300, -1.7e308])
@pytest.mark.parametrize("width", [0.0, 5e-324, 1e-17, 1e-3, 1.7e308])
def test_every_extent_has_bins(low: float, width: float) -> None:
    counts, edges = np.histogram([low], BINS, with_width(low, low + width))
    assert np.isfinite(edges).all() and (np.diff(edges) > 0).all()
    assert counts.sum() == (low > -1e308)


@given(hnp.arrays(np.float64, 9, elements=st.floats(width=32)))
def test_five_digits(values: Any) -> None:
    finite = values[np.isfinite(values)]
    short = shortened(values)
    np.testing.assert_allclose(short[np.isfinite(values)], finite, rtol=5.1e-5)
    np.testing.assert_array_equal(np.isfinite(short), np.isfinite(values))
    for x in short[np.isfinite(values)].tolist():
        if 1e-17 < abs(x) < 1e22:
            assert float(f"{x:.5g}") == x


def test_where_nothing_is_kept_the_calibration_is_shown(tmp_path: Path) -> None:
    from qdebug.calibrators.gather import histogram_of

    values = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)
    seen = histogram_of(values)
    with stored(tmp_path / "r.h5", {"other": pair_of((2,))}) as reader:
        grid = DescribedGrid(-1.0, 1.0, 1 / 127)
        kept = KeptTensors(reader, {"t": grid}, {}, {"t": seen})
        found = kept.details("t")
        assert kept.names == {"t", "other"} and kept.details("nothing") is None
    assert found is not None and found.samples == 0 and found.kept == ()
    assert found.histogram is not None and found.histogram.samples == "calibration"
    assert found.histogram.candidate is None and found.histogram.reference is not None
    assert sum(found.histogram.reference) == 1000
    assert found.histogram.clipped == pytest.approx(float(np.mean(np.abs(values) > 1)), abs=0.01)
    assert (found.channels, found.scatter, found.picture) == (None, None, None)
