"""What a metric needs of a detector's outputs, or of masks, in place of them."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdebug.errors import MetricError
from qdebug.metrics.accumulate import REFERENCE, ExecutedBatch
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.samples import Batch
from qdebug.network.samples.samples import Extras
from qdebug.run.outputs import NeededOutputs, joined
from qdebug.run.reducers import Attempted

pytest.importorskip("faster_coco_eval")
SAMPLES, SIDE, PLACES, CLASSES = 5, 32, 16, 3


def detector(seed: int) -> dict[str, Any]:
    """Outputs of YOLOv8-seg with 8 prototypes: the same but for some noise."""
    random, noise = np.random.default_rng(0), np.random.default_rng(seed)
    centres = random.uniform(6, 26, (SAMPLES, 2, PLACES))
    sides = random.uniform(4, 14, (SAMPLES, 2, PLACES))
    scores = random.beta(0.3, 1.5, (SAMPLES, CLASSES, PLACES))
    scores = np.clip(scores + noise.normal(0, 0.05, scores.shape), 0, 1)
    coefficients = random.normal(size=(SAMPLES, 8, PLACES))
    planes = random.normal(size=(SAMPLES, 8, 8, 8)) + noise.normal(0, 0.1, (SAMPLES, 8, 8, 8))
    rows = np.concatenate([centres, sides, scores, coefficients], axis=1)
    return {"rows": rows.astype(np.float32), "planes": planes.astype(np.float32)}


def boxes_alone(seed: int) -> dict[str, Any]:
    return {"rows": detector(seed)["rows"][:, : 4 + CLASSES]}


def segmentation(seed: int) -> dict[str, Any]:
    random, noise = np.random.default_rng(0), np.random.default_rng(seed)
    scores = random.normal(size=(SAMPLES, 6, 9, 11)) + noise.normal(0, 0.2, (SAMPLES, 6, 9, 11))
    return {"scores": scores.astype(np.float32)}


def labels_of(kind: str) -> dict[str, Any]:
    random = np.random.default_rng(1)
    if kind == "miou":
        return {"masks": random.choice([0, 1, 2, 5, 255], (SAMPLES, 9, 11)).astype(np.uint8)}
    low = random.uniform(2, 14, (SAMPLES, 3, 2))
    planes = random.integers(0, 2, (SAMPLES, 3, SIDE, SIDE)).astype(np.uint8)
    return {
        "boxes": np.concatenate([low, low + 12], axis=2),
        "classes": random.integers(0, CLASSES, (SAMPLES, 3)),
        "instance_masks": planes,
    }


def metric_of(name: str, outputs: dict[str, Any]) -> TaskMetric:
    facts = ModelFacts({"x": (None, 3, SIDE, SIDE)}, {k: v.shape for k, v in outputs.items()})
    decode = {1: "yolov8", 2: "yolov8-seg"}[len(outputs)] if "rows" in outputs else None
    return load_metric(name, decode, facts)


CASES = (
    ("map", detector),
    ("box-f1-to-reference", detector),
    ("map50-to-reference", boxes_alone),
    ("miou", segmentation),
    ("miou-to-reference", segmentation),
)


@pytest.mark.parametrize(("name", "maker"), CASES)
def test_a_metric_says_the_same_of_what_it_needs(name: str, maker: Any) -> None:
    """All that is said, digit for digit, of outputs that were reduced in batches of two, in a
    fraction of the bytes."""
    reference, outputs = maker(1), maker(2)
    metric, labels = metric_of(name, outputs), labels_of(name.partition("-")[0])
    assert metric.reduced is not None
    kept: list[dict[Batch, Any]] = [{}, {}]
    for number, start in enumerate(range(0, SAMPLES, 2)):
        rows = slice(start, start + 2)
        own, before, truth = (
            {k: v[rows] for k, v in each.items()} for each in (outputs, reference, labels)
        )
        batch = Batch(number, start, len(next(iter(own.values()))))
        for by_batch, arrays in zip(kept, (before, own), strict=True):
            by_batch[batch] = metric.reduced(arrays, truth, before)
    reduced_reference, reduced = map(joined, kept)
    sets = [np.array([0, 2, 3]), np.array([1, 4])]
    raw = metric.judged(outputs, labels, reference, sets)
    less = metric.judged(reduced, labels, reduced_reference, sets)
    for one in fields(raw):
        np.testing.assert_array_equal(getattr(less, one.name), getattr(raw, one.name), one.name)
    # Searches keep FP32's outputs as they are, and need no losses.
    assert metric(reduced, labels, reference) == raw.score
    without = metric.reduced(outputs, labels, {})
    assert without is not None and metric(without, labels, reference) == raw.score
    sizes = [sum(a.nbytes for a in arrays.values()) for arrays in (without, outputs)]
    assert maker is not segmentation or sizes[0] * 20 < sizes[1]


def test_a_metric_that_does_not_take_outputs_fails_when_it_is_asked() -> None:
    """And not the pass, of which more is shown."""
    outputs = segmentation(1)
    unlabelled: Any = SimpleNamespace(extras=Extras({}, 0))
    needed = NeededOutputs(REFERENCE, ("scores",), metric_of("miou", outputs), unlabelled)
    found = Attempted(needed).reduce(ExecutedBatch(Batch(0, 0, SAMPLES), {}, {REFERENCE: outputs}))
    assert isinstance(found, MetricError) and "labels" in found.message
