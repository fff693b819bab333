"""Masks of segmentation: a class for every pixel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Floats, Outputs, Rows, first_output, labels_of
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.shares import are_shares
from qdebug.types import Array
from qdebug.wording import option

IGNORED = 255
"""The class of pixels that are not judged, as in PASCAL VOC and Cityscapes."""
_CLASSES = "reduced masks"
"""Of the array that `reduced_masks` writes."""


@dataclass(frozen=True)
class Masks:
    """Masks of some samples.

    Attributes:
        classes: whole numbers [samples, height, width].
        scores: [samples, classes, height, width]; None of labels and of outputs that are classes.
    """

    classes: Array
    scores: Floats | None = None

    def take(self, rows: Rows) -> Masks:
        """Those of some samples."""
        scores = None if self.scores is None else self.scores[rows]
        return Masks(self.classes[rows], scores)


def masks_of(
    outputs: Outputs, reference: Outputs | None = None, facts: ModelFacts | None = None
) -> Masks:
    """The masks in the first output: the class of the highest score of [samples, classes, height,
    width]; of one plane 1 where it is above 0, or above ½ where its values are shares; whole
    numbers are classes. See are_shares for the arguments.

    Raises:
        MetricError: it is neither.
    """
    if _CLASSES in outputs:
        return Masks(outputs[_CLASSES])
    array = first_output(outputs)
    if array.dtype.kind in "iub":
        flat = array[:, 0] if array.ndim == 4 and array.shape[1] == 1 else array
        if flat.ndim == 3:
            return Masks(flat.astype(np.int64))
    elif array.ndim == 4 and array.shape[1] > 1:
        scores = np.where(np.isnan(array), -np.inf, array)
        return Masks(np.argmax(scores, axis=1).astype(np.int64), array)
    elif array.ndim in (3, 4):
        plane = array.reshape(len(array), *array.shape[-2:])
        middle = 0.5 if are_shares(outputs, reference or {}, facts) else 0.0
        both = np.stack([middle - plane, plane - middle], axis=1)
        return Masks((plane > middle).astype(np.int64), both)
    raise MetricError(
        f"{option('metric', 'miou')} needs a mask as the first output, [samples, classes, height, "
        f"width] or a class for each pixel, and it is {list(array.shape)}",
        code="QD-METRIC-OUTPUT",
    )


def reduced_masks(masks: Masks) -> dict[str, Array] | None:
    """The classes alone, which are enough for the score; None where they take as much as the scores
    of a single plane."""
    if masks.scores is None or masks.scores.shape[1] <= 2:
        return None
    smallest = np.min_scalar_type(masks.scores.shape[1] - 1)
    return {_CLASSES: masks.classes.astype(smallest)}


def labelled_masks(labels: Outputs, like: Masks) -> Masks:
    """The masks of the labels.

    Raises:
        MetricError: there are none, or of another size.
    """
    array: Array = labels["masks"] if "masks" in labels else labels_of(labels)
    if array.ndim == 4 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != like.classes.shape:
        raise MetricError(
            f"the labels are masks of shape {list(array.shape)}, and the output gives "
            f"{list(like.classes.shape)}",
            "Give a class for each pixel of the output, 255 for those that are not judged.",
            code="QD-METRIC-LABELS",
        )
    return Masks(array.astype(np.int64))
