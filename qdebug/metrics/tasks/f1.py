"""F1 of each class, averaged over the classes: scikit-learn's f1_score with average="macro"."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.classes import Classed, chosen_classes
from qdebug.metrics.tasks.top1 import loss
from qdebug.types import Array

__all__ = ["loss", "score"]


def score(found: Array, truth: Classed) -> float:
    """Over the classes that are chosen or right for any sample; 0 of a class without a hit."""
    chosen = chosen_classes(found)
    values = []
    for number in np.union1d(chosen, truth):
        hits = int(((chosen == number) & (truth == number)).sum())
        total = int((chosen == number).sum() + (truth == number).sum())
        values.append(2 * hits / total)
    return float(np.mean(values))
