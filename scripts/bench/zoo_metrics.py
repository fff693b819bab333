"""What the networks of the benchmarks are for, as metrics: `--metric zoo_metrics.py:NAME`.

`outputs`, `labels` and `reference` are arrays [samples, ...] by name. Each returns 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

BY_NETWORK = {
    "detector": "found",
    "unet": "pixels_right",
    "crnn": "lines_read",
    "yolox": "detections",
    "embedder": "same_label",
    "keypoints": "points_found",
    "ultraface_slim": "faces",
    "minilm_l6": "same_topic",
}
"""The metric of each network that is no classifier; that of a classifier is top-1."""


def top1(outputs: Arrays, labels: Arrays) -> float:
    """The share of labels that are right."""
    return float((_only(outputs).argmax(axis=1) == labels["labels"]).mean())


def found(outputs: Arrays, labels: Arrays) -> float:
    """The share of images with the right label and a box that overlaps (IoU) by half or more.

    Targets are the label and the box (left, top, right, bottom)."""
    targets = labels["targets"]
    right = outputs["scores"].argmax(axis=1) == targets[:, 0]
    pairs = zip(outputs["boxes"], targets[:, 1:], strict=True)
    return float((right & [overlap(box, true) >= 0.5 for box, true in pairs]).mean())


def pixels_right(outputs: Arrays, labels: Arrays) -> float:
    """The share of the digits' pixels with the right class; targets are 0 for the background."""
    ink = labels["targets"] > 0
    return float((_only(outputs).argmax(axis=1) == labels["targets"])[ink].mean())


def lines_read(outputs: Arrays, labels: Arrays) -> float:
    """The share of lines read without a fault: the best class of each column, repeats merged,
    blanks (class 0) dropped. Targets are the digits of each line, plus one."""
    right = 0
    for columns, true in zip(_only(outputs).argmax(axis=2), labels["targets"], strict=True):
        starts = np.diff(columns, prepend=-1) != 0
        right += [*columns[starts & (columns > 0)]] == [*true]
    return right / len(labels["targets"])


def detections(outputs: Arrays, labels: Arrays, least: float = 0.3) -> float:
    """F1 of detections: right label, and a box that overlaps (IoU) by half or more.

    Outputs are rows of centre, size, objectness, ten classes; targets are one row for each cell of
    the grid: 1 where it holds a digit, its label, its centre and size."""
    hits = said = true = 0
    for rows, targets in zip(_only(outputs), labels["targets"], strict=True):
        scores = rows[:, 4] * rows[:, 5:].max(axis=1)
        order = [i for i in np.argsort(-scores, kind="stable") if scores[i] > least]
        boxes = corners(rows[:, :4])
        kept = _suppressed(boxes, order)
        objects = targets[targets[:, 0] > 0]
        free = [*zip(objects[:, 1], corners(objects[:, 2:]), strict=True)]
        said, true = said + len(kept), true + len(free)
        for i in kept:
            match = (rows[i, 5:].argmax() == label for label, _ in free)
            near = [k for k, m in enumerate(match) if m and overlap(boxes[i], free[k][1]) >= 0.5]
            hits += bool(near)
            free = [x for k, x in enumerate(free) if k not in near[:1]]
    return 2 * hits / max(1, said + true)


def faces(outputs: Arrays, reference: Arrays) -> float:
    """F1 of the faces (scores above 0.7, IoU of half or more) against those of the reference."""
    hits = said = true = 0
    for i in range(len(outputs["scores"])):
        now, before = (
            _suppressed_boxes(x["boxes"][i], x["scores"][i, :, 1], 0.7)
            for x in (outputs, reference)
        )
        said, true, free = said + len(now), true + len(before), before
        for box in now:
            near = np.flatnonzero(overlaps(box, free) >= 0.5)
            hits += bool(near.size)
            free = np.delete(free, near[:1], axis=0)
    return 2 * hits / max(1, said + true)


def same_topic(outputs: Arrays, labels: Arrays) -> float:
    """The share of sentences whose nearest neighbour by cosine has the same topic."""
    vectors = _only(outputs) / np.linalg.norm(_only(outputs), axis=1, keepdims=True)
    near = vectors @ vectors.T
    np.fill_diagonal(near, -np.inf)
    return float((labels["topic"][near.argmax(axis=1)] == labels["topic"]).mean())


def same_label(outputs: Arrays, labels: Arrays) -> float:
    """The share of vectors, all of length one, whose nearest neighbour has the same label."""
    near = _only(outputs) @ _only(outputs).T
    np.fill_diagonal(near, -np.inf)
    return float((labels["labels"][near.argmax(axis=1)] == labels["labels"]).mean())


def points_found(outputs: Arrays, labels: Arrays) -> float:
    """The share of points within two pixels; the highest value of each heatmap is where it is."""
    maps = _only(outputs)
    found = np.stack(np.divmod(maps.reshape(*maps.shape[:2], -1).argmax(2), maps.shape[3]), axis=2)
    far = np.linalg.norm(found - labels["targets"], axis=2)
    return float((far <= 2).mean())


def corners(boxes: Array) -> Array:
    """Left, top, right, bottom of boxes [N, 4] given as centre and size."""
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)


def overlap(a: Array, b: Array) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    return float(overlaps(a, b[None])[0])


def overlaps(a: Array, others: Array) -> Array:
    """Intersection over union of a box [4] with others [N, 4]: [N]."""
    low, high = np.maximum(a[:2], others[:, :2]), np.minimum(a[2:], others[:, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=1)
    union = np.prod(a[2:] - a[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - both
    return np.where(union > 0, both / np.where(union > 0, union, 1), 0.0)


def _suppressed(boxes: Array, order: list[int]) -> list[int]:
    kept: list[int] = []
    left = np.array(order, dtype=int)
    while left.size:
        first, left = left[0], left[1:]
        kept.append(int(first))
        left = left[overlaps(boxes[first], boxes[left]) < 0.5]
    return kept


def _suppressed_boxes(boxes: Array, scores: Array, least: float) -> Array:
    order = [i for i in np.argsort(-scores, kind="stable") if scores[i] > least]
    return boxes[_suppressed(boxes, order)]


def _only(arrays: Arrays) -> Array:
    return next(iter(arrays.values()))
