"""What the networks of `unseen_networks.py` are for: a score that is a ratio of sums over samples,
and a loss of each sample.

They share no code with the metrics of qdebug, which they judge. `outputs`, `labels` and `reference`
are arrays [samples, ...] by name; a loss is smooth, the lower the better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
OfSamples = Callable[[Arrays, Arrays, Arrays], Array]
STEEP = 20.0
"""Of the logistic functions that stand for a threshold, in scores from 0 to 1."""


@dataclass(frozen=True)
class Task:
    """What is scored, and how.

    Attributes:
        parts: of each sample the numerator and the denominator of the score, float64 [samples, 2].
        loss: float64 [samples].
    """

    parts: OfSamples
    loss: OfSamples


def score(parts: Array) -> float:
    """A ratio of sums over the samples."""
    above, below = parts.sum(axis=0)
    return float(above / below) if below else 0.0


def difference(a: Array, b: Array) -> tuple[float, float]:
    """By how much the score of `b` is higher, and the standard error of that (jackknife)."""

    def left_out(parts: Array) -> Array:
        rest = parts.sum(axis=0) - parts
        return np.asarray(rest[:, 0] / np.maximum(rest[:, 1], 1e-12))

    change = left_out(b) - left_out(a)
    spread, count = change - change.mean(), len(change)
    return score(b) - score(a), math.sqrt((count - 1) / count * float(spread @ spread))


def only(arrays: Arrays) -> Array:
    """The first output."""
    return next(iter(arrays.values()))


def sigmoid(x: Array) -> Array:
    """The logistic function of float64."""
    return 0.5 * (1 + np.tanh(np.asarray(x, np.float64) / 2))


def mean_of(right: Array) -> Array:
    """The parts of a mean of one value per sample."""
    return np.stack([right.astype(np.float64), np.ones(len(right))], axis=1)


# --- classes, with labels -----------------------------------------------------------------------


def classes_right(outputs: Arrays, labels: Arrays, _: Arrays) -> Array:
    """Top-1."""
    return mean_of(only(outputs).argmax(axis=-1) == labels["labels"].reshape(-1))


def class_margin(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
    """A logistic function of how far the label's logit is above the best other one, as wide as the
    spread of FP32's margins."""

    def margins(arrays: Arrays) -> Array:
        scores = only(arrays).astype(np.float64)
        if scores.min() >= 0 and np.allclose(scores.sum(axis=-1), 1, atol=1e-2):
            scores = np.log(np.maximum(scores, 1e-7))
        chosen = labels["labels"].reshape(-1, 1)
        own = np.take_along_axis(scores, chosen, axis=-1)
        np.put_along_axis(scores, chosen, -np.inf, axis=-1)
        return np.asarray(own[:, 0] - scores.max(axis=-1))

    return sigmoid(-margins(outputs) / max(float(margins(reference).std()), 1e-9))


CLASSIFIER = Task(classes_right, class_margin)


# --- maps and boxes, against what FP32 finds ----------------------------------------------------


def soft_f1_loss(chance: Array, reference: Array, threshold: float, near: Any = 1.0) -> Array:
    """Of each sample 1 - 2 Σ min(d, d_ref)·near / Σ (d + d_ref) with d = σ(k (s - τ)), over what
    either scores above 0.1."""
    now, before = (sigmoid(STEEP * (x - threshold)) for x in (chance, reference))
    matters = (chance > 0.1) | (reference > 0.1)
    common = (np.minimum(now, before) * near * matters).reshape(len(chance), -1).sum(axis=1)
    whole = ((now + before) * matters).reshape(len(chance), -1).sum(axis=1)
    return np.asarray(1 - (2 * common + 1e-3) / (whole + 1e-3))


