"""Spearman's rank correlation of the first output with the truth, over all values."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.rmse import loss
from qdebug.types import Array

__all__ = ["loss", "score"]


def score(found: Array, truth: Array) -> float:
    """scipy's spearmanr; NaN, and so refused, where all values are equal."""
    from scipy.stats import spearmanr

    return float(spearmanr(np.ravel(found), np.ravel(truth)).statistic)
