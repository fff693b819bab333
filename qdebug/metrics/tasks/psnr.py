"""The mean peak signal-to-noise ratio of pictures, in dB."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.rmse import loss
from qdebug.types import Array

__all__ = ["loss", "peak_of", "per_sample"]

_MOST_DB = 100.0
"""Of equal pictures: the mean over samples must stay finite."""


def per_sample(found: Array, truth: Array) -> Float64:
    """10·log₁₀(peak² / mean square error) of each sample; see peak_of."""
    errors = loss(found, truth, truth)
    least = peak_of(truth) ** 2 * 10 ** (-_MOST_DB / 10)
    return np.asarray(10 * np.log10(peak_of(truth) ** 2 / np.maximum(errors, least)), np.float64)


def peak_of(truth: Array) -> float:
    """The range of pictures: 255 where a value is above 2, else 1, or 2 where values are negative
    (-1 to 1)."""
    high, low = float(np.max(truth, initial=0)), float(np.min(truth, initial=0))
    return 255.0 if high > 2 else 2.0 if low < 0 else 1.0
