"""Metrics of classifiers, and of embeddings by their class.

A share of right samples moves only where one crosses the boundary between two classes. The losses
of single samples, float64 [samples], lower is better, move with every change of a score, most where
a decision is close, and tell two networks apart on fewer samples. Scores are [samples, …]; all that
is behind the first axis are classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Float64, Outputs, Reading, first_output, labels_of
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.shares import are_shares, is_single
from qdebug.types import Array
from qdebug.wording import option

Classed = npt.NDArray[np.int64]
"""A class for each sample, int64 [samples]."""

MARGIN_SLOPE = 1.0
"""At a margin of one standard deviation of the reference's margins a decision counts as 73 % sure.
Measured on quantized variants of three classifiers: more pairs are told apart with 1 than with 4,
and none is surely ordered wrongly."""
LEAST_PROBABILITY = 1e-7
"""A softmax in INT8 has zeros, of which the logarithm says nothing."""
LEAST_LOST = 1e-6
"""Of a loss of about 1, as these are, or of FP32's where that is larger: by less a mean loss moves
with the last bits. Of a classifier that is sure of every sample it was 2e-20."""
_PLACES = 5


class Embeddings(Reading):
    """Embeddings as they are, and the class of each sample."""

    def labelled(self, labels: Outputs, found: Array) -> Classed:
        """See Reading."""
        truth = labels_of(labels)
        if truth.size != len(found):
            raise MetricError(
                f"{option('metric', self.name)} needs one class number per sample: there are "
                f"{len(found)} samples, and labels of shape {truth.shape}",
                "Give class numbers instead of one-hot labels, or a function of your own.",
                code="QD-METRIC-LABELS",
            )
        return np.asarray(truth.reshape(-1), np.int64)


class Scores(Embeddings):
    """Scores of classes, [samples, classes]."""

    def found(self, outputs: Outputs, reference: Outputs) -> Float64:
        """See Reading."""
        return found_scores(outputs, reference, self.facts)

    def truth(self, found: Array) -> Classed:
        """See Reading."""
        return chosen_classes(found)


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


def chosen_classes(scores: Array) -> Classed:
    """The index of the highest score of each sample, int64 [samples]; -1 where all are NaN."""
    flat = class_scores(scores)
    return np.where(np.isneginf(flat).all(axis=1), -1, np.argmax(flat, axis=1))


def top1(found: Float64, truth: Classed, _: Float64) -> Float64:
    """1 where a sample is right, else 0."""
    return np.asarray(chosen_classes(found) == truth, np.float64)


def top5(found: Float64, truth: Classed, _: Float64) -> Float64:
    """1 where fewer than five scores are higher than that of the right class, else 0; 0 where that
    is NaN, or the class does not exist."""
    own = _own_scores(found, truth)
    higher = (found > own[:, np.newaxis]).sum(axis=1)
    return np.asarray((higher < _PLACES) & ~np.isneginf(own), np.float64)


def f1(found: Float64, truth: Classed, _: Float64) -> float:
    """F1 of each class that is chosen or right for any sample, averaged over them; 0 of a class
    without a hit: scikit-learn's f1_score with average="macro"."""
    chosen = chosen_classes(found)
    own, right = (np.union1d(chosen, truth)[:, np.newaxis] == each for each in (chosen, truth))
    return float(np.mean(2 * (own & right).sum(1) / (own.sum(1) + right.sum(1))))


def auroc(found: Float64, truth: Classed, _: Float64) -> float:
    """The area under the receiver operating characteristic: how often a sample of a class has a
    higher score of it than a sample of another class, ties counting half (Mann and Whitney 1947).
    The mean over the classes that have samples, each against the rest; of two scores that of the
    last class (scikit-learn's roc_auc_score, and its macro average with `ovr`).

    Raises:
        MetricError: all samples are of one class.
    """
    from scipy.stats import rankdata  # here, as scipy takes its time at every start

    classes = [1] if found.shape[1] <= 2 else np.unique(truth).tolist()
    areas = []
    for number in classes:
        own = truth == number
        positive, negative = int(own.sum()), int((~own).sum())
        if not positive or not negative:
            raise MetricError(
                f"{option('metric', 'auroc')} needs samples of more than one class",
                "Give samples of several classes.",
                code="QD-METRIC-LABELS",
            )
        ranks = rankdata(found[:, number])[own].sum()
        areas.append((ranks - positive * (positive + 1) / 2) / (positive * negative))
    return float(np.mean(areas))


