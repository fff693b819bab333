"""Which samples calibrate, choose and judge: never the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdebug.errors import UsageError
from qdebug.network.samples import Samples, open_samples, samples_in_memory
from qdebug.network.samples.subset import first, halves, split, whole
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec

SPEC = TensorSpec("x", (None, 2), np.dtype(np.float32))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    path = tmp_path_factory.mktemp("data") / "x.npz"
    np.savez(path, x=np.zeros((60, 2), np.float32))
    return open_samples(str(path), (SPEC,), batch_size=1)


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 12), share=st.floats(0.2, 0.8))
def test_portions_have_no_sample_in_common(samples: Samples, size: int, share: float) -> None:
    calibration, held_out = split(samples.with_batch_size(size), share)
    choosing, judging = (
        halves(held_out, "inputs") if len(held_out.batches) > 1 else (held_out, None)
    )
    parts = [calibration, choosing, *([judging] if judging else [])]
    seen = [index for part in parts for index in part.indices]
    assert sorted(seen) == list(range(60))
    assert held_out.count == pytest.approx(60 * share, abs=size)
    assert len({samples.digest, *(part.key for part in parts)}) == len(parts) + 1
    assert all(part.count == len(part.indices) for part in parts)


@settings(deadline=None, max_examples=40)
@given(
    counts=st.lists(st.integers(2, 12), min_size=2, max_size=4),
    share=st.floats(0.2, 0.8),
    seed=st.integers(0, 99),
)
def test_each_part_has_its_share_of_every_group(counts: list[int], share: float, seed: int) -> None:
    """A group of two samples is in both parts, wherever they stand."""
    groups = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(groups)
    data = samples_in_memory({"x": np.zeros((len(groups), 2), np.float32), "kind": groups})
    samples = SampleSpec(data, group="kind").open((SPEC,))
    for one, other, part in (
        (*split(samples, share), share),
        (*halves(whole(samples), "inputs"), 0.5),
    ):
        assert sorted([*one.indices, *other.indices]) == list(range(len(groups)))
        for group, count in enumerate(counts):
            has = (groups[other.indices] == group).sum()
            assert 1 <= has < count and has == pytest.approx(part * count, abs=1)
    if min(counts) > 2:  # one for each of three parts
        choosing, proving = halves(split(samples, share, parts=2)[1], "inputs")
        assert all({*groups[x.indices]} == {*groups} for x in (choosing, proving))


def test_the_first_samples_in_whole_batches(samples: Samples) -> None:
    subset = whole(samples.with_batch_size(8))
    assert [first(subset, n).count for n in (None, 1, 8, 20, 100)] == [60, 8, 8, 16, 60]
    assert whole(samples).key == subset.key == samples.digest


def test_too_few_samples_are_named_and_how_many_it_takes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2), np.float32))
    samples = open_samples(str(tmp_path / "x.npz"), (SPEC,), batch_size=1)
    with pytest.raises(UsageError) as caught:
        split(samples, 0.3)
    assert "3 samples" in caught.value.message and "4 samples" in caught.value.hint
