"""What a run file keeps where the user leaves it open: below a limit, with the least loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qdebug
from qdebug.commands.compare import keeping
from qdebug.commands.compare.keeping import MOST_BYTES, bearable
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep

DATA = Path(__file__).parents[2] / "calib_data"
ONE, TWO = Keep("worst", 1), Keep("worst", 2)
MB = 1e6


@pytest.mark.parametrize(
    ("megabytes", "may_round", "keep", "dtype", "left_out"),
    [
        ([20, 20], True, TWO, "float32", ""),
        ([40, 20], True, ONE, "float32", ""),
        ([90, 30], True, ONE, "float16", ""),
        ([90, 30], False, ONE, "float32", "0"),
        ([400, 200, 30, 20], True, ONE, "float16", "0 1"),
    ],
)
def test_what_loses_least_comes_first(
    megabytes: list[float], may_round: bool, keep: Keep, dtype: str, left_out: str
) -> None:
    sizes = {str(k): size * MB for k, size in enumerate(megabytes)}
    kept = bearable(sizes, 19, 2, may_round=may_round)
    assert (kept.keep, kept.dtype, kept.left_out) == (keep, dtype, {*left_out.split()})


@given(st.lists(st.floats(0, 1e9), max_size=8), st.integers(1, 9), st.integers(2, 3), st.booleans())
def test_it_never_takes_more_than_that(
    each: list[float], samples: int, runs: int, may_round: bool
) -> None:
    sizes = {str(k): size for k, size in enumerate(each)}
    kept = bearable(sizes, samples, runs, may_round=may_round)
    rest = sum(size for name, size in sizes.items() if name not in kept.left_out)
    taken = min(samples, kept.keep.count) * runs * rest / (2 if kept.dtype == "float16" else 1)
    assert taken <= MOST_BYTES * (1 + 1e-9)
    assert kept.size == pytest.approx(taken, rel=1e-6, abs=1)


def test_histograms_leave_less_room() -> None:
    sizes = {"0": 20 * MB, "1": 20 * MB}
    assert bearable(sizes, 19, 2, may_round=True, histograms=30 * MB).keep == TWO
    assert bearable(sizes, 19, 2, may_round=True, histograms=40 * MB).keep == ONE


def compared(path: Path, **how: Any) -> Any:
    samples = DATA / "digits_holdout.npz"
    return qdebug.compare(
        DATA / "digits_cnn.onnx", inputs=samples, calib_data=samples, samples=8, cache=False,
        output=str(path), effect="none", **how,
    )  # fmt: skip


def kept_of(path: Path) -> tuple[int, str, set[str], int]:
    with RunReader(path) as run:
        size = sum(
            run.read(role, tensor, sample).nbytes
            for role in ("reference", "candidate")
            for tensor in run.tensors(role)
            for sample in run.samples_of(role, tensor)
        )
        return len(run.samples), run.dtype, {*run.tensors("reference")}, size


def test_the_file_is_as_large_as_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.h5"
    whole = compared(path)
    count, dtype, tensors, size = kept_of(path)
    assert (count, dtype) == (2, "float32") and not any("MB" in note for note in whole.notes)
    for share, expected in ((0.6, (1, "float32")), (0.3, (1, "float16")), (0.1, (1, "float16"))):
        monkeypatch.setattr(keeping, "MOST_BYTES", share * size)
        result = compared(path, force=True)
        now, kind, left, taken = kept_of(path)
        assert (now, kind) == expected and taken <= share * size
        assert (left == tensors) == (share > 0.1) and left <= tensors
        assert sum("MB" in note for note in result.notes) == 1
        assert [t.metrics for t in result.tensors] == [t.metrics for t in whole.tensors]
        assert len(qdebug.load_run(path).samples) == 1


def test_what_is_asked_for_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MOST_BYTES", 1000)
    path = tmp_path / "run.h5"
    for how, expected in (
        ({"keep": "worst:2"}, (2, "float32")),
        ({"keep": "all"}, (8, "float32")),
    ):
        result = compared(path, force=True, **how)
        assert kept_of(path)[:2] == expected
        assert sum("MB" in note for note in result.notes) == 1
