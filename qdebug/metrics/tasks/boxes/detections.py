"""Boxes in memory, as detectors give them, and the masks of their objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from qdebug.metrics.tasks.base import Float64, Floats, Int64, Rows
from qdebug.metrics.tasks.boxes.instance_masks import InstanceMasks, Rle, mask_ious

Objects = npt.NDArray[np.object_]

DECISION = 0.25
"""The score from which on a box counts as found: Ultralytics' `conf` of predict."""
_LOWEST = 0.001
"""The score below which a box is none at all, for curves of precision and recall: Ultralytics'
`conf` of val."""
_OVERLAP = 0.7
"""Boxes of one class that overlap by more are one: Ultralytics' `iou`."""
MOST_BOXES = 300
"""Boxes of a sample: Ultralytics' `max_det`."""
_MOST_SORTED = 4096
"""(Box, class) pairs of a sample that are looked at, the highest scores: overlap takes time by
their number. Ultralytics takes 30,000."""
_BLOCK = 256
"""Boxes whose overlaps are computed at once: with each by itself NumPy takes six times as long."""
THRESHOLDS = f"score ≥ {DECISION:g}, class by class, IoU {_OVERLAP:g}"
"""For people."""


@dataclass(frozen=True)
class Candidates:
    """What a detector says of every place it looks at.

    Attributes:
        boxes: [samples, places, 4], xyxy in pixels of the network's input; where its size is not
            known, in units of it, which leaves overlaps as they are.
        scores: [samples, places, classes], 0 to 1.
        distinct: the network gives each object once, and in an order of its own: overlapping boxes
            stay, and a place has no meaning.
        masks: of the objects at the places; None of a detector of boxes.
    """

    boxes: Floats
    scores: Floats
    distinct: bool = False
    masks: InstanceMasks | None = None

    @property
    def mask_size(self) -> tuple[int, int] | None:
        """Height and width of the masks; None of a detector of boxes."""
        return None if self.masks is None else self.masks.size

    @cached_property
    def found(self) -> Detections:
        """All boxes, for curves of precision and recall; see detected."""
        return detected(self, _LOWEST)

    @cached_property
    def sure(self) -> Detections:
        """Those that count as found. Boxes of lower scores take none of these out."""
        return detected(self, DECISION)

    def take(self, rows: Rows) -> Candidates:
        """Those of some samples."""
        masks = None if self.masks is None else self.masks.take(rows)
        taken = Candidates(self.boxes[rows], self.scores[rows], self.distinct, masks)
        for name in ("found", "sure"):  # which take time
            if name in self.__dict__:
                taken.__dict__[name] = self.__dict__[name].take(rows)
        return taken


@dataclass(frozen=True)
class FoundBoxes:
    """What is left of Candidates where they were reduced.

    Attributes:
        found: see Candidates.
        mask_size: height and width of the masks; None of a detector of boxes.
        losses: of each sample, next to the reference's; None where they are not known.
    """

    found: Detections
    mask_size: tuple[int, int] | None
    losses: Float64 | None

    @cached_property
    def sure(self) -> Detections:
        """See Candidates: boxes of lower scores take none out, so that they can be left out
        later."""
        return self.found.above(DECISION)

    def take(self, rows: Rows) -> FoundBoxes:
        """Those of some samples."""
        losses = None if self.losses is None else self.losses[rows]
        return FoundBoxes(self.found.take(rows), self.mask_size, losses)


@dataclass(frozen=True)
class Detections:
    """Boxes of some samples, the highest scores first.

    Attributes:
        boxes: float64 [samples, most, 4], xyxy.
        scores: float64 [samples, most]; 1 of labels.
        classes: int64 [samples, most]; -1 for no box.
        masks: Rle [samples, most], None for no box; None where there are boxes alone.
    """

    boxes: Float64
    scores: Float64
    classes: Int64
    masks: Objects | None = None

    def of(self, sample: int) -> tuple[Float64, Float64, Int64]:
        """Boxes [n, 4], scores [n] and classes [n] of one sample."""
        there = self.classes[sample] >= 0
        return self.boxes[sample, there], self.scores[sample, there], self.classes[sample, there]

    def masks_of(self, sample: int) -> list[Rle]:
        """The masks [n] of one sample, where there are any."""
        assert self.masks is not None
        masks: list[Rle] = self.masks[sample, self.classes[sample] >= 0].tolist()
        return masks

    def take(self, rows: Rows) -> Detections:
        """Those of some samples."""
        masks = None if self.masks is None else self.masks[rows]
        return Detections(self.boxes[rows], self.scores[rows], self.classes[rows], masks)

    def above(self, score: float) -> Detections:
        """Those with at least this score."""
        classes = np.where(self.scores >= score, self.classes, -1)
        return Detections(self.boxes, self.scores, classes, self.masks)


