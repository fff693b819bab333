"""A repair that ends before its end: what is on disk, and what a time limit leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import qdebug
from qdebug.errors import StoreError
from qdebug.execute import variants
from qdebug.plan.repaired import Record, record_in
from qdebug.types import Progress

DATA = Path(__file__).parents[2] / "calib_data"
WHAT: dict[str, Any] = {
    "model": str(DATA / "digits_cnn.onnx"),
    "calib_data": str(DATA / "digits_calib.npz"),
    "inputs": str(DATA / "digits_holdout.npz"),
    "weights": "per-tensor",
    "metric": "top1",
    "samples": 64,
    "batch_size": 8,
}


class StoppedError(Exception):
    """The user had enough."""


def stop_where(told: str) -> Callable[[Progress], None]:
    def stop(progress: Progress) -> None:
        if told in progress.note:
            raise StoppedError

    return stop


def test_the_best_so_far_is_on_disk_and_the_same_command_replaces_it(tmp_path: Path) -> None:
    file = tmp_path / "out.onnx"
    how = {**WHAT, "only": "bias-correction,least-squares", "output": str(file)}
    with pytest.raises(StoppedError):
        qdebug.repair(**how, progress=stop_where(f"the best so far is in {file}"))
    left = record_in(str(file))
    assert left is not None and left.unfinished and "top1" in left.told
    other = tmp_path / "other.onnx"  # it is not what was left of this one
    model = onnx.load(WHAT["model"])
    model.doc_string = "another"
    onnx.save(model, other)
    with pytest.raises(StoreError, match="exists"):
        qdebug.repair(**how | {"model": str(other)})
    better = qdebug.compare(
        str(file), reference=WHAT["model"], inputs=WHAT["inputs"], samples=64, effect="none"
    )
    result = qdebug.repair(**how)  # without `force`
    assert not result.failed
    assert better.outputs[0].metrics.sqnr_db > result.proof.start.sqnr_db + 3
    whole = record_in(str(file))
    assert whole is not None and not whole.unfinished
    with pytest.raises(StoreError, match="exists"):
        qdebug.repair(**how)


def test_a_stopped_repair_measures_nothing_twice_and_ends_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered, lower = [0], variants.lower

    def counted(bound: Any) -> Any:
        lowered[0] += 1
        return lower(bound)

    def told(result: Any) -> list[Any]:
        steps = [(one.remedy, one.layers, one.before, one.after) for one in result.steps]
        return [steps, result.proof, result.repaired]

    monkeypatch.setattr(variants, "lower", counted)
    how = {**WHAT, "only": "bias-correction,least-squares"}
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "undisturbed"))
    undisturbed = qdebug.repair(**how)
    every = lowered[0]
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "stopped"))
    with pytest.raises(StoppedError):
        qdebug.repair(**how, progress=stop_where("1 change kept"))
    assert told(qdebug.repair(**how)) == told(undisturbed) and lowered[0] == 2 * every


def test_a_finished_result_is_better_than_an_unfinished_one() -> None:
    done = Record("q", (0.0, 1.0), "")
    assert done.better_than(replace(done, rank=(0.0, 2.0), unfinished=True))
    assert not replace(done, unfinished=True).better_than(replace(done, rank=(0.0, 2.0)))


@pytest.fixture(scope="module")
def by_limit() -> list[Any]:
    """The same command, whose time is over after 0, 1, 2 and all of its steps."""
    with pytest.MonkeyPatch.context() as patch:
        return [ended_after(steps, patch) for steps in (0, 1, 2, None)]


def ended_after(
    steps: int | None, patch: pytest.MonkeyPatch, late_s: float = 1e6, **more: Any
) -> Any:
    real, late, seen = time.monotonic, [0.0], [0]

    def progress(told: Progress) -> None:
        seen[0] += told.stage == "repair"
        # The first remedy opens with a report of its own.
        late[0] = late_s if steps is not None and seen[0] > steps else 0.0

    patch.setattr(time, "monotonic", lambda: real() + late[0])
    how = {**WHAT, "only": "ranges,least-squares,bias-correction", "cache": False, **more}
    return qdebug.repair(**how, time_limit=1e5, progress=progress)


def test_more_time_is_never_worse(by_limit: list[Any]) -> None:
    tried = [len(result.steps) for result in by_limit]
    assert tried[0] == 0 and tried == sorted(set(tried))
    scores = [result.proof.repaired.metric for result in by_limit]
    assert scores == sorted(scores) and scores[-1] > scores[0] + 0.1


def test_what_had_no_time_is_said(by_limit: list[Any]) -> None:
    none, *_, whole = by_limit
    assert none.untried == ("bias-correction", "ranges", "least-squares") and not whole.untried
    assert "UNCHANGED: no remedy was tried to its end." in none._repr_html_()


@pytest.mark.parametrize(("max_drop", "limited"), [(0.01, True), (0.05, False)])
def test_where_the_target_holds_the_time_for_pins_is_not_used(
    monkeypatch: pytest.MonkeyPatch, max_drop: float, limited: bool
) -> None:
    """The first half of the limit is over after one step; within 0.01 it holds, but not surely."""
    result = ended_after(1, monkeypatch, late_s=6e4, max_drop=max_drop, samples=200)
    assert result.holds and result.passed and not result.pinned
    assert result.untried == ("bias-correction", "ranges", "least-squares")
    says = "The target holds and no layer needs pinning, so that the repair ended before its"
    assert result.explanation.startswith(says) is limited and bool(result.explanation) is limited
    page = result._repr_html_()
    # One group of layers had least-squares; the other still waits.
    assert "The target holds; not tried: ranges, least-squares." in page


def test_a_target_that_holds_asks_for_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though no remedy was tried."""
    result = ended_after(0, monkeypatch, late_s=6e4, max_drop=0.26, samples=200)
    assert result.holds and result.passed and not result.steps
    assert "give more time" not in result.explanation
