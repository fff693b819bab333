"""Losses of single samples for classifiers: smooth, float64 [samples], lower is better.

A share of right samples moves only where one crosses the boundary between two classes. These move
with every change of a score, most where a decision is close, and tell two networks apart on fewer
samples. Scores are [samples, …]; all that is behind the first axis are classes.
"""

from __future__ import annotations

import math

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.classes import class_exists, class_scores, scores_of
from qdebug.types import Array

MARGIN_SLOPE = 1.0
"""At a margin of one standard deviation of the reference's margins a decision counts as 73 % sure.
Measured on quantized variants of three classifiers: more pairs are told apart with 1 than with 4,
and none is surely ordered wrongly."""
LEAST_PROBABILITY = 1e-7
"""A softmax in INT8 has zeros, of which the logarithm says nothing."""

LEAST_LOST = 1e-6
"""Of a loss of about 1, as these are, or of FP32's where that is larger: by less a mean loss moves
with the last bits. Of a classifier that is sure of every sample it was 2e-20."""


def tells_apart(
    losses: Float64, before: Float64, score: float | None, reference: float | None
) -> bool:
    """Whether `losses` are others than FP32's, which are `before`, so that they may order what was
    done to the network: where the score stays too, their mean must move by LEAST_LOST.

    Args:
        losses, before: float64 [samples].
        score, reference: the metric, and that of FP32; None where it cannot judge these samples.
    """
    both = math.nan if score is None else score, math.nan if reference is None else reference
    if not (any(map(math.isnan, both)) or math.isclose(*both, rel_tol=LEAST_LOST)):
        return True
    with np.errstate(invalid="ignore"):  # Inf − Inf
        lost = float(np.mean(losses - before))
    finite = before[np.isfinite(before)]
    scale = max(1.0, float(np.abs(finite).mean()) if finite.size else 0.0)
    return not abs(lost) < LEAST_LOST * scale


def margin_losses(scores: Array, right: Array, reference: Array, *, place: int = 1) -> Float64:
    """The soft form of "wrong", 0 to 1: see soft_wrong.

    The margin is the score of the `right` class minus the highest other one, or, with `place`, that
    on this place among the others; of probabilities, their logarithms. 1 where the score of the
    right class is NaN, or the class does not exist.

    Args:
        right: class indices [samples].
        reference: FP32's scores, of the shape of `scores`.
    """
    before, after = class_scores(reference), class_scores(scores)
    if are_probabilities(before):
        before, after = (np.log(np.maximum(flat, LEAST_PROBABILITY)) for flat in (before, after))
    return soft_wrong(_margins(after, right, place), _margins(before, right, place))


def soft_wrong(margins: Float64, before: Float64) -> Float64:
    """σ(−MARGIN_SLOPE · margin / spread), where spread is the standard deviation of the reference's
    margins, which are `before`: of those that are finite; 1 where they do not vary."""
    from scipy.special import expit

    finite = before[np.isfinite(before)]
    spread = (float(np.std(finite)) if finite.size else 0.0) or 1.0
    return np.asarray(expit(-MARGIN_SLOPE * margins / spread), np.float64)


def _margins(flat: Float64, right: Array, place: int) -> Float64:
    """The score of the right class minus the highest other one, or that on another `place`, float64
    [samples]; -inf where the sample is broken.

    Args:
        flat: as class_scores gives them, in logarithms if they are probabilities.
    """
    own = scores_of(flat, right)
    if flat.shape[1] <= place:
        return own
    others, exists = flat.copy(), class_exists(flat, right)
    others[exists, right[exists]] = -np.inf
    with np.errstate(invalid="ignore"):  # Inf − Inf
        margins = own - np.partition(others, -place, axis=1)[:, -place]
    return np.where(np.isnan(margins), -np.inf, margins)


def are_probabilities(flat: Float64) -> bool:
    """Whether every finite row is one of probabilities: FP16 sums to 1 within a thousandth."""
    rows = flat[np.isfinite(flat).all(axis=1)]
    return bool(rows.size and rows.min() >= 0 and np.all(np.abs(rows.sum(axis=1) - 1) < 5e-3))
