"""The root mean square error of the first output."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.types import Array


def score(found: Array, truth: Array) -> float:
    """Over all values of all samples."""
    return float(np.sqrt(np.mean(np.square(found.astype(np.float64) - truth))))


def loss(found: Array, truth: Array, _: Array) -> Float64:
    """The mean square of each sample's errors."""
    squares = np.square(found.astype(np.float64) - truth)
    return np.asarray(squares.reshape(len(squares), -1).mean(axis=1), np.float64)
