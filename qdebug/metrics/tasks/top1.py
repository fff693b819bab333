"""The share of samples whose highest score, in the first output, is that of their label."""

from __future__ import annotations

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Float64, Outputs, first_output, labels_of
from qdebug.metrics.tasks.classes import chosen_classes
from qdebug.metrics.tasks.losses import margin_losses
from qdebug.types import Array
from qdebug.wording import option


def per_sample(outputs: Outputs, labels: Outputs, _: Outputs) -> Float64:
    """1 where a sample is right, else 0."""
    classes = chosen_classes(first_output(outputs))
    right = classes == _truth(labels, len(classes))
    return np.asarray(right, np.float64)


def loss(outputs: Outputs, labels: Outputs, reference: Outputs) -> Float64:
    """See margin_losses."""
    scores = first_output(outputs)
    return margin_losses(scores, _truth(labels, len(scores)), first_output(reference))


def _truth(labels: Outputs, samples: int) -> Array:
    """The class of each sample.

    Raises:
        MetricError: there are no labels, or they are no class numbers.
    """
    truth = labels_of(labels)
    if truth.size != samples:
        raise MetricError(
            f"{option('metric', 'top1')} needs one class number per sample: there are "
            f"{samples} samples, and labels of shape {truth.shape}",
            "Give class numbers instead of one-hot labels, or a function of your own.",
            code="QD-METRIC-LABELS",
        )
    return truth.reshape(-1)
