"""COCO's AP: the mean average precision of boxes over IoU 0.50 to 0.95."""

from __future__ import annotations

from qdebug.metrics.tasks.base import BoxCounts, Float64
from qdebug.metrics.tasks.boxes.agreement import box_counts
from qdebug.metrics.tasks.boxes.average_precision import mean_average_precision
from qdebug.metrics.tasks.boxes.detections import Candidates, Detections
from qdebug.metrics.tasks.boxes.losses import soft_f1_losses


def score(found: Candidates, truth: Detections) -> float:
    """See mean_average_precision."""
    return mean_average_precision(found.found, truth)


def counts(found: Candidates, truth: Detections) -> BoxCounts:
    """See box_counts."""
    return box_counts(found.sure, truth)


def loss(found: Candidates, _: Detections, reference: Candidates) -> Float64:
    """See soft_f1_losses."""
    return soft_f1_losses(found, reference)
