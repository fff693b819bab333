"""What compare says of the samples before a figure of theirs can be trusted: FP32 at chance, ranges
of differently scaled inputs, too few samples, the same samples twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdebug
from qdebug.analyse.gate import guessing_note
from qdebug.display.bisect import view as bisected
from qdebug.display.blocks import Line
from qdebug.display.calibrate import view as calibrate_screen
from qdebug.display.repair import view as repair_screen
from qdebug.display.summary import sentence
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import same_samples
from qdebug.run.outputs import MetricEvaluator
from qdebug.types import TensorSpec

DATA = Path(__file__).parents[2] / "calib_data"
MODEL = str(DATA / "digits_cnn.onnx")
HELD_OUT = dict(np.load(DATA / "digits_holdout.npz"))
CHEAPEST = "bias-correction"
"""A remedy that takes one run: what is tested is said before any is tried."""
CALIB = dict(np.load(DATA / "digits_calib.npz"))


def compared(inputs: Any, calib: Any = CALIB, **more: Any) -> qdebug.CompareResult:
    return qdebug.compare(
        MODEL, inputs=inputs, calib_data=calib, **{"metric": "top1", "effect": "none", **more}
    )


def some(count: int, factor: float = 1.0) -> dict[str, Any]:
    return {
        "input": HELD_OUT["input"][:count] * np.float32(factor),
        "labels": HELD_OUT["labels"][:count],
    }


def notes(result: qdebug.CompareResult, word: str) -> int:
    return sum(word in note for note in result.notes)


def test_fp32_at_chance_is_said_first() -> None:
    data = some(100)
    data["labels"] = np.random.default_rng(1).permutation(data["labels"])
    result = compared(data, effect="fast")
    assert result.metric is not None and result.metric.chance == 0.1
    assert result.metric.reference_is_chance(100) and notes(result, "guessing") == 1
    assert sentence(result).startswith("FP32 itself is no better than guessing")
    right = compared(some(100), effect="fast")
    assert right.metric is not None and right.metric.reference_is_right(100)
    assert notes(right, "guessing") == 0 and "guessing" not in sentence(right)


def test_a_metric_that_is_chance_ranks_no_calibration() -> None:
    data = some(100)
    data["labels"] = np.random.default_rng(1).permutation(data["labels"])
    result = qdebug.calibrate(MODEL, calib_data=CALIB, holdout=data, metric="top1")
    assert result.metric is not None and result.metric.is_chance
    assert result.best_by.startswith("output SQNR, since FP32 is no better than guessing")
    assert result.best == max(result.methods, key=lambda m: result.methods[m].trial.sqnr_db)
    kinds = [type(block).__name__ for block in calibrate_screen(result)]
    said = [isinstance(b, Line) and "FP32 is no better" in b.text for b in calibrate_screen(result)]
    assert said.index(True) < kinds.index("Table")


def test_one_class_for_all_samples_is_said() -> None:
    same = {"input": np.repeat(HELD_OUT["input"][:1], 16, 0)}
    result = compared(same, metric="agreement")
    assert result.metric is not None and result.metric.reference_classes == 1
    assert result.metric.chance is None and notes(result, "same class") == 1
    assert notes(compared(some(16), metric="agreement"), "same class") == 0
    # What searches and repairs begin with.
    for chosen, count, said in ((0, 16, True), (0, 4, False), (np.arange(16) % 2, 16, False)):
        scores = np.zeros((count, 3))
        scores[np.arange(count), chosen] = 1
        task = MetricEvaluator(load_metric("agreement"), {}, {"y": scores})
        assert ("same class" in guessing_note(task, 1.0, count)) is said


@pytest.mark.parametrize(
    ("inputs", "calib", "metric", "odd"),
    [
        (some(100), {"input": CALIB["input"] * 255}, "top1", "so the calibration samples"),
        (some(100, 255), CALIB, "top1", "so these seem to be"),
        (some(100), {"input": CALIB["input"] * 255}, None, "only a metric"),
    ],
    ids=["calibration", "compared", "unknown"],
)
def test_which_samples_are_scaled_wrongly_is_told_where_fp32_proves_it(
    inputs: Any, calib: Any, metric: str | None, odd: str
) -> None:
    result = compared(inputs, calib, metric=metric, effect="fast")
    (cause, *_) = result.layers[0].causes
    assert cause.label == "stale-calibration"
    assert odd in cause.evidence and "255 times" in cause.evidence
    said = sentence(result)  # no layer is blamed before that is mended
    assert "stale-calibration" in said and "in FP32 (" not in said
    assert said.count("255 times") == 1


@pytest.mark.parametrize(
    ("metric", "fail_on", "told"),
    [
        ("top1", ["metric>=0.98"], 50),
        ("top1", ["metric>=0.5"], 0),
        ("top1", [], -1),
    ],
)
def test_a_change_that_so_few_samples_cannot_show_is_told(
    metric: Any, fail_on: list[str], told: int
) -> None:
    result = compared(some(7), metric=metric, fail_on=fail_on)
    assert result.metric is not None
    assert notes(result, "steps of 0.1429") == (1 if told else 0)
    assert told < 1 or notes(result, f"It takes {told} or more") == 1
    assert notes(compared(some(200), metric=metric, fail_on=fail_on), "steps of") == 0


def test_a_condition_that_fp32_does_not_meet_is_told() -> None:
    data = some(100)
    data["labels"] = np.where(np.arange(100) < 20, 0, data["labels"])
    assert notes(compared(data, fail_on=["metric>=0.95"]), "FP32 itself does not meet") == 1


def test_one_sample_is_told() -> None:
    assert notes(compared(some(1)), "one sample was compared") == 1
    assert notes(compared(some(2)), "one sample was compared") == 0


def test_the_same_samples_twice_are_told() -> None:
    assert notes(compared(some(64), {"input": HELD_OUT["input"][:64]}), "flatters") == 1
    assert notes(compared(some(64), some(32)), "flatters") == 1  # the first of them
    assert notes(compared(some(64)), "flatters") == 0


def test_samples_are_the_same_by_what_they_hold(tmp_path: Path) -> None:
    specs = [TensorSpec("x", (4, 3), np.dtype(np.float32))]
    values = np.arange(96, dtype=np.float32).reshape(32, 3)

    def opened(array: Any, size: int = 4) -> Any:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npz"
        np.savez(path, x=array)
        return open_samples(str(path), specs)

    changed = values.copy()
    changed[0] += 1
    one = opened(values)
    assert not one.batch_is_free
    assert same_samples(one, opened(values)) and same_samples(one, opened(values[:8]))
    assert not same_samples(one, opened(changed))


@pytest.mark.parametrize("right", [False, True])
def test_a_search_and_a_repair_say_that_fp32_guesses(right: bool) -> None:
    """A target that follows FP32's score is met by anything where FP32 itself is wrong."""
    inputs = some(60)
    if not right:
        inputs["labels"] = np.random.default_rng(0).permutation(inputs["labels"])
    settings: dict[str, Any] = {
        "calib_data": {"input": CALIB["input"][:20]},
        "inputs": inputs,
        "metric": "top1",
        "max_drop": 0.01,
        "cache": False,
    }
    found = qdebug.bisect(MODEL, **settings)
    repaired = qdebug.repair(MODEL, only=[CHEAPEST], pin=False, **settings)
    for result in (found, repaired):
        assert notes(result, "It takes about") == 1
        assert any("no better than guessing" in note for note in result.notes) is not right
    screens = (
        [str(block) for block in shown] for shown in (bisected(found), repair_screen(repaired))
    )
    for shown in screens:
        assert ("no better than guessing" in shown[1]) is not right
        assert sum("no better than guessing" in block for block in shown) == (not right)


