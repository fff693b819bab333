"""Average precision of boxes, as COCO computes it, by faster-coco-eval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qdebug.errors import MetricError, required
from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.boxes.detections import Detections

_ALL_OVERLAPS, _HALF = 0, 1
"""Where the two stand among the summary's figures."""


def mean_average_precision(found: Detections, truth: Detections) -> float:
    """AP over IoU 0.50 to 0.95, of all classes that the truth has: COCO's AP."""
    return _summary(found, truth)[_ALL_OVERLAPS]


def at_half_overlap(found: Detections, truth: Detections) -> float:
    """AP at IoU 0.50: COCO's AP50."""
    return _summary(found, truth)[_HALF]


def _summary(found: Detections, truth: Detections) -> list[float]:
    """COCO's figures.

    Raises:
        MetricError: faster-coco-eval is not installed, or the truth has no boxes.
    """
    library = required(
        "faster_coco_eval", "average precision", code="QD-METRIC-EXTRA", error=MetricError
    )
    true_boxes = [
        {**box, "id": number, "iscrowd": 0, "area": box["bbox"][2] * box["bbox"][3]}
        for number, box in enumerate(_coco(truth), start=1)
    ]
    if not true_boxes:
        raise MetricError(
            "average precision needs true boxes, and these samples have none",
            "Give samples with objects in them.",
            code="QD-METRIC-NO-BOXES",
        )
    categories = sorted({int(c) for one in (truth, found) for c in np.unique(one.classes)} - {-1})
    images = [{"id": sample} for sample in range(len(truth.classes))]
    dataset = {
        "images": images,
        "annotations": true_boxes,
        "categories": [{"id": category, "name": str(category)} for category in categories],
    }
    boxes = [
        {**box, "score": score} for box, score in zip(_coco(found), _scores(found), strict=True)
    ]
    if not boxes:
        return [0.0, 0.0]
    silent: Any = lambda *_: None  # noqa: E731
    coco = library.COCO(dataset, print_function=silent)
    evaluation = library.COCOeval_faster(coco, coco.loadRes(boxes), "bbox", print_function=silent)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return [float(value) for value in evaluation.stats[:2]]


def _coco(detections: Detections) -> Iterator[dict[str, Any]]:
    for sample in range(len(detections.classes)):
        boxes, _, classes = detections.of(sample)
        for box, category in zip(_width_height(boxes), classes.tolist(), strict=True):
            yield {"image_id": sample, "category_id": category, "bbox": box}


def _scores(detections: Detections) -> list[float]:
    return [s for n in range(len(detections.classes)) for s in detections.of(n)[1].tolist()]


def _width_height(boxes: Float64) -> list[list[float]]:
    """x, y, w, h of x1, y1, x2, y2."""
    return [[*box[:2].tolist(), *(box[2:] - box[:2]).tolist()] for box in boxes]
