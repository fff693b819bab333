"""Masks of single objects: as detectors give them, and in COCO's run-length encoding, in which they
are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.errors import MetricError, required
from qdebug.metrics.tasks.base import Float64, Floats, Int64, Rows
from qdebug.types import Array

Rle = dict[str, Any]
"""A mask as COCO's tools encode it: `size` (height and width) and `counts`, compressed bytes."""

_PLANES_AT_ONCE = 64
"""Planes of logits that are compared at once: of 160 × 160 values they take 6.5 MB."""
_FAR = 1e30
"""A logit that is certain: it may be averaged with others, which an infinite one may not."""


@dataclass(frozen=True)
class InstanceMasks:
    """What a detector says of the masks of the places it looks at: logits, which belong to the
    object where they are above 0.

    Attributes:
        planes: [samples, planes, height, width]: prototypes; or, without coefficients, the logits
            of each place.
        coefficients: [samples, places, planes] by which the prototypes are added up to logits.
        size: height and width of the network's input, in which masks are compared.
        in_boxes: a mask ends where its box does, whose corners are pixels of the input.
    """

    planes: Floats
    coefficients: Floats | None
    size: tuple[int, int]
    in_boxes: bool

    def take(self, rows: Rows) -> InstanceMasks:
        """Those of some samples."""
        own = None if self.coefficients is None else self.coefficients[rows]
        return replace(self, planes=self.planes[rows], coefficients=own)

    def encoded(self, sample: int, places: Int64, boxes: Float64) -> list[Rle]:
        """The masks of some places of a sample, whose boxes are [places, 4]: the logits are made
        as large as the input (bilinear, as Ultralytics' process_mask does with `upsample`), and
        what is above 0 is the object."""
        height, width = self.size
        masks = []
        for place, corners in zip(places, boxes, strict=True):
            x1, y1, x2, y2 = corners if self.in_boxes else (0, 0, width, height)
            rows, columns = _pixels(y1, y2, height), _pixels(x1, x2, width)
            logits = self._logits(sample, np.array([place]))[0]
            canvas = np.zeros((height, width), np.uint8, order="F")
            enlarged = _enlarged(_enlarged(logits, rows, height).T, columns, width).T
            canvas[rows[:, np.newaxis], columns] = enlarged > 0
            masks.append(_library().encode(canvas))
        return masks

    def overlaps(
        self, other: InstanceMasks, sample: int, places: Int64, boxes: Float64, others: Float64
    ) -> Float64:
        """How far the masks of some places are those of the same places in `other`: Σ min / Σ max
        of their probabilities, float64 [places], 0 to 1; of masks that are certain that is their
        intersection over union. The boxes [places, 4] are those of the two."""
        found = np.zeros(len(places))
        for start in range(0, len(places), _PLANES_AT_ONCE):
            part = slice(start, start + _PLANES_AT_ONCE)
            own = self._probabilities(sample, places[part], boxes[part])
            before = other._probabilities(sample, places[part], others[part])
            shared, union = (
                pick(own, before).sum(axis=(1, 2), dtype=np.float64)
                for pick in (np.minimum, np.maximum)
            )
            found[part] = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        return found

    def _logits(self, sample: int, places: Int64) -> Floats:
        """[places, height, width]; NaN is outside of the object."""
        if self.coefficients is None:
            logits = self.planes[sample, places]
        else:
            planes = self.planes[sample]
            flat = self.coefficients[sample, places] @ planes.reshape(len(planes), -1)
            logits = flat.reshape(-1, *planes.shape[1:])
        found: Floats = np.nan_to_num(logits, nan=-_FAR, posinf=_FAR, neginf=-_FAR)
        return found

    def _probabilities(self, sample: int, places: Int64, boxes: Float64) -> Floats:
        from scipy.special import expit

        chances: Floats = expit(self._logits(sample, places))
        if not self.in_boxes:
            return chances
        height, width = chances.shape[1:]
        left, top, right, bottom = (
            (boxes / np.tile(self.size[::-1], 2) * (width, height, width, height)).T
        )[..., np.newaxis]
        columns, rows = np.arange(width), np.arange(height)
        within = (rows >= top) & (rows < bottom)
        across = (columns >= left) & (columns < right)
        within_boxes: Floats = chances * within[:, :, np.newaxis] * across[:, np.newaxis, :]
        return within_boxes


def masks_of_labels(array: Array, size: tuple[int, int]) -> npt.NDArray[np.object_]:
    """The labels' `instance_masks`, encoded, [samples, most]; None where there is no mask.

    Args:
        array: [samples, most], each as readers of annotations write it, b"640x640:…"; or planes
            [samples, most, height, width], where other values than 0 are the object.
        size: height and width of the network's input.

    Raises:
        MetricError: they are neither, or of another size.
    """
    found = np.empty(array.shape[:2], object)
    height, width = size
    if array.ndim == 4 and array.shape[2:] == size:
        for place in np.ndindex(*found.shape):
            plane = np.asfortranarray(array[place] != 0, np.uint8)
            found[place] = _library().encode(plane) if plane.any() else None
        return found
    written: set[Any] = {f"{array.dtype} {list(array.shape)}"}
    if array.ndim == 2 and array.dtype.kind == "S":
        cells = [cell.partition(b":") for cell in array.flat]
        found.ravel()[:] = [
            {"size": [*size], "counts": end} if end else None for _, _, end in cells
        ]
        written = {start.decode() for start, _, end in cells if end} - {f"{height}x{width}"}
    if written:
        raise MetricError(
            f"the labels 'instance_masks' are {written.pop()}",
            f"Give planes [samples, most, {height}, {width}], as large as the input.",
            code="QD-METRIC-LABELS",
        )
    return found


def mask_ious(masks: Sequence[Rle], others: Sequence[Rle]) -> Float64:
    """Intersection over union of masks, float64 [masks, others]."""
    if not masks or not others:
        return np.zeros((len(masks), len(others)))
    crowds = [0] * len(others)
    return np.asarray(_library().iou(list(masks), list(others), crowds), np.float64)


def _library() -> ModuleType:
    return required(
        "faster_coco_eval.core.mask", "a mask", code="QD-METRIC-EXTRA", error=MetricError
    )


def _pixels(low: float, high: float, length: int) -> Int64:
    """Those of an axis from `low` on and before `high`."""
    low, high = (np.clip(np.nan_to_num(side), 0, length) for side in (low, high))
    return np.arange(np.ceil(low), np.ceil(high), dtype=np.int64)


def _enlarged(plane: Floats, rows: Int64, length: int) -> Floats:
    """Some rows of a plane [height, width] as it is with `length` rows: bilinear, the middles of
    pixels in the same place (PyTorch's interpolate with align_corners=False)."""
    height = len(plane)
    at = np.maximum((rows + 0.5) * (height / length) - 0.5, 0)
    above = np.minimum(at.astype(np.int64), height - 1)
    share = (at - above)[:, np.newaxis].astype(plane.dtype)
    below = np.minimum(above + 1, height - 1)
    found: Floats = plane[above] * (1 - share) + plane[below] * share
    return found
