"""Which class a sample is taken for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.metrics.tasks.base import Float64, Outputs, first_output
from qdebug.types import Array

Classed = npt.NDArray[np.int64]
"""A class for each sample, int64 [samples]."""


_BEYOND = 0.1
"""So far beyond 0 and 1 quantized probabilities may reach: a range may be a little wide."""


@dataclass(frozen=True)
class Classes:
    """How many classes there are to choose from, and how many different ones are chosen."""

    count: int
    chosen: int


def classes_of(outputs: Outputs) -> Classes | None:
    """The classes of the first output, as `top1` and `agreement` see them; None without samples."""
    scores = first_output(outputs)
    if not scores.size:
        return None
    return Classes(class_scores(scores[:1]).shape[1], len(np.unique(chosen_classes(scores))))


def class_scores(scores: Array) -> Float64:
    """Scores [samples, …] as float64 [samples, classes]; -inf for NaN, which never wins, so that a
    broken sample counts as wrong.

    A single score is of the second of two classes: where all are in 0 to 1 its probability, else a
    logit.
    """
    flat = scores.reshape(len(scores), -1).astype(np.float64)
    if flat.shape[1] == 1:
        finite = flat[np.isfinite(flat)]
        is_probability = bool((np.abs(finite - 0.5) <= 0.5 + _BEYOND).all())
        flat = np.hstack([1 - flat if is_probability else -flat, flat])
    return np.where(np.isnan(flat), -np.inf, flat)


def class_exists(flat: Float64, classes: Classed) -> npt.NDArray[np.bool_]:
    """Whether the network has the class of each sample; `flat` as class_scores gives them."""
    return np.asarray((classes >= 0) & (classes < flat.shape[1]), np.bool_)


def scores_of(flat: Float64, classes: Classed) -> Float64:
    """The score of the class of each sample, float64 [samples]; -inf where there is none."""
    exists = class_exists(flat, classes)
    own = flat[np.arange(len(flat)), np.where(exists, classes, 0)]
    return np.where(exists, own, -np.inf)


def chosen_classes(scores: Array) -> Array:
    """The index of the highest score of each sample, int64 [samples]; -1 where all are NaN."""
    flat = class_scores(scores)
    return np.where(np.isneginf(flat).all(axis=1), -1, np.argmax(flat, axis=1))