def segmenter(threshold: float) -> Task:
    """A map of chances: intersection over union of what is above a threshold."""

    def parts(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        now, before = (only(x).reshape(len(only(x)), -1) > threshold for x in (outputs, reference))
        return np.stack([(now & before).sum(1), (now | before).sum(1)], axis=1).astype(np.float64)

    return Task(parts, lambda o, _, r: soft_f1_loss(only(o), only(r), threshold))


@dataclass(frozen=True)
class Candidates:
    """Boxes [samples, anchors, 4] (left, top, right, bottom) and scores [samples, anchors,
    classes]."""

    boxes: Array
    scores: Array


def overlaps(a: Array, b: Array) -> Array:
    """Intersection over union of boxes [..., 4], one by one or one with many."""
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    both = np.prod(np.maximum(high - low, 0), axis=-1)
    union = sum(np.prod(x[..., 2:] - x[..., :2], axis=-1) for x in (a, b)) - both
    return np.where(union > 0, both / np.where(union > 0, union, 1), 0.0)


def found(all_of: Candidates, sample: int, threshold: float) -> tuple[Array, Array]:
    """Boxes [N, 4] and classes [N] after suppression (IoU 0.5) within each class."""
    scores = all_of.scores[sample]
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    left = np.array([i for i in np.argsort(-best, kind="stable") if best[i] > threshold], int)
    boxes, kept = all_of.boxes[sample], []
    while left.size:
        first, left = left[0], left[1:]
        kept.append(int(first))
        same = classes[left] == classes[first]
        left = left[~same | (overlaps(boxes[first], boxes[left]) < 0.5)]
    return boxes[kept], classes[kept]


def matched(now: tuple[Array, Array], before: tuple[Array, Array]) -> tuple[float, float]:
    """Twice the hits (right class, IoU of half or more), and how many boxes both have."""
    hits, free = 0, np.ones(len(before[0]), bool)
    for box, label in zip(*now, strict=True):
        near = overlaps(box, before[0]) * free * (before[1] == label)
        if near.size and near.max() >= 0.5:
            free[near.argmax()] = False
            hits += 1
    return 2.0 * hits, float(len(now[0]) + len(before[0]))


def detector(decode: Callable[[Arrays], Candidates], threshold: float) -> Task:
    """F1 of detections."""

    def parts(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        now, before = decode(outputs), decode(reference)
        pairs = ((found(x, i, threshold) for x in (now, before)) for i in range(len(now.scores)))
        return np.array([matched(*pair) for pair in pairs])

    def loss(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        now, before = decode(outputs), decode(reference)
        near = sigmoid(STEEP * (overlaps(now.boxes, before.boxes) - 0.5))[..., None]
        return soft_f1_loss(now.scores, before.scores, threshold, near)

    return Task(parts, loss)


def corners(boxes: Array) -> Array:
    """Left, top, right, bottom of boxes [..., 4] given as centre and size."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def yolov8(outputs: Arrays) -> Candidates:
    """[N, 4+C, A], as Ultralytics exports them."""
    rows = np.swapaxes(only(outputs), 1, 2)
    return Candidates(corners(rows[..., :4]), rows[..., 4:])


def yolox(outputs: Arrays, size: int = 416, strides: tuple[int, ...] = (8, 16, 32)) -> Candidates:
    """[N, A, 5+C] as YOLOX exports it: centre and logarithm of the size in cells of `strides`,
    objectness, classes."""
    rows = only(outputs).astype(np.float64)
    grids, steps = [], []
    for stride in strides:
        count = size // stride
        grids.append(np.stack(np.meshgrid(np.arange(count), np.arange(count)), 2).reshape(-1, 2))
        steps.append(np.full((count * count, 1), stride))
    grid, step = np.concatenate(grids), np.concatenate(steps)
    centre, extent = (rows[..., :2] + grid) * step, np.exp(np.minimum(rows[..., 2:4], 20)) * step
    return Candidates(
        corners(np.concatenate([centre, extent], axis=-1)), rows[..., 4:5] * rows[..., 5:]
    )


def ssd(outputs: Arrays) -> Candidates:
    """`scores` [N, A, 1+C] with the background first, and `boxes`."""
    return Candidates(outputs["boxes"], outputs["scores"][..., 1:])


# --- embeddings and values ----------------------------------------------------------------------


def embedder(key: str) -> Task:
    """Vectors, of which the nearest by cosine should have the same label."""

    def likeness(vectors: Array) -> Array:
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        near = (unit @ unit.T).astype(np.float64)
        np.fill_diagonal(near, -np.inf)
        return near

    def parts(outputs: Arrays, labels: Arrays, _: Arrays) -> Array:
        near = likeness(only(outputs))
        return mean_of(labels[key][near.argmax(axis=1)] == labels[key])

    def margins(vectors: Array, labels: Arrays) -> Array:
        near, alike = likeness(vectors), labels[key][:, None] == labels[key]
        others = np.where(alike, -np.inf, near).max(1)
        return np.asarray(np.where(alike, near, -np.inf).max(1) - others)

    def loss(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
        before = margins(only(reference), labels)
        return sigmoid(-margins(only(outputs), labels) / before[np.isfinite(before)].std())

    return Task(parts, loss)


def _deviations(outputs: Arrays, reference: Arrays) -> tuple[Array, Array]:
    """Of each sample the mean absolute error, and that of guessing FP32's mean."""
    now, before = (np.asarray(only(x), np.float64) for x in (outputs, reference))
    guess = np.abs(before - before.mean(axis=0)).mean(axis=1)
    return np.abs(now - before).mean(axis=1), guess


def value_parts(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
    """One less the mean absolute error over that of guessing the mean: 1 as FP32, 0 as a guess."""
    error, guess = _deviations(outputs, reference)
    return np.stack([guess - error, guess], axis=1)


REGRESSION = Task(value_parts, lambda o, _, r: _deviations(o, r)[0])
"""Values of which FP32's are the truth, as opinions on speech are."""
