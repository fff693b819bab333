"""Which class a sample is taken for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.metrics.tasks.base import Float64, Outputs, first_output
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.shares import are_shares, is_single
from qdebug.types import Array

Classed = npt.NDArray[np.int64]
"""A class for each sample, int64 [samples]."""


@dataclass(frozen=True)
class Classes:
    """How many classes there are to choose from, and how many different ones are chosen."""

    count: int
    chosen: int


def classes_of(outputs: Outputs, facts: ModelFacts | None = None) -> Classes | None:
    """The classes of FP32's first output, as `top1` and `agreement` see them; None without
    samples."""
    if not first_output(outputs).size:
        return None
    scores = found_scores(outputs, outputs, facts)
    return Classes(scores.shape[1], len(np.unique(chosen_classes(scores))))


def found_scores(outputs: Outputs, reference: Outputs, facts: ModelFacts | None) -> Float64:
    """The scores of the classes in the first output, float64 [samples, classes]; see class_scores,
    and are_shares for the arguments."""
    scores = first_output(outputs)
    share = is_single(scores.shape) and are_shares(outputs, reference, facts)
    return class_scores(scores, share)


def class_scores(scores: Array, is_share: bool = False) -> Float64:
    """Scores [samples, …] as float64 [samples, classes]; -inf for NaN, which never wins, so that a
    broken sample counts as wrong.

    A single score is of the second of two classes: its probability where it `is_share`, else a
    logit.
    """
    flat = scores.reshape(len(scores), -1).astype(np.float64)
    if is_single(flat.shape):
        flat = np.hstack([1 - flat if is_share else -flat, flat])
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
