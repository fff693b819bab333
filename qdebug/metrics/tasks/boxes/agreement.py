"""How many boxes are those of the truth."""

from __future__ import annotations

from qdebug.metrics.tasks.base import BoxCounts
from qdebug.metrics.tasks.boxes.detections import DECISION, Detections, matched

OVERLAP = 0.5
"""IoU from which on two boxes of a class are the same: PASCAL VOC's and map50's."""


def box_counts(found: Detections, truth: Detections) -> BoxCounts:
    """Boxes that count as found, next to those that count as true."""
    found, truth = found.above(DECISION), truth.above(DECISION)
    kept = lost = new = 0
    for sample in range(len(found.classes)):
        boxes, _, classes = found.of(sample)
        others, _, other_classes = truth.of(sample)
        same = len(matched(boxes, classes, others, other_classes, OVERLAP))
        kept, lost, new = kept + same, lost + len(others) - same, new + len(boxes) - same
    return BoxCounts(kept, lost, new)
