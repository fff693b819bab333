"""F1 of boxes: those that count as found next to the true ones."""

from __future__ import annotations

from qdebug.metrics.tasks.boxes.detections import Candidates, Detections
from qdebug.metrics.tasks.map import counts, loss

__all__ = ["counts", "loss", "score"]


def score(found: Candidates, truth: Detections) -> float:
    """See BoxCounts.f1."""
    return counts(found, truth).f1
