"""Scores and losses of boxes, or of masks of objects: average precision as COCO computes it, F1 of
those that count as found, and what a sample loses where a detector decides otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qdebug.errors import MetricError, required
from qdebug.metrics.tasks.base import BoxCounts, Float64
from qdebug.metrics.tasks.boxes.detections import (
    DECISION,
    Candidates,
    Detections,
    FoundBoxes,
    detected,
    ious_of_pairs,
    matched,
)
from qdebug.metrics.tasks.boxes.instance_masks import mask_ious

Found = Candidates | FoundBoxes
OVERLAP = 0.5
"""IoU from which on two boxes, or masks, of a class are the same: PASCAL VOC's and map50's."""
_SLOPE = 20.0
"""Of a soft decision on a score or an overlap: from 0.02 to 0.98 within 0.2 of the threshold on
either side."""
_LOOKED_AT = 0.1
"""Places where both scores are lower cannot be decided otherwise."""
_LEAST_OVERLAP = 0.2
"""Boxes of networks that give each object once are one from here on; how well they agree is weighed
softly."""
_NOTHING = 1e-3
"""Of boxes: a sample in which neither network sees anything loses nothing."""


def average_precision(found: Found, truth: Detections, _: Found) -> float:
    """AP over IoU 0.50 to 0.95, of all classes that the truth has: COCO's AP."""
    return _summary(found.found, truth)[0]


def average_precision_50(found: Found, truth: Detections, _: Found) -> float:
    """AP at IoU 0.50: COCO's AP50."""
    return _summary(found.found, truth)[1]


def f1(found: Found, truth: Detections, reference: Found) -> float:
    """See BoxCounts.f1."""
    return counts(found, truth, reference).f1


def counts(found: Found, truth: Detections, _: Found) -> BoxCounts:
    """See box_counts."""
    return box_counts(found.sure, truth)


def box_counts(found: Detections, truth: Detections) -> BoxCounts:
    """Boxes that count as found, next to those that count as true."""
    found, truth = found.above(DECISION), truth.above(DECISION)
    there, true = (int((side.classes >= 0).sum()) for side in (found, truth))
    kept = sum(len(matched(found, truth, k, OVERLAP)) for k in range(len(found.classes)))
    return BoxCounts(kept, true - kept, there - kept)


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
    objects = list(_coco(found, kind))
    if not objects:
        return [0.0, 0.0]
    categories = sorted({int(c) for one in (truth, found) for c in np.unique(one.classes)} - {-1})
    height, width = true_objects[0]["segmentation"]["size"] if kind == "segm" else (0, 0)
    samples = range(len(truth.classes))
    dataset = {
        "images": [{"id": sample, "height": height, "width": width} for sample in samples],
        "annotations": true_objects,
        "categories": [{"id": category, "name": str(category)} for category in categories],
    }
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
        boxes, scores, classes = detections.of(sample)
        if kind == "segm":
            shapes = [{"segmentation": mask} for mask in detections.masks_of(sample)]
        else:
            sides = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
            shapes = [{"bbox": box} for box in sides.tolist()]
        for shape, score, category in zip(shapes, scores.tolist(), classes.tolist(), strict=True):
            yield {"image_id": sample, "category_id": category, "score": score, **shape}


def loss(found: Found, _: Detections, reference: Found) -> Float64:
    """See soft_f1_losses; of boxes that were reduced what they had lost before."""
    if isinstance(found, Candidates) and isinstance(reference, Candidates):
        return soft_f1_losses(found, reference)
    assert isinstance(found, FoundBoxes) and found.losses is not None
    return found.losses


def soft_f1_losses(found: Candidates, reference: Candidates) -> Float64:
    """The soft form of 1 − F1 next to the reference's boxes, 0 to 1, float64 [samples].

    It is 1 − (2·Σ min(d, d_ref)·near + ε) / (Σ (d + d_ref) + ε), with d = σ(20·(s − τ)) of the
    scores s and near = σ(20·(IoU − ½)) of the two boxes, or masks, over all places and classes
    where either score is above 0.1; τ is the score from which on a box counts as found, and NaN
    counts as 0.

    Of networks that give each object once, in an order of their own, boxes of a class that overlap
    are taken for one, and what has no counterpart has the score 0 there. Measured on quantized
    variants of a detector that loses much: it orders 5 of 418 pairs wrongly, none surely, as few as
    the score itself; noise 42, and Σ abs(d − d_ref), which false boxes raise without bound and lost
    ones do not, 26.
    """
    parts = _pairs(found, reference) if found.distinct else _places(found, reference)
    losses = []
    for scores, before, overlaps in parts:
        d, d_ref = _decision(scores, DECISION), _decision(before, DECISION)
        shared = 2 * float((np.minimum(d, d_ref) * _decision(overlaps, OVERLAP)).sum())
        losses.append(1 - (shared + _NOTHING) / (float((d + d_ref).sum()) + _NOTHING))
    return np.array(losses, np.float64)


Part = tuple[Float64, Float64, Float64]
"""Scores, the reference's, and how far the boxes overlap, of all that is compared in a sample."""


def _decision(values: Float64, threshold: float) -> Float64:
    from scipy.special import expit

    return np.asarray(expit(_SLOPE * (np.nan_to_num(values) - threshold)), np.float64)


def _places(found: Candidates, reference: Candidates) -> Iterator[Part]:
    for sample, (scores, before) in enumerate(zip(found.scores, reference.scores, strict=True)):
        places, classes = np.nonzero((scores > _LOOKED_AT) | (before > _LOOKED_AT))
        boxes, others = (
            each.boxes[sample, places].astype(np.float64) for each in (found, reference)
        )
        own, first = (s[places, classes].astype(np.float64) for s in (scores, before))
        if found.masks is not None and reference.masks is not None:
            near = found.masks.overlaps(reference.masks, sample, places, boxes, others)
        else:
            near = ious_of_pairs(boxes, others)
        yield own, first, near


def _pairs(found: Candidates, reference: Candidates) -> Iterator[Part]:
    one, other = detected(found, _LOOKED_AT), detected(reference, _LOOKED_AT)
    for sample in range(len(one.classes)):
        (boxes, scores, _), (others, before, _) = one.of(sample), other.of(sample)
        same = np.array(matched(one, other, sample, _LEAST_OVERLAP), np.int64).reshape(-1, 2)
        mine, theirs = same.T
        new, lost = np.delete(scores, mine), np.delete(before, theirs)
        if one.masks is not None and other.masks is not None:
            near = mask_ious(one.masks_of(sample), other.masks_of(sample))[mine, theirs]
        else:
            near = ious_of_pairs(boxes[mine], others[theirs])
        yield (
            np.concatenate([scores[mine], new, np.zeros(len(lost))]),
            np.concatenate([before[theirs], np.zeros(len(new)), lost]),
            np.concatenate([near, np.zeros(len(new) + len(lost))]),
        )
