"""The mean cosine similarity of the first output with the reference's."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.types import Array


def per_sample(found: Array, truth: Array) -> Float64:
    """Of each sample; 0 where one of the two is 0 or not finite, 1 where both are 0."""
    one, other = (a.reshape(len(a), -1).astype(np.float64) for a in (found, truth))
    dots = np.einsum("ij,ij->i", one, other)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(norms > 0, dots / norms, (one == other).all(axis=1))
    return np.where(np.isfinite(values), values, 0.0)


def loss(found: Array, truth: Array, _: Array) -> Float64:
    """1 − cosine."""
    return 1.0 - per_sample(found, truth)