def searched(**given: Any) -> Any:
    return qdebug.bisect(MODEL, max_drop=0.9, metric="top1", cache=False, **given)


def repaired(inputs: Any, calib_data: Any) -> Any:
    how: dict[str, Any] = {"metric": "top1", "only": [CHEAPEST], "pin": False, "cache": False}
    return qdebug.repair(MODEL, inputs=inputs, calib_data=calib_data, **how)


def calibrated(inputs: Any, calib_data: Any) -> Any:
    how: dict[str, Any] = {"metric": "top1", "method": ["minmax"], "cache": False}
    return qdebug.calibrate(MODEL, calib_data=calib_data, holdout=inputs, **how)


def plainly(inputs: Any, calib_data: Any) -> Any:
    return compared(inputs, calib_data)


COMMANDS = [plainly, calibrated, searched, repaired]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_looks_at_the_samples_first(command: Any) -> None:
    data, calib = some(40), {"input": CALIB["input"][:20]}
    off = data | {"labels": data["labels"] + 1}
    both = {"input": np.concatenate([calib["input"], data["input"][:20][::-1]])}
    wrong = command(inputs=off, calib_data=both)
    (note,) = [n for n in wrong.notes if n.startswith("Look at the samples first")]
    assert "no class of the network" in note and "off by one" in note
    assert sum("20 of 40 samples" in n or "also among those" in n for n in wrong.notes) == 1
    right = command(inputs=data, calib_data=calib)
    assert notes(right, "Look at the samples") == 0


def test_values_on_which_fp32_is_right_are_named() -> None:
    note = next(n for n in compared(some(64, 255)).notes if "Look at the samples" in n)
    assert "FP32 is at chance level" in note and "with values / 255" in note
