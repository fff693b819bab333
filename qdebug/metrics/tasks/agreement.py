"""The share of samples whose highest score, in the first output, is where the reference has it."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64, Outputs, first_output
from qdebug.metrics.tasks.classes import chosen_classes
from qdebug.metrics.tasks.losses import margin_losses


def per_sample(outputs: Outputs, _: Outputs, reference: Outputs) -> Float64:
    """1 where a sample has the reference's class, else 0."""
    same = chosen_classes(first_output(outputs)) == chosen_classes(first_output(reference))
    return np.asarray(same, np.float64)


def loss(outputs: Outputs, _: Outputs, reference: Outputs) -> Float64:
    """See margin_losses."""
    kept = first_output(reference)
    return margin_losses(first_output(outputs), chosen_classes(kept), kept)