def recall(found: Array, truth: Classed, _: Array, at: int) -> Float64:
    """1 where one of the `at` nearest other samples by cosine is of the same class, else 0:
    recall@K of retrieval (Jégou et al. 2011)."""
    nearest = np.argsort(-_cosines(found), axis=1, kind="stable")[:, : min(at, len(found) - 1)]
    return np.asarray((truth[nearest] == truth[:, np.newaxis]).any(axis=1), np.float64)


def recall_loss(found: Array, truth: Classed, reference: Array, at: int) -> Float64:
    """The soft form of a wrong neighbour: see soft_wrong, with the cosine of the nearest sample of
    the same class minus that of the nearest of another one as the margin; 0 of a sample without the
    one or the other."""
    same = truth[:, np.newaxis] == truth
    margins = []
    for cosines in map(_cosines, (found, reference)):
        nearest = (np.where(alike, cosines, -np.inf).max(axis=1) for alike in (same, ~same))
        with np.errstate(invalid="ignore"):  # Inf − Inf
            margins.append(np.subtract(*nearest))
    after, before = margins
    return np.where(np.isfinite(before), soft_wrong(after, before), 0.0)


def _cosines(found: Array) -> Float64:
    """Of the samples with each other, float64 [samples, samples]; -inf with themselves."""
    flat = found.reshape(len(found), -1).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.nan_to_num(flat / np.where(norms > 0, norms, 1))
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return np.asarray(cosines, np.float64)


def margin_loss(found: Array, truth: Array, reference: Array, *, place: int = 1) -> Float64:
    """The soft form of "wrong", 0 to 1: see soft_wrong.

    The margin is the score of the right class minus the highest other one, or, with `place`, that
    on this place among the others; of probabilities, their logarithms. 1 where the score of the
    right class is NaN, or the class does not exist.

    Args:
        found, reference: scores of the network and of FP32, of one shape.
        truth: class indices [samples].
    """
    before, after = class_scores(reference), class_scores(found)
    if are_probabilities(before):
        before, after = (np.log(np.maximum(flat, LEAST_PROBABILITY)) for flat in (before, after))
    return soft_wrong(_margins(after, truth, place), _margins(before, truth, place))


def top5_loss(found: Array, truth: Classed, reference: Array) -> Float64:
    """See margin_loss, with the margin to the fifth highest other score."""
    return margin_loss(found, truth, reference, place=_PLACES)


def soft_wrong(margins: Float64, before: Float64) -> Float64:
    """σ(−MARGIN_SLOPE · margin / spread), where spread is the standard deviation of the reference's
    margins, which are `before`: of those that are finite; 1 where they do not vary."""
    from scipy.special import expit

    finite = before[np.isfinite(before)]
    spread = (float(np.std(finite)) if finite.size else 0.0) or 1.0
    return np.asarray(expit(-MARGIN_SLOPE * margins / spread), np.float64)


def _own_scores(flat: Float64, classes: Classed) -> Float64:
    """The score of the class of each sample, float64 [samples]; -inf where there is none."""
    exists = (classes >= 0) & (classes < flat.shape[1])
    own = flat[np.arange(len(flat)), np.where(exists, classes, 0)]
    return np.where(exists, own, -np.inf)


def _margins(flat: Float64, right: Array, place: int) -> Float64:
    """The score of the right class minus the highest other one, or that on another `place`, float64
    [samples]; -inf where the sample is broken.

    Args:
        flat: as class_scores gives them, in logarithms if they are probabilities.
    """
    own = _own_scores(flat, right)
    if flat.shape[1] <= place:
        return own
    others = np.where(np.arange(flat.shape[1]) == right[:, np.newaxis], -np.inf, flat)
    with np.errstate(invalid="ignore"):  # Inf − Inf
        margins = own - np.partition(others, -place, axis=1)[:, -place]
    return np.where(np.isnan(margins), -np.inf, margins)


def are_probabilities(flat: Float64) -> bool:
    """Whether every finite row is one of probabilities: FP16 sums to 1 within a thousandth."""
    rows = flat[np.isfinite(flat).all(axis=1)]
    return bool(rows.size and rows.min() >= 0 and np.all(np.abs(rows.sum(axis=1) - 1) < 5e-3))


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
