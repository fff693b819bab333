"""The area under the receiver operating characteristic: how often a sample of a class has a higher
score of it than a sample of another class, ties counting half."""

from __future__ import annotations

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.classes import Classed, class_scores
from qdebug.metrics.tasks.top1 import loss
from qdebug.types import Array
from qdebug.wording import option

__all__ = ["loss", "score"]


def score(found: Array, truth: Classed) -> float:
    """The mean over the classes that have samples, each against the rest; of one or two scores that
    of the last class (scikit-learn's roc_auc_score, and its macro average with `ovr`).

    Raises:
        MetricError: all samples are of one class.
    """
    scores = class_scores(found)
    count = scores.shape[1]
    if count <= 2:
        return _area(scores[:, -1], truth == 1)
    return float(np.mean([_area(scores[:, c], truth == c) for c in np.unique(truth)]))


def _area(scores: Array, own: Array) -> float:
    """The statistic of Mann and Whitney (1947), as a share of the pairs."""
    positive, negative = int(own.sum()), int((~own).sum())
    if not positive or not negative:
        raise MetricError(
            f"{option('metric', 'auroc')} needs samples of more than one class",
            "Give samples of several classes.",
            code="QD-METRIC-LABELS",
        )
    from scipy.stats import rankdata

    ranks = rankdata(scores)[own].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))
