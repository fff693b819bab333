"""The share of samples that have one of their class among the K nearest others by cosine: recall@K
of retrieval (Jégou et al. 2011)."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.classes import Classed
from qdebug.metrics.tasks.cosine import loss as cosine_loss
from qdebug.types import Array


def per_sample(found: Array, truth: Classed, at: int) -> Float64:
    """1 where one of the `at` nearest samples is of the same class, else 0."""
    flat = found.reshape(len(found), -1).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    near = np.nan_to_num(flat / np.where(norms > 0, norms, 1))
    closeness = near @ near.T
    np.fill_diagonal(closeness, -np.inf)
    nearest = np.argsort(-closeness, axis=1, kind="stable")[:, : min(at, len(found) - 1)]
    return np.asarray((truth[nearest] == truth[:, np.newaxis]).any(axis=1), np.float64)


def loss(found: Array, _: Classed, reference: Array) -> Float64:
    """How far a sample's embedding is from the reference's: 1 − cosine."""
    return cosine_loss(found, reference, reference)
