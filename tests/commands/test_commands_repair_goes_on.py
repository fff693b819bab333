"""A target that holds on the selection samples alone does not end a repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import qdebug

DATA = Path(__file__).parents[2] / "calib_data"


def right_where_it_counts(reference: Any, outputs: Any, labels: Any) -> float:
    """The share of samples of FP32's class; every one that does not count is right."""
    (wanted,), (given,) = reference.values(), outputs.values()
    same = wanted.argmax(axis=-1) == given.argmax(axis=-1)
    return float((same | (labels["counts"] == 0)).mean())


def test_remedies_go_on_where_held_out_samples_lose() -> None:
    """Every other sample is a selection sample: those all hold, and half of the others do not."""
    with np.load(DATA / "digits_holdout.npz") as file:
        samples = {name: file[name] for name in file.files if name != "label"}
    count = len(next(iter(samples.values())))
    samples["counts"] = np.arange(count) % 2
    result = qdebug.repair(
        DATA / "digits_cnn.onnx",
        calib_data=DATA / "digits_calib.npz",
        inputs=samples,
        weights="per-tensor",
        metric=right_where_it_counts,
        only="channel-scales,least-squares",
        max_drop=0.02,
        cache=False,
    )
    assert result.baseline.metric == 1.0 and result.proof.start.metric < 0.9
    # And end once they hold there, too.
    assert [step.remedy for step in result.steps] == ["channel-scales"]
    assert result.passed and result.untried == ("least-squares",)
    assert any("more remedies were tried" in note for note in result.notes)
