"""Losses of single samples for classifiers: smooth, float64 [samples], lower is better.

A share of right samples moves only where one crosses the boundary between two classes. These move
with every change of a score, most where a decision is close, and tell two networks apart on fewer
samples. Scores are [samples, …]; all that is behind the first axis are classes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.classes import class_scores
from qdebug.types import Array

MARGIN_SLOPE = 4.0
"""At a margin of one standard deviation of the reference's margins a decision counts as 98% sure:
noise of INT8 is a fraction of that deviation, and must not move samples that are far from the
boundary."""


def margin_losses(
    scores: Array,
    right: Array,
    reference: Array,
    slope: float = MARGIN_SLOPE,
    place: int = 1,
) -> Float64:
    """The soft form of "wrong": σ(−slope · margin / spread), 0 to 1, where margin is the score of
    the `right` class minus the highest other one (or, with `place`, that on this place among the
    others), and spread the standard deviation of the same margin in the reference's scores. 1 where
    the score of the right class is NaN, or the class does not exist.

    Args:
        right: class indices [samples].
        reference: FP32's scores, of the shape of `scores`.
    """
    spread = float(np.std(_finite(margins(reference, right, place))))
    return soft_wrong(margins(scores, right, place), spread or 1.0, slope)


def soft_wrong(margin: Float64, spread: float, slope: float = MARGIN_SLOPE) -> Float64:
    """σ(−slope · margin / spread); see margin_losses."""
    return np.asarray(expit(-slope * margin / spread), np.float64)


def margin_changes(
    scores: Array, right: Array, reference: Array, slope: float = MARGIN_SLOPE
) -> Float64:
    """By how much the soft decision of `margin_losses` is another than the reference's, either way:
    0 where nothing changes."""
    before = margin_losses(reference, right, reference, slope)
    return np.abs(margin_losses(scores, right, reference, slope) - before)


def cross_entropies(scores: Array, right: Array) -> Float64:
    """−log p of the `right` class, with p the softmax of the scores, or the scores themselves where
    they are probabilities; +inf where p is 0 or not known."""
    logs, rows = _log_probabilities(scores), np.arange(len(scores))
    inside = _exists(right, logs)
    found = -logs[rows, np.where(inside, right, 0)]
    return np.where(inside & ~np.isnan(found), found, np.inf)


def divergences(scores: Array, reference: Array) -> Float64:
    """The Kullback-Leibler divergence Σ p·log(p/q) of the classes' probabilities from the
    reference's p to q (Kullback and Leibler 1951); +inf where q is 0 and p is not."""
    p, q = _log_probabilities(reference), _log_probabilities(scores)
    with np.errstate(invalid="ignore"):  # 0 · log 0 is 0
        terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
    found = terms.sum(axis=1)
    return np.where(np.isnan(found), np.inf, np.maximum(found, 0.0))


def margins(scores: Array, right: Array, place: int = 1) -> Float64:
    """The score of the right class minus the highest other one, or that on another `place`, float64
    [samples]; -inf where the sample is broken."""
    flat = class_scores(scores)
    rows, inside = np.arange(len(flat)), _exists(right, flat)
    at = np.where(inside, right, 0)
    own = np.where(inside, flat[rows, at], -np.inf)
    if flat.shape[1] <= place:
        return own
    others = flat.copy()
    others[rows[inside], at[inside]] = -np.inf
    with np.errstate(invalid="ignore"):  # Inf − Inf
        found = own - np.partition(others, -place, axis=1)[:, -place]
    return np.where(np.isnan(found), -np.inf, found)


def _exists(right: Array, scores: Float64) -> npt.NDArray[np.bool_]:
    return np.asarray((right >= 0) & (right < scores.shape[1]), np.bool_)


def _log_probabilities(scores: Array) -> Float64:
    """Logarithms of probabilities, float64 [samples, classes]."""
    flat = class_scores(scores)
    if _are_probabilities(flat):
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(flat), np.float64)
    with np.errstate(invalid="ignore"):  # a row of -Inf
        shifted = flat - flat.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.asarray(logs, np.float64)


def _are_probabilities(flat: Float64) -> bool:
    """Whether every finite row is one of probabilities: FP16 sums to 1 within a thousandth."""
    rows = flat[np.isfinite(flat).all(axis=1)]
    return bool(rows.size and rows.min() >= 0 and np.all(np.abs(rows.sum(axis=1) - 1) < 5e-3))


def _finite(values: Float64) -> Float64:
    kept = values[np.isfinite(values)]
    return kept if kept.size else np.zeros(1)
