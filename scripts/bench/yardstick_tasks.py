"""Tasks with a score that is a ratio of sums over samples, and candidate losses for each.

`outputs`, `labels` and `reference` are arrays [samples, ...] by name. A loss is smooth, one value
per sample, the lower the better, and looks at the same outputs as the score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import zoo_metrics

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Loss = Callable[[Arrays, Arrays, Arrays], Array]
Parts = Callable[[Arrays, Arrays, Arrays], Array]


@dataclass(frozen=True)
class Task:
    """What is scored, and how.

    Attributes:
        kind: in a word, for the table.
        parts: of each sample the numerator and the denominator of the score, float64 [samples, 2].
        losses: candidate losses by name, float64 [samples].
    """

    kind: str
    parts: Parts
    losses: Mapping[str, Loss] = field(default_factory=dict)


def mean_of(right: Array) -> Array:
    """The parts of a mean of one value per sample."""
    return np.stack([right.astype(np.float64), np.ones(len(right))], axis=1)


def only(arrays: Arrays) -> Array:
    """The first output."""
    return next(iter(arrays.values()))


def sigmoid(x: Array) -> Array:
    """The logistic function of float64."""
    return 0.5 * (1 + np.tanh(np.asarray(x, np.float64) / 2))


def as_logits(scores: Array) -> Array:
    """Scores along the last axis as logits: the logarithm of what are probabilities."""
    scores = scores.astype(np.float64)
    if scores.min() >= 0 and np.allclose(scores.sum(axis=-1), 1, atol=1e-2):
        return np.log(np.maximum(scores, 1e-7))
    return scores


def log_softmax(logits: Array) -> Array:
    """Along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def margins(logits: Array, chosen: Array) -> Array:
    """How far the logit of the class `chosen` [...] is above the best other one, [...]."""
    own = np.take_along_axis(logits, chosen[..., None], axis=-1)
    others = np.array(logits)
    np.put_along_axis(others, chosen[..., None], -np.inf, axis=-1)
    return own[..., 0] - others.max(axis=-1)


def by_sample(values: Array) -> Array:
    """The mean over everything but the samples."""
    return values.reshape(len(values), -1).mean(axis=1)


def flat(task: Task) -> Task:
    """The same of outputs [samples, 1, 1, D], as [samples, D]."""

    def flattened(arrays: Arrays) -> Arrays:
        return {name: array.reshape(len(array), -1) for name, array in arrays.items()}

    def of(function: Loss) -> Loss:
        return lambda o, labels, r: function(flattened(o), labels, flattened(r))

    return Task(task.kind, of(task.parts), {name: of(one) for name, one in task.losses.items()})


# --- classes: of images, columns of a line, or pixels ------------------------------------------


def divergence(logits: Array, reference: Array) -> Array:
    """Kullback-Leibler divergence from the reference, [samples, ...]."""
    now, before = log_softmax(logits), log_softmax(reference)
    return (np.exp(before) * (before - now)).sum(axis=-1)


def wrong_softly(logits: Array, reference: Array, chosen: Array, share: float) -> Array:
    """How wrong the choice of `chosen` is: a logistic function of the margin, whose width is a
    `share` of the spread of the reference's margins, [samples, ...]."""
    width = share * max(float(margins(reference, chosen).std()), 1e-9)
    return sigmoid(-margins(logits, chosen) / width)


