"""Character error rate: edits for each character of the truth, by jiwer."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.error_rates import error_rate
from qdebug.metrics.tasks.losses import margins, soft_wrong
from qdebug.metrics.tasks.text import Lines


def score(found: Lines, truth: Lines) -> float:
    """Over all lines: edits of all, for each character of all."""
    return error_rate(found, truth, "cer")


def loss(found: Lines, truth: Lines, reference: Lines) -> Float64:
    """Whether frames are read otherwise than by the reference: the mean over a line's frames of
    what margin_losses gives for the reference's character."""
    if found.frames is None or reference.frames is None:  # read by a function of the user's
        pairs = zip(found.texts, truth.texts, strict=True)
        return np.array([float(one != other) for one, other in pairs], np.float64)
    chosen = [np.argmax(frames, axis=1) for frames in reference.frames]
    before = [margins(f, c) for f, c in zip(reference.frames, chosen, strict=True)]
    spread = float(np.std(np.concatenate(before))) or 1.0
    after = (margins(f, c) for f, c in zip(found.frames, chosen, strict=True))
    return np.array([float(soft_wrong(one, spread).mean()) for one in after], np.float64)
