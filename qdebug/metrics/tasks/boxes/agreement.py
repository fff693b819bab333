"""How many boxes are those of the truth."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.metrics.tasks.boxes.detections import DECISION, Detections, matched

OVERLAP = 0.5
"""IoU from which on two boxes of a class are the same: PASCAL VOC's and map50's."""


@dataclass(frozen=True)
class BoxCounts:
    """Boxes next to the true ones.

    Attributes:
        kept: found and true.
        lost: true, and not found.
        new: found, and not true.
    """

    kept: int
    lost: int
    new: int

    @property
    def f1(self) -> float:
        """2·kept / (2·kept + lost + new); 1 where there is no box at all."""
        total = 2 * self.kept + self.lost + self.new
        return 2 * self.kept / total if total else 1.0


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