def margin_loss(logits: Callable[[Arrays], Array], share: float) -> Loss:
    """How wrong the reference's choices are in the mean: see wrong_softly."""

    def loss(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        now, before = logits(outputs), logits(reference)
        return by_sample(wrong_softly(now, before, before.argmax(axis=-1), share))

    return loss


def class_losses(labelled: bool) -> dict[str, Loss]:
    """Those of a classifier; the class is the label's, or the reference's."""

    def chosen(labels: Arrays, reference: Arrays) -> Array:
        return labels["labels"].reshape(-1) if labelled else only(reference).argmax(axis=-1)

    def softly(share: float) -> Loss:
        def loss(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
            now, before = as_logits(only(outputs)), as_logits(only(reference))
            return wrong_softly(now, before, chosen(labels, reference), share)

        return loss

    def changed(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
        now, before = as_logits(only(outputs)), as_logits(only(reference))
        which = chosen(labels, reference)
        return np.abs(
            wrong_softly(now, before, which, 0.25) - wrong_softly(before, before, which, 0.25)
        )

    def entropy(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
        now = log_softmax(as_logits(only(outputs)))
        return -np.take_along_axis(now, chosen(labels, reference)[:, None], axis=-1)[:, 0]

    def kl(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
        return divergence(as_logits(only(outputs)), as_logits(only(reference)))

    return {
        "KL": kl,
        "cross-entropy": entropy,
        "margin": softly(1.0),
        "margin, width 1/4": softly(0.25),
        "margin, width 1/16": softly(1 / 16),
        "change of margin": changed,
    }


def class_parts(outputs: Arrays, labels: Arrays, _: Arrays) -> Array:
    """Top-1."""
    return mean_of(only(outputs).argmax(axis=-1) == labels["labels"].reshape(-1))


CLASSIFIER = Task("classifier", class_parts, class_losses(True))


# --- lines of text ------------------------------------------------------------------------------


def read(scores: Array, blank: int = 0) -> list[tuple[int, ...]]:
    """The best class of each column [lines, columns, classes], repeats merged, without blanks."""
    found = []
    for columns in scores.argmax(axis=2):
        starts = np.diff(columns, prepend=-1) != 0
        found.append(tuple(columns[starts & (columns != blank)]))
    return found


def true_lines(labels: Arrays) -> list[tuple[int, ...]]:
    """Of rows of classes, ended by -1."""
    return [tuple(int(x) for x in row if x >= 0) for row in labels["targets"]]


def line_parts(outputs: Arrays, labels: Arrays, _: Arrays) -> Array:
    """Lines without a fault."""
    pairs = zip(read(only(outputs)), true_lines(labels), strict=True)
    return mean_of(np.array([a == b for a, b in pairs]))


def ctc(outputs: Arrays, texts: list[tuple[int, ...]]) -> Array:
    """-log of the probability of a text (connectionist temporal classification, Graves et al.
    2006): [lines]."""
    found = []
    chances = log_softmax(as_logits(only(outputs)))
    for line, text in zip(chances, texts, strict=True):
        states = [0]
        for symbol in text:
            states += [symbol, 0]
        ways = np.full(len(states), -np.inf)
        ways[:2] = line[0, states[:2]]
        jump = np.array(
            [k > 1 and s != 0 and s != states[k - 2] for k, s in enumerate(states)], bool
        )
        for column in line[1:]:
            one = np.concatenate([[-np.inf], ways[:-1]])
            two = np.where(
                jump, np.concatenate([[-np.inf, -np.inf], ways[:-2]])[: len(ways)], -np.inf
            )
            ways = np.logaddexp(np.logaddexp(ways, one), two) + column[states]
        found.append(-np.logaddexp.reduce(ways[-2:]))
    return np.array(found)


def line_losses() -> dict[str, Loss]:
    """Those of a recognizer, against what the reference reads."""

    def frames(outputs: Arrays, reference: Arrays, share: float) -> Array:
        now, before = as_logits(only(outputs)), as_logits(only(reference))
        return wrong_softly(now, before, before.argmax(axis=-1), share)

    def mean(share: float) -> Loss:
        return lambda o, _, r: by_sample(frames(o, r, share))

    def any_wrong(share: float) -> Loss:
        return lambda o, _, r: 1 - np.prod(1 - frames(o, r, share), axis=1)

    def worst(share: float) -> Loss:
        return lambda o, _, r: frames(o, r, share).max(axis=1)

    return {
        "KL": lambda o, _, r: by_sample(divergence(as_logits(only(o)), as_logits(only(r)))),
        "CTC of FP32's text": lambda o, _, r: ctc(o, read(only(r))),
        "CTC of the true text": lambda o, truth, _: ctc(o, true_lines(truth)),
        "margin": mean(1.0),
        "margin, width 1/4": mean(0.25),
        "margin, any frame, 1/4": any_wrong(0.25),
        "margin, worst frame, 1/4": worst(0.25),
        "margin, worst frame, 1/16": worst(1 / 16),
    }


READER = Task("recognizer", line_parts, line_losses())


# --- pixels ---------------------------------------------------------------------------------------


def pixel_logits(arrays: Arrays) -> Array:
    """[N, C, H, W] as logits [N, H, W, C]."""
    return as_logits(np.moveaxis(only(arrays), 1, -1))


def pixel_parts(outputs: Arrays, labels: Arrays, _: Arrays) -> Array:
    """The share of the pixels of digits with the right class."""
    ink = labels["targets"] > 0
    right = (only(outputs).argmax(axis=1) == labels["targets"]) & ink
    return np.stack([right.sum(axis=(1, 2)), ink.sum(axis=(1, 2))], axis=1).astype(np.float64)


def pixel_losses() -> dict[str, Loss]:
    """Those of a segmentation into classes, against the reference's."""

    return {
        "KL": lambda o, _, r: by_sample(divergence(pixel_logits(o), pixel_logits(r))),
        "margin": margin_loss(pixel_logits, 1.0),
        "margin, width 1/4": margin_loss(pixel_logits, 0.25),
        "margin, width 1/16": margin_loss(pixel_logits, 1 / 16),
    }


SEGMENTER = Task("segmentation", pixel_parts, pixel_losses())


def overlap_parts(threshold: float) -> Parts:
    """Intersection and union of the pixels above a threshold with the reference's: [samples, 2]."""

    def parts(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        now, before = (only(x).reshape(len(only(x)), -1) > threshold for x in (outputs, reference))
        return np.stack([(now & before).sum(1), (now | before).sum(1)], axis=1).astype(np.float64)

    return parts


def binary_entropy(chance: Array, reference: Array) -> Array:
    """Cross-entropy of chances against the reference's, less the reference's own."""

    def entropy(p: Array) -> Array:
        p = np.clip(p.astype(np.float64), 1e-6, 1 - 1e-6)
        return -(reference * np.log(p) + (1 - reference) * np.log(1 - p))

    return entropy(chance) - entropy(reference)


def decision(chance: Array, reference: Array, threshold: float, steepness: float = 20.0) -> Array:
    """Of each sample Σ |σ(k(s-τ)) - σ(k(s_ref-τ))| over what has either score above 0.1."""
    now, before = (sigmoid(steepness * (x - threshold)) for x in (chance, reference))
    matters = (chance > 0.1) | (reference > 0.1)
    return (np.abs(now - before) * matters).reshape(len(chance), -1).sum(axis=1)


def agreement(
    chance: Array, reference: Array, threshold: float, both: Array | float = 1.0, k: float = 20.0
) -> Array:
    """Of each sample 1 - 2 Σ min(d, d_ref) / Σ (d + d_ref), with the soft decisions d of
    `decision`: the soft form of 1 - F1. `both` weighs what the two have in common."""
    now, before = (sigmoid(k * (x - threshold)) for x in (chance, reference))
    matters = (chance > 0.1) | (reference > 0.1)
    common = (np.minimum(now, before) * both * matters).reshape(len(chance), -1).sum(axis=1)
    whole = ((now + before) * matters).reshape(len(chance), -1).sum(axis=1)
    return 1 - (2 * common + 1e-3) / (whole + 1e-3)


def map_segmenter(threshold: float) -> Task:
    """A map of chances, against the reference's above a threshold."""

    def softly(steepness: float) -> Loss:
        return lambda o, _, r: decision(only(o), only(r), threshold, steepness)

    return Task(
        "segmentation",
        overlap_parts(threshold),
        {
            "cross-entropy": lambda o, _, r: by_sample(binary_entropy(only(o), only(r))),
            "soft decision": softly(20.0),
            "soft decision, k 5": softly(5.0),
            "soft decision, k 80": softly(80.0),
            "soft F1": lambda o, _, r: agreement(only(o), only(r), threshold),
        },
    )


# --- boxes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """Boxes [samples, anchors, 4] (left, top, right, bottom) and scores [samples, anchors,
    classes]."""

    boxes: Array
    scores: Array


Decode = Callable[[Arrays], Candidates]


def kept(found: Candidates, sample: int, threshold: float) -> tuple[Array, Array]:
    """Boxes [N, 4] and classes [N] after suppression (IoU 0.5) by class."""
    scores = found.scores[sample]
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    order = [i for i in np.argsort(-best, kind="stable") if best[i] > threshold]
    boxes = found.boxes[sample]
    # Boxes of other classes are moved away, so that they do not suppress each other.
    apart = boxes + 1e4 * classes[:, None]
    chosen = zoo_metrics._suppressed(apart, order)
    return boxes[chosen], classes[chosen]


def matched(
    now: tuple[Array, Array], before: tuple[Array, Array], least: float = 0.5
) -> tuple[float, float]:
    """Twice the hits, and how many boxes both have: the parts of F1."""
    hits, free = 0, np.ones(len(before[0]), bool)
    for box, label in zip(*now, strict=True):
        near = zoo_metrics.overlaps(box, before[0]) * free * (before[1] == label)
        if near.size and near.max() >= least:
            free[near.argmax()] = False
            hits += 1
    return 2.0 * hits, float(len(now[0]) + len(before[0]))


def mean_overlap(a: Array, b: Array) -> Array:
    """IoU of boxes [..., 4] one by one."""
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    both = np.prod(np.maximum(high - low, 0), axis=-1)
    union = sum(np.prod(x[..., 2:] - x[..., :2], axis=-1) for x in (a, b)) - both
    return np.where(union > 0, both / np.where(union > 0, union, 1), 0.0)


def detector(decode: Decode, threshold: float, truth: Callable[[Arrays, int], Any] | None) -> Task:
    """F1 of detections: right class, IoU of half or more, against the truth or the reference."""

    def parts(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
        now, before = decode(outputs), decode(reference)
        return np.array(
            [
                matched(
                    kept(now, i, threshold),
                    truth(labels, i) if truth else kept(before, i, threshold),
                )
                for i in range(len(now.scores))
            ]
        )

    def softly(steepness: float) -> Loss:
        def loss(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
            now, before = decode(outputs).scores, decode(reference).scores
            return decision(now, before, threshold, steepness)

        return loss

    def with_boxes(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
        now, before = decode(outputs), decode(reference)
        weight = sigmoid(20.0 * (before.scores.max(axis=2) - threshold))
        moved = (weight * (1 - mean_overlap(now.boxes, before.boxes))).sum(axis=1)
        return decision(now.scores, before.scores, threshold) + moved

    def soft_f1(boxes: bool, k: float = 20.0) -> Loss:
        def loss(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
            now, before = decode(outputs), decode(reference)
            near: Array | float = 1.0
            if boxes:
                near = sigmoid(20.0 * (mean_overlap(now.boxes, before.boxes) - 0.5))[..., None]
            return agreement(now.scores, before.scores, threshold, near, k)

        return loss

    def entropy(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        return by_sample(binary_entropy(decode(outputs).scores, decode(reference).scores))

    return Task(
        "detector",
        parts,
        {
            "cross-entropy": entropy,
            "soft decision": softly(20.0),
            "soft decision, k 5": softly(5.0),
            "soft decision, k 80": softly(80.0),
            "soft decision and IoU": with_boxes,
            "soft F1": soft_f1(boxes=False),
            "soft F1, k 5": soft_f1(boxes=False, k=5.0),
            "soft F1 of boxes": soft_f1(boxes=True),
        },
    )


def corners(boxes: Array) -> Array:
    """Left, top, right, bottom of boxes [..., 4] given as centre and size."""
    return np.concatenate(
        [boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1
    )


def yolov8(outputs: Arrays) -> Candidates:
    """[N, 4+C, A], as Ultralytics exports them."""
    rows = np.swapaxes(only(outputs), 1, 2)
    return Candidates(corners(rows[..., :4]), rows[..., 4:])


def yolox(outputs: Arrays) -> Candidates:
    """[N, A, 5+C]: centre, size, objectness, classes."""
    rows = only(outputs)
    return Candidates(corners(rows[..., :4]), rows[..., 4:5] * rows[..., 5:])


def ssd(outputs: Arrays) -> Candidates:
    """`scores` [N, A, 1+C] with the background first, and `boxes`."""
    return Candidates(outputs["boxes"], outputs["scores"][..., 1:])


def in_cells(labels: Arrays, sample: int) -> tuple[Array, Array]:
    """The boxes of the digits in a scene of `digit_zoo`."""
    rows = labels["targets"][sample]
    rows = rows[rows[:, 0] > 0]
    return corners(rows[:, 2:]), rows[:, 1].astype(int)


# --- embeddings and keypoints -----------------------------------------------------------------


def neighbour_parts(key: str) -> Parts:
    """Whether the nearest other vector has the same label."""

    def parts(outputs: Arrays, labels: Arrays, _: Arrays) -> Array:
        near = likeness(only(outputs))
        return mean_of(labels[key][near.argmax(axis=1)] == labels[key])

    return parts


def likeness(vectors: Array) -> Array:
    """The cosines of vectors [N, D] with each other, -inf with themselves."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    near = (unit @ unit.T).astype(np.float64)
    np.fill_diagonal(near, -np.inf)
    return near


def embedder(key: str) -> Task:
    """Vectors, of which the nearest should have the same label."""

    def cosine(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        a, b = only(outputs).astype(np.float64), only(reference).astype(np.float64)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return 1 - (a * b).sum(axis=1) / np.maximum(lengths, 1e-12)

    def neighbour_margin(near: Array, labels: Arrays) -> Array:
        alike = labels[key][:, None] == labels[key]
        return np.where(alike, near, -np.inf).max(1) - np.where(alike, -np.inf, near).max(1)

    def margin(share: float) -> Loss:
        def loss(outputs: Arrays, labels: Arrays, reference: Arrays) -> Array:
            now, before = (
                neighbour_margin(likeness(only(x)), labels) for x in (outputs, reference)
            )
            return sigmoid(-now / (share * before[np.isfinite(before)].std()))

        return loss

    def distances(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        now, before = (likeness(only(x)) for x in (outputs, reference))
        np.fill_diagonal(now, 0), np.fill_diagonal(before, 0)
        return np.square(now - before).mean(axis=1)

    return Task(
        "embedding",
        neighbour_parts(key),
        {
            "cosine of each": cosine,
            "distances": distances,
            "neighbour margin": margin(1.0),
            "neighbour margin, 1/4": margin(0.25),
        },
    )


def point_parts(outputs: Arrays, labels: Arrays, _: Arrays) -> Array:
    """The share of points within two pixels."""
    far = np.linalg.norm(peaks(only(outputs)) - labels["targets"], axis=2)
    return np.stack([(far <= 2).sum(1), np.full(len(far), far.shape[1])], axis=1).astype(np.float64)


def peaks(maps: Array) -> Array:
    """Row and column of the highest value of heatmaps [N, K, H, W]: [N, K, 2]."""
    best = maps.reshape(*maps.shape[:2], -1).argmax(2)
    return np.stack(np.divmod(best, maps.shape[3]), axis=2)


def point_losses() -> dict[str, Loss]:
    """Those of heatmaps, against the reference's."""

    def flat(arrays: Arrays) -> Array:
        maps = only(arrays).astype(np.float64)
        return maps.reshape(*maps.shape[:2], -1)

    def distance(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        return by_sample(np.linalg.norm(peaks(only(outputs)) - peaks(only(reference)), axis=2))

    def outside(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
        maps = only(outputs)
        places = np.stack(np.meshgrid(*map(np.arange, maps.shape[2:]), indexing="ij"), -1)
        centre = peaks(only(reference))[:, :, None, None]
        far = np.linalg.norm(places - centre, axis=-1).reshape(*maps.shape[:2], -1) > 2
        return by_sample((np.exp(log_softmax(flat(outputs))) * far).sum(axis=2))

    return {
        "KL": lambda o, _, r: by_sample(divergence(flat(o), flat(r))),
        "margin": margin_loss(flat, 1.0),
        "mass beyond 2 pixels": outside,
        "distance of peaks": distance,
    }


POINTER = Task("keypoints", point_parts, point_losses())
