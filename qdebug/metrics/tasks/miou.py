"""Mean intersection over union: of each class over all pixels, averaged over the classes."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.losses import margin_losses
from qdebug.metrics.tasks.masks import IGNORED, Masks


def score(found: Masks, truth: Masks) -> float:
    """Over the classes that are found or true for any pixel."""
    most = int(max(found.classes.max(initial=0), truth.classes.max(initial=0))) + 1
    pairs = np.zeros((most, most), np.int64)
    for one, other in zip(found.classes, truth.classes, strict=True):  # wide numbers take room
        judged = other != IGNORED
        both = other[judged].astype(np.int64) * most + one[judged]
        pairs += np.bincount(both, minlength=most * most).reshape(most, most)
    shared, union = np.diag(pairs), pairs.sum(axis=0) + pairs.sum(axis=1) - np.diag(pairs)
    return float(np.mean(shared[union > 0] / union[union > 0])) if union.any() else 1.0


def loss(found: Masks, truth: Masks, reference: Masks) -> Float64:
    """The mean over the judged pixels of what margin_losses gives for each; where the output is
    classes, the share of them that is wrong."""
    losses = []
    for sample, classes in enumerate(truth.classes):
        judged = classes != IGNORED
        if found.scores is None or reference.scores is None:
            wrong = found.classes[sample][judged] != classes[judged]
            losses.append(float(wrong.mean()) if judged.any() else 0.0)
            continue
        own, before = (m[sample][:, judged].T for m in (found.scores, reference.scores))
        values = margin_losses(own, classes[judged], before) if judged.any() else np.zeros(1)
        losses.append(float(values.mean()))
    return np.array(losses, np.float64)
