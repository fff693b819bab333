"""The share of samples whose right class is among the five highest scores."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.classes import Classed, class_scores, scores_of
from qdebug.metrics.tasks.losses import margin_losses
from qdebug.types import Array

_PLACES = 5


def per_sample(found: Array, truth: Classed) -> Float64:
    """1 where fewer than five scores are higher than that of the right class, else 0; 0 where that
    is NaN, or the class does not exist."""
    scores = class_scores(found)
    own = scores_of(scores, truth)
    higher = (scores > own[:, np.newaxis]).sum(axis=1)
    return np.asarray((higher < _PLACES) & ~np.isneginf(own), np.float64)


def loss(found: Array, truth: Classed, reference: Array) -> Float64:
    """See margin_losses, with the margin to the fifth highest other score."""
    return margin_losses(found, truth, reference, place=_PLACES)
