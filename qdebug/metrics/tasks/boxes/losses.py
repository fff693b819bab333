"""What a sample loses where a detector decides otherwise than the reference."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.boxes.detections import (
    DECISION,
    Candidates,
    detected,
    ious_of_pairs,
    matched,
)
from qdebug.metrics.tasks.boxes.instance_masks import mask_ious

_SLOPE = 20.0
"""Of a soft decision on a score or an overlap: from 0.02 to 0.98 within 0.2 of the threshold on
either side."""
_LOOKED_AT = 0.1
"""Places where both scores are lower cannot be decided otherwise."""
_SAME_PLACE = 0.5
"""Overlap from which on a box is more right than wrong; see agreement.OVERLAP."""
_LEAST_OVERLAP = 0.2
"""Boxes of networks that give each object once are one from here on; how well they agree is weighed
softly."""
_NOTHING = 1e-3
"""Of boxes: a sample in which neither network sees anything loses nothing."""


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
        near = _decision(overlaps, _SAME_PLACE)
        shared = 2 * float((np.minimum(d, d_ref) * near).sum())
        losses.append(1 - (shared + _NOTHING) / (float((d + d_ref).sum()) + _NOTHING))
    return np.array(losses, np.float64)


Part = tuple[Float64, Float64, Float64]
"""Scores, the reference's, and how far the boxes overlap, of all that is compared in a sample."""


def _decision(values: Float64, threshold: float) -> Float64:
    from scipy.special import expit

    return np.asarray(expit(_SLOPE * (np.nan_to_num(values) - threshold)), np.float64)


def _places(found: Candidates, reference: Candidates) -> list[Part]:
    parts = []
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
        parts.append((own, first, near))
    return parts


def _pairs(found: Candidates, reference: Candidates) -> list[Part]:
    one, other = detected(found, _LOOKED_AT), detected(reference, _LOOKED_AT)
    parts = []
    for sample in range(len(one.classes)):
        (boxes, scores, _), (others, before, _) = one.of(sample), other.of(sample)
        same = matched(one, other, sample, _LEAST_OVERLAP)
        mine, theirs = (list(side) for side in zip(*same, strict=True)) if same else ([], [])
        new, lost = np.delete(scores, mine), np.delete(before, theirs)
        if one.masks is not None and other.masks is not None:
            table = mask_ious(one.masks_of(sample), other.masks_of(sample))
            near = table[mine, theirs]
        else:
            near = ious_of_pairs(boxes[mine], others[theirs])
        parts.append(
            (
                np.concatenate([scores[mine], new, np.zeros(len(lost))]),
                np.concatenate([before[theirs], np.zeros(len(new)), lost]),
                np.concatenate([near, np.zeros(len(new) + len(lost))]),
            )
        )
    return parts
