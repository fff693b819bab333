"""The share of samples that have one of their class among the K nearest others by cosine: recall@K
of retrieval (Jégou et al. 2011)."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.classes import Classed
from qdebug.metrics.tasks.losses import soft_wrong
from qdebug.types import Array


def per_sample(found: Array, truth: Classed, at: int) -> Float64:
    """1 where one of the `at` nearest samples is of the same class, else 0."""
    nearest = np.argsort(-_closeness(found), axis=1, kind="stable")[:, : min(at, len(found) - 1)]
    return np.asarray((truth[nearest] == truth[:, np.newaxis]).any(axis=1), np.float64)


def loss(found: Array, truth: Classed, reference: Array) -> Float64:
    """The soft form of a wrong neighbour: see soft_wrong, with the cosine of the nearest sample of
    the same class minus that of the nearest of another one as the margin; 0 of a sample without the
    one or the other."""
    same = truth[:, np.newaxis] == truth
    after, before = (_margins(_closeness(array), same) for array in (found, reference))
    losses = np.zeros(len(after))
    judged = np.isfinite(before)
    losses[judged] = soft_wrong(after[judged], before[judged])
    return losses


def _margins(closeness: Float64, same: Array) -> Float64:
    """Infinite where there is no sample to be near."""
    nearest_same = np.where(same, closeness, -np.inf).max(axis=1)
    nearest_other = np.where(same, -np.inf, closeness).max(axis=1)
    with np.errstate(invalid="ignore"):  # Inf − Inf
        return np.asarray(nearest_same - nearest_other, np.float64)


def _closeness(found: Array) -> Float64:
    """Cosines of the samples with each other, float64 [samples, samples]; -inf with themselves."""
    flat = found.reshape(len(found), -1).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.nan_to_num(flat / np.where(norms > 0, norms, 1))
    closeness = unit @ unit.T
    np.fill_diagonal(closeness, -np.inf)
    return np.asarray(closeness, np.float64)
