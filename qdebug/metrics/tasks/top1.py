"""The share of samples whose highest score is that of the right class."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.classes import Classed, chosen_classes
from qdebug.metrics.tasks.losses import margin_losses
from qdebug.types import Array


def per_sample(found: Array, truth: Classed) -> Float64:
    """1 where a sample is right, else 0."""
    return np.asarray(chosen_classes(found) == truth, np.float64)


def loss(found: Array, truth: Classed, reference: Array) -> Float64:
    """See margin_losses."""
    return margin_losses(found, truth, reference)
