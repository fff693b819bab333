"""What metrics of boxes read: candidates in the outputs, and objects in the labels.

The labels of a set of samples are two arrays of the data: `boxes` [samples, most, 4], xyxy in
pixels of the network's input (after letterbox or resize), and `classes` [samples, most], whole
numbers, -1 where a sample has no more boxes; where there are masks, `instance_masks` too, see
instance_masks.masks_of_labels.

Raw outputs of one picture take megabytes: 33,600 float32 of prototypes for each plane of masks, or
84 values for each of 8400 places. What a metric needs of them, the boxes that are found, takes some
ten kilobytes: the arrays called "reduced …".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import LOSSES, Outputs, Reading, arrays_there
from qdebug.metrics.tasks.boxes.decoders import candidates_in, fitting_decoder, undecided
from qdebug.metrics.tasks.boxes.detections import (
    MOST_BOXES,
    THRESHOLDS,
    Candidates,
    Detections,
    FoundBoxes,
)
from qdebug.metrics.tasks.boxes.instance_masks import InstanceMasks, masks_of_labels
from qdebug.metrics.tasks.decode import decoder_named, users_decoder
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.registry import WITH_MASKS
from qdebug.types import Array
from qdebug.wording import counted, option

_BOXES, _SCORES, _CLASSES, _MASKS, _SIZE = (
    f"reduced {what}" for what in ("boxes", "scores", "classes", "masks", "size")
)


class BoxReading(Reading):
    """Boxes and their masks, by a decoder or by a function of the user's."""

    def __init__(self, name: str, facts: ModelFacts | None, decode: str | None) -> None:
        """See Reading."""
        super().__init__(name, facts, None)
        self._function = users_decoder(decode)
        if self._function is not None:
            self.decoder, read_as = str(decode), f"{decode} gives them"
        else:
            named = decoder_named(decode, "boxes")
            self.decoder = read_as = named or (self._fitting(facts) if facts else "")
        what = "masks" if self.decoder.endswith(WITH_MASKS) else "boxes"
        self.described = f"{what} as {read_as}, {THRESHOLDS}" if read_as else ""

    def found(self, outputs: Outputs, reference: Outputs) -> Candidates | FoundBoxes:
        """See Reading."""
        if _BOXES in outputs:
            return _read_reduced(outputs)
        if self._function is not None:
            return _returned_by(self.decoder, self._function(outputs))
        facts = self.facts or ModelFacts({}, {name: a.shape for name, a in outputs.items()})
        return candidates_in(outputs, self.decoder or self._fitting(facts), facts)

    def labelled(self, labels: Outputs, found: Candidates | FoundBoxes) -> Detections:
        """See Reading."""
        boxes = labelled(labels, masks=found.mask_size is not None)
        if found.mask_size is None:
            return boxes
        masks = masks_of_labels(np.asarray(labels["instance_masks"]), found.mask_size)
        if masks.shape != boxes.classes.shape:
            raise MetricError(
                f"the labels 'instance_masks' {list(masks.shape)} and 'classes' "
                f"{list(boxes.classes.shape)} are not [samples, most, …] and [samples, most]",
                "Give a mask for each box.",
                code="QD-METRIC-LABELS",
            )
        there = np.array([mask is not None for mask in masks.flat], bool).reshape(masks.shape)
        return replace(boxes, classes=np.where(there, boxes.classes, -1), masks=masks)

    def truth(self, found: Candidates | FoundBoxes) -> Detections:
        """See Reading."""
        return found.sure

    def reduced(self, found: Any) -> dict[str, Array] | None:
        """All boxes that are found, in shapes that are the same for other samples; None of networks
        that give each object once, which is hardly more."""
        if found.distinct and found.masks is None:
            return None
        boxes = found.found
        samples, most = boxes.classes.shape
        empty = (0, MOST_BOXES - most)
        arrays = {
            _BOXES: np.pad(boxes.boxes, ((0, 0), empty, (0, 0))),
            _SCORES: np.pad(boxes.scores, ((0, 0), empty)),
            _CLASSES: np.pad(boxes.classes, ((0, 0), empty), constant_values=-1),
        }
        if found.masks is not None:
            # One text for each sample: its characters are '0' to 'o', see COCO's maskApi.
            counts = [b" ".join(m["counts"] for m in boxes.masks_of(k)) for k in range(samples)]
            arrays[_MASKS] = np.array(counts, np.bytes_)
            arrays[_SIZE] = np.tile(found.masks.size, (samples, 1))
        return arrays

    def check_labels(self, labels: Outputs) -> None:
        """See Reading; there must be an object to find."""
        truth = labelled(labels, masks=self.decoder.endswith(WITH_MASKS))
        if not (truth.classes >= 0).any():
            raise MetricError(
                f"none of the {counted(len(truth.classes), 'sample')} has a labelled object, so "
                f"{option('metric', self.name)} has nothing to find",
                "Give samples with objects of the model's classes in them, or see that the "
                "annotations are those of these samples.",
                code="QD-METRIC-NO-BOXES",
            )

    def _fitting(self, facts: ModelFacts) -> str:
        name = fitting_decoder(facts)
        if name is None:
            raise undecided(facts, self.name)
        return name


