"""Losses of single samples for classifiers: smooth, float64 [samples], lower is better.

A share of right samples moves only where one crosses the boundary between two classes. These move
with every change of a score, most where a decision is close, and tell two networks apart on fewer
samples. Scores are [samples, …]; all that is behind the first axis are classes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.classes import class_scores
from qdebug.types import Array

MARGIN_SLOPE = 1.0
"""At a margin of one standard deviation of the reference's margins a decision counts as 73 % sure.
Measured by scripts/bench/bench_yardsticks.py: with 1 more pairs of variants are told apart than
with 4, and none wrongly."""
_LEAST = 1e-7
"""Probability: a softmax in INT8 has zeros, of which the logarithm says nothing."""


def margin_losses(
    scores: Array,
    right: Array,
    reference: Array,
    slope: float = MARGIN_SLOPE,
    place: int = 1,
) -> Float64:
    """The soft form of "wrong": σ(−slope · margin / spread), 0 to 1.

    The margin is the score of the `right` class minus the highest other one, or, with `place`, that
    on this place among the others; of probabilities, their logarithms. The spread is the standard
    deviation of the same margin in the reference's scores. 1 where the score of the right class is
    NaN, or the class does not exist.

    Args:
        right: class indices [samples].
        reference: FP32's scores, of the shape of `scores`.
    """
    before, after = class_scores(reference), class_scores(scores)
    if are_probabilities(before):
        before, after = (np.log(np.maximum(flat, _LEAST)) for flat in (before, after))
    return soft_wrong(_margins(after, right, place), _margins(before, right, place), slope)


def soft_wrong(margins: Float64, before: Float64, slope: float = MARGIN_SLOPE) -> Float64:
    """σ(−slope · margin / spread), where spread is the standard deviation of the reference's
    margins, which are `before`."""
    spread = float(np.std(_finite(before))) or 1.0
    from scipy.special import expit

    return np.asarray(expit(-slope * margins / spread), np.float64)


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


def _margins(flat: Float64, right: Array, place: int) -> Float64:
    """The score of the right class minus the highest other one, or that on another `place`, float64
    [samples]; -inf where the sample is broken.

    Args:
        flat: as class_scores gives them, in logarithms if they are probabilities.
    """
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
    if are_probabilities(flat):
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(flat), np.float64)
    with np.errstate(invalid="ignore"):  # a row of -Inf
        shifted = flat - flat.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.asarray(logs, np.float64)


def are_probabilities(flat: Float64) -> bool:
    """Whether every finite row is one of probabilities: FP16 sums to 1 within a thousandth."""
    rows = flat[np.isfinite(flat).all(axis=1)]
    return bool(rows.size and rows.min() >= 0 and np.all(np.abs(rows.sum(axis=1) - 1) < 5e-3))


def _finite(values: Float64) -> Float64:
    kept = values[np.isfinite(values)]
    return kept if kept.size else np.zeros(1)
