"""COCO's AP50: the mean average precision of boxes at IoU 0.50."""

from __future__ import annotations

from qdebug.metrics.tasks.boxes.average_precision import at_half_overlap
from qdebug.metrics.tasks.boxes.detections import Candidates, Detections
from qdebug.metrics.tasks.map import counts, loss

__all__ = ["counts", "loss", "score"]


def score(found: Candidates, truth: Detections) -> float:
    """See at_half_overlap."""
    return at_half_overlap(found.found, truth)
