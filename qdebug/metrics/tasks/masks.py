"""Masks of segmentation: a class for every pixel, and mean intersection over union."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import (
    LOSSES,
    Float64,
    Floats,
    Outputs,
    Reading,
    Rows,
    first_output,
    labels_of,
)
from qdebug.metrics.tasks.classes import margin_loss
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.shares import are_shares
from qdebug.types import Array
from qdebug.wording import option

IGNORED = 255
"""The class of pixels that are not judged, as in PASCAL VOC and Cityscapes."""
_CLASSES = "reduced masks"
"""Of the array that stands for outputs; see Reading.reduced."""


@dataclass(frozen=True)
class Masks:
    """Masks of some samples.

    Attributes:
        classes: whole numbers [samples, height, width].
        scores: [samples, classes, height, width]; None of labels and of outputs that are classes.
        losses: of each sample, where the scores are gone.
    """

    classes: Array
    scores: Floats | None = None
    losses: Float64 | None = None

    def take(self, rows: Rows) -> Masks:
        """Those of some samples."""
        scores = None if self.scores is None else self.scores[rows]
        losses = None if self.losses is None else self.losses[rows]
        return Masks(self.classes[rows], scores, losses)


class MaskReading(Reading):
    """The masks in the first output, and those of the labels."""

    def found(self, outputs: Outputs, reference: Outputs) -> Masks:
        """See Reading."""
        return masks_of(outputs, reference, self.facts)

    def labelled(self, labels: Outputs, found: Masks) -> Masks:
        """See Reading."""
        array: Array = labels["masks"] if "masks" in labels else labels_of(labels)
        if array.ndim == 4 and array.shape[1] == 1:
            array = array[:, 0]
        if array.shape != found.classes.shape:
            raise MetricError(
                f"the labels are masks of shape {list(array.shape)}, and the output gives "
                f"{list(found.classes.shape)}",
                "Give a class for each pixel of the output, 255 for those that are not judged.",
                code="QD-METRIC-LABELS",
            )
        return Masks(array.astype(np.int64))

    def reduced(self, found: Masks) -> dict[str, Array] | None:
        """The classes alone; None where they take as much as the scores of a single plane."""
        if found.scores is None or found.scores.shape[1] <= 2:
            return None
        return {_CLASSES: found.classes.astype(np.min_scalar_type(found.scores.shape[1] - 1))}

    def check_labels(self, labels: Outputs) -> None:
        """See Reading."""
        if "masks" not in labels:
            labels_of(labels)


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
        return Masks(outputs[_CLASSES], losses=outputs.get(LOSSES))
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


def miou(found: Masks, truth: Masks, _: Masks) -> float:
    """Mean intersection over union: of each class that is found or true for any pixel, over all
    pixels, averaged over the classes."""
    most = int(max(found.classes.max(initial=0), truth.classes.max(initial=0))) + 1
    pairs = np.zeros((most, most), np.int64)
    for one, other in zip(found.classes, truth.classes, strict=True):  # wide numbers take room
        judged = other != IGNORED
        both = other[judged].astype(np.int64) * most + one[judged]
        pairs += np.bincount(both, minlength=most * most).reshape(most, most)
    shared, union = np.diag(pairs), pairs.sum(axis=0) + pairs.sum(axis=1) - np.diag(pairs)
    return float(np.mean(shared[union > 0] / union[union > 0])) if union.any() else 1.0


def miou_loss(found: Masks, truth: Masks, reference: Masks) -> Float64:
    """The mean over the judged pixels of what margin_loss gives for each; where the output is
    classes, the share of them that is wrong."""
    if found.losses is not None:
        return found.losses
    losses = []
    for sample, classes in enumerate(truth.classes):
        judged = classes != IGNORED
        values = np.asarray(found.classes[sample] != classes, np.float64)[judged]
        if found.scores is not None and reference.scores is not None and judged.any():
            own, before = (m[sample][:, judged].T for m in (found.scores, reference.scores))
            values = margin_loss(own, classes[judged], before)
        losses.append(float(values.mean()) if judged.any() else 0.0)
    return np.array(losses, np.float64)