def detected(candidates: Candidates, lowest: float) -> Detections:
    """The boxes that a detector finds: every (place, class) with at least the score `lowest`,
    without those that overlap one of a higher score and the same class too far. NaN is no score."""
    found = [
        _sample(boxes, scores, lowest, candidates.distinct)
        for boxes, scores in zip(candidates.boxes, candidates.scores, strict=True)
    ]
    most = max((len(classes) for _, _, classes, _ in found), default=0)
    count = len(found)
    boxes, scores = np.zeros((count, most, 4)), np.zeros((count, most))
    classes = np.full((count, most), -1, np.int64)
    masks = None if candidates.masks is None else np.empty((count, most), object)
    for row, (own, score, number, places) in enumerate(found):
        boxes[row, : len(own)], scores[row, : len(own)] = own, score
        classes[row, : len(own)] = number
        if candidates.masks is not None and masks is not None:
            masks[row, : len(own)] = candidates.masks.encoded(row, places, own)
    return Detections(boxes, scores, classes, masks)


def _sample(
    boxes: Floats, scores: Floats, lowest: float, distinct: bool
) -> tuple[Float64, Float64, Int64, Int64]:
    """The boxes, scores, classes and places of one sample."""
    places, classes = np.nonzero(scores >= lowest)
    values = scores[places, classes]
    order = np.argsort(-values, kind="stable")[:_MOST_SORTED]
    places, classes, values = places[order], classes[order], values[order]
    own = boxes[places].astype(np.float64)
    kept = np.arange(len(order))[:MOST_BOXES]
    if not distinct:
        kept = suppressed(own, classes, _OVERLAP)
    return own[kept], values[kept].astype(np.float64), classes[kept], places[kept]


def suppressed(boxes: Float64, classes: Int64, overlap: float) -> Int64:
    """Which of some boxes stay, the highest scores first, where each takes out those of its class
    that overlap it by more than `overlap` (non-maximum suppression, greedy).

    Args:
        boxes: [n, 4], in falling order of their scores.
    """
    left = np.arange(len(boxes))
    kept: list[int] = []
    while left.size and len(kept) < MOST_BOXES:
        block, left = left[:_BLOCK], left[_BLOCK:]
        close = _close(boxes, classes, block, block, overlap)
        stays = np.ones(len(block), bool)
        for number in range(len(block)):
            if stays[number]:
                stays[number + 1 :] &= ~close[number, number + 1 :]
        kept += block[stays].tolist()
        left = left[~_close(boxes, classes, block[stays], left, overlap).any(axis=0)]
    return np.array(kept[:MOST_BOXES], np.int64)


def _close(
    boxes: Float64, classes: Int64, some: Int64, others: Int64, overlap: float
) -> npt.NDArray[np.bool_]:
    """Whether two boxes are of one class and overlap by more than `overlap`, [some, others]."""
    same = classes[some][:, np.newaxis] == classes[others]
    return np.asarray(same & (ious(boxes[some], boxes[others]) > overlap), np.bool_)


def ious(boxes: Float64, others: Float64) -> Float64:
    """Intersection over union of boxes [n, 4] and [m, 4], float64 [n, m]; 0 where both are
    empty."""
    shared = np.ones((len(boxes), len(others)))
    for axis in (0, 1):  # planes of their own: an axis of two at the end takes four times as long
        low = np.maximum(boxes[:, np.newaxis, axis], others[:, axis])
        side = np.minimum(boxes[:, np.newaxis, 2 + axis], others[:, 2 + axis]) - low
        shared *= np.maximum(side, 0, out=side)
    area = _areas(boxes)[:, np.newaxis] + _areas(others) - shared
    return np.divide(shared, area, out=np.zeros_like(shared), where=area > 0)


def ious_of_pairs(boxes: Float64, others: Float64) -> Float64:
    """Intersection over union of boxes [n, 4] one by one, float64 [n]; 0 where both are empty."""
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    area = _areas(boxes) + _areas(others) - shared
    return np.where(area > 0, shared / np.where(area > 0, area, 1), 0.0)


def _areas(boxes: Float64) -> Float64:
    sides = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None)
    return np.asarray(sides[:, 0] * sides[:, 1], np.float64)


def matched(
    found: Detections, truth: Detections, sample: int, overlap: float
) -> list[tuple[int, int]]:
    """Which objects of a sample are the same, as numbers among those of each side: each in turn
    takes the free one of its class among the `truth` that it overlaps most, by at least `overlap`.
    Masks are compared where both sides have them, else boxes."""
    boxes, _, classes = found.of(sample)
    others, _, other_classes = truth.of(sample)
    if found.masks is None or truth.masks is None:
        overlaps = ious(boxes, others)
    else:
        overlaps = mask_ious(found.masks_of(sample), truth.masks_of(sample))
    overlaps = np.where(classes[:, np.newaxis] == other_classes, overlaps, -1.0)
    pairs = []
    for number, row in enumerate(overlaps):
        best = int(np.argmax(row)) if row.size else -1
        if best >= 0 and row[best] >= overlap:
            pairs.append((number, best))
            overlaps[:, best] = -1.0
    return pairs