def _read_reduced(outputs: Outputs) -> FoundBoxes:
    """What `BoxReading.reduced` wrote."""
    boxes, scores, classes = (outputs[name] for name in (_BOXES, _SCORES, _CLASSES))
    size, masks = None, None
    if _MASKS in outputs:
        height, width = outputs[_SIZE][0].tolist() if len(boxes) else (0, 0)
        masks = np.empty(classes.shape, object)
        for row, texts in enumerate(outputs[_MASKS].tolist()):
            for place, text in enumerate(texts.split()):
                masks[row, place] = {"size": [height, width], "counts": text}
        size = height, width
    return FoundBoxes(Detections(boxes, scores, classes, masks), size, outputs.get(LOSSES))


def _returned_by(decode: str, returned: Any) -> Candidates:
    """What a user's decoder returned.

    Raises:
        MetricError: it is not boxes and scores, or with these no masks.
    """
    try:
        arrays = [np.asarray(array, np.float64) for array in returned]
    except (TypeError, ValueError):
        arrays = []
    axes = [array.ndim for array in arrays]
    if (
        axes not in ([3, 3], [3, 3, 4])
        or arrays[0].shape[2] != 4
        or len({array.shape[:2] for array in arrays}) > 1
    ):
        raise MetricError(
            f"{option('decode', decode)}: the function did not return boxes [samples, places, 4] "
            "and scores [samples, places, classes]",
            "Return the two arrays, boxes as x1, y1, x2, y2; and as a third, if there are any, "
            "masks [samples, places, height, width], where more than ½ is the object.",
            code="QD-METRIC-DECODE",
        )
    boxes, scores, *masks = arrays
    own = [InstanceMasks(m - 0.5, None, (m.shape[2], m.shape[3]), in_boxes=False) for m in masks]
    return Candidates(boxes, scores, masks=own[0] if own else None)


def labelled(labels: Outputs, *, masks: bool = False) -> Detections:
    """The boxes of the labels, which must have masks too where these are judged.

    Raises:
        MetricError: there are none, or they are not in the form that this module describes.
    """
    if not {"boxes", "classes"} <= labels.keys():
        raise MetricError(
            "the metric needs labelled boxes, arrays 'boxes' and 'classes' in the data: "
            f"{arrays_there(labels)}",
            "Give 'boxes' [samples, most, 4], xyxy in pixels of the input, and 'classes' [samples, "
            "most], -1 for no box; or use map-to-reference, which takes FP32's boxes.",
            code="QD-METRIC-LABELS",
        )
    if masks and "instance_masks" not in labels:
        raise MetricError(
            "the metric compares masks of objects, and the data have boxes alone",
            "Give outlines with the boxes (COCO's 'segmentation', YOLO's polygons), or judge the "
            f"boxes: {option('decode', 'yolov8')}, the name of a decoder without -seg.",
            code="QD-METRIC-LABELS",
        )
    boxes, classes = np.asarray(labels["boxes"]), np.asarray(labels["classes"])
    if boxes.ndim != 3 or boxes.shape[-1] != 4 or classes.shape != boxes.shape[:2]:
        raise MetricError(
            f"the labels 'boxes' {list(boxes.shape)} and 'classes' {list(classes.shape)} are not "
            "[samples, most, 4] and [samples, most]",
            "Fill up with the class -1 where a sample has fewer boxes.",
            code="QD-METRIC-LABELS",
        )
    whole = np.where(np.isfinite(classes.astype(np.float64)), classes, -1).astype(np.int64)
    return Detections(boxes.astype(np.float64), np.ones(whole.shape), whole)
