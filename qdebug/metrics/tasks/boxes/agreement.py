"""How many boxes are those of the truth."""

from __future__ import annotations

from qdebug.metrics.tasks.base import BoxCounts
from qdebug.metrics.tasks.boxes.detections import DECISION, Detections, matched

OVERLAP = 0.5
"""IoU from which on two boxes, or masks, of a class are the same: PASCAL VOC's and map50's."""


def box_counts(found: Detections, truth: Detections) -> BoxCounts:
    """Boxes that count as found, next to those that count as true."""
    found, truth = found.above(DECISION), truth.above(DECISION)
    there, true = (int((side.classes >= 0).sum()) for side in (found, truth))
    each = range(len(found.classes))
    kept = sum(len(matched(found, truth, sample, OVERLAP)) for sample in each)
    return BoxCounts(kept, true - kept, there - kept)
