"""Average precision of boxes, or of masks, as COCO computes it, by faster-coco-eval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qdebug.errors import MetricError, required
from qdebug.metrics.tasks.boxes.detections import DECISION, Detections

_ALL_OVERLAPS, _HALF = 0, 1
"""Where the two stand among the summary's figures."""


def mean_average_precision(found: Detections, truth: Detections) -> float:
    """AP over IoU 0.50 to 0.95, of all classes that the truth has: COCO's AP."""
    return _summary(found, truth)[_ALL_OVERLAPS]


def at_half_overlap(found: Detections, truth: Detections) -> float:
    """AP at IoU 0.50: COCO's AP50."""
    return _summary(found, truth)[_HALF]


def _summary(found: Detections, truth: Detections) -> list[float]:
    """COCO's figures: those of masks where both sides have them, else of boxes.

    Raises:
        MetricError: faster-coco-eval is not installed, or the truth has no boxes.
    """
    library = required(
        "faster_coco_eval", "average precision", code="QD-METRIC-EXTRA", error=MetricError
    )
    kind = "bbox" if found.masks is None or truth.masks is None else "segm"
    true_objects = [
        # The area chooses among small and large objects, and AP is of all.
        {**one, "id": number, "iscrowd": 0, "area": 1.0}
        for number, one in enumerate(_coco(truth, kind), start=1)
    ]
    if not true_objects:
        raise MetricError(
            "average precision needs boxes to be found, and these samples have none: no labelled "
            f"ones, or (-to-reference) none that FP32 gives a score ≥ {DECISION:g}",
            "Give samples with objects of the model's classes in them.",
            code="QD-METRIC-NO-BOXES",
        )
    categories = sorted({int(c) for one in (truth, found) for c in np.unique(one.classes)} - {-1})
    height, width = true_objects[0]["segmentation"]["size"] if kind == "segm" else (0, 0)
    size = {"height": height, "width": width}
    images = [{"id": sample, **size} for sample in range(len(truth.classes))]
    dataset = {
        "images": images,
        "annotations": true_objects,
        "categories": [{"id": category, "name": str(category)} for category in categories],
    }
    scores = (s for n in range(len(found.classes)) for s in found.of(n)[1].tolist())
    objects = [{**one, "score": s} for one, s in zip(_coco(found, kind), scores, strict=True)]
    if not objects:
        return [0.0, 0.0]
    silent: Any = lambda *_: None  # noqa: E731
    coco = library.COCO(dataset, print_function=silent)
    evaluation = library.COCOeval_faster(coco, coco.loadRes(objects), kind, print_function=silent)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return [float(value) for value in evaluation.stats[:2]]


def _coco(detections: Detections, kind: str) -> Iterator[dict[str, Any]]:
    """The objects as COCO's format has them: boxes as x, y, w, h, or masks."""
    for sample in range(len(detections.classes)):
        boxes, _, classes = detections.of(sample)
        if kind == "segm":
            shapes = [{"segmentation": mask} for mask in detections.masks_of(sample)]
        else:
            sides = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
            shapes = [{"bbox": box} for box in sides.tolist()]
        for shape, category in zip(shapes, classes.tolist(), strict=True):
            yield {"image_id": sample, "category_id": category, **shape}
