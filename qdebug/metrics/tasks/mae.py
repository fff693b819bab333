"""The mean absolute error of the first output."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.types import Array


def per_sample(found: Array, truth: Array) -> Float64:
    """The mean over the values of each sample."""
    errors = np.abs(found.astype(np.float64) - truth)
    return np.asarray(errors.reshape(len(errors), -1).mean(axis=1), np.float64)


def loss(found: Array, truth: Array, _: Array) -> Float64:
    """The same."""
    return per_sample(found, truth)
