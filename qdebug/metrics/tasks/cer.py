"""Character error rate: edits for each character of the truth, by jiwer."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.ctc import ctc_losses
from qdebug.metrics.tasks.error_rates import error_rate
from qdebug.metrics.tasks.text import Lines


def score(found: Lines, truth: Lines) -> float:
    """Over all lines: edits of all, for each character of all."""
    return error_rate(found, truth, "cer")


def loss(found: Lines, truth: Lines, reference: Lines) -> Float64:
    """See ctc_losses; where a function of the user's reads, whether a line is another."""
    if found.frames is not None:
        return ctc_losses(found, truth, reference)
    pairs = zip(found.texts, truth.texts, strict=True)
    return np.array([float(one != other) for one, other in pairs], np.float64)
