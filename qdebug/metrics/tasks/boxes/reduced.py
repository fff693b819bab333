"""What a metric needs of a detector's outputs: the boxes that it finds, with their masks.

Raw outputs of one picture take megabytes: 33,600 float32 of prototypes for each plane of masks, or
84 values for each of 8400 places. What they give takes some ten kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qdebug.metrics.tasks.base import Outputs, Rows
from qdebug.metrics.tasks.boxes.detections import DECISION, MOST_BOXES, Candidates, Detections
from qdebug.types import Array

_BOXES, _SCORES, _CLASSES, _MASKS, _SIZE = (
    f"reduced {what}" for what in ("boxes", "scores", "classes", "masks", "size")
)


@dataclass(frozen=True)
class FoundBoxes:
    """What is left of Candidates, where it was reduced.

    Attributes:
        found: see Candidates.
        mask_size: height and width of the masks; None of a detector of boxes.
    """

    found: Detections
    mask_size: tuple[int, int] | None

    @cached_property
    def sure(self) -> Detections:
        """See Candidates: boxes of lower scores take none out, so that they can be left out
        later."""
        return self.found.above(DECISION)

    def take(self, rows: Rows) -> FoundBoxes:
        """Those of some samples."""
        return FoundBoxes(self.found.take(rows), self.mask_size)


def reduced(candidates: Candidates) -> dict[str, Array] | None:
    """All boxes that are found, as arrays [samples, …] of shapes that are the same for other
    samples. None where that takes hardly less: of networks that give each object once."""
    if candidates.distinct and candidates.masks is None:
        return None
    found = candidates.found
    samples, most = found.classes.shape
    empty = (0, MOST_BOXES - most)
    arrays = {
        _BOXES: np.pad(found.boxes, ((0, 0), empty, (0, 0))),
        _SCORES: np.pad(found.scores, ((0, 0), empty)),
        _CLASSES: np.pad(found.classes, ((0, 0), empty), constant_values=-1),
    }
    if candidates.masks is not None:
        # One text for each sample: its characters are '0' to 'o', see COCO's maskApi.
        counts = [b" ".join(mask["counts"] for mask in found.masks_of(k)) for k in range(samples)]
        arrays[_MASKS] = np.array(counts, np.bytes_)
        arrays[_SIZE] = np.tile(candidates.masks.size, (samples, 1))
    return arrays


def read_reduced(outputs: Outputs) -> FoundBoxes | None:
    """What `reduced` wrote; None of outputs as the network gives them."""
    if _BOXES not in outputs:
        return None
    boxes, scores, classes = (outputs[name] for name in (_BOXES, _SCORES, _CLASSES))
    if _MASKS not in outputs:
        return FoundBoxes(Detections(boxes, scores, classes), None)
    height, width = outputs[_SIZE][0].tolist() if len(boxes) else (0, 0)
    masks = np.empty(classes.shape, object)
    for row, counts in enumerate(outputs[_MASKS].tolist()):
        for place, one in enumerate(counts.split()):
            masks[row, place] = {"size": [height, width], "counts": one}
    return FoundBoxes(Detections(boxes, scores, classes, masks), (height, width))
