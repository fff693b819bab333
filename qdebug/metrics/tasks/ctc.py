"""How likely a recognizer finds the true text: connectionist temporal classification."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.losses import LEAST_PROBABILITY, are_probabilities
from qdebug.metrics.tasks.text import Lines
from qdebug.types import Array


def ctc_losses(found: Lines, truth: Lines, reference: Lines) -> Float64:
    """−log p of each line's true text, float64 [samples], over all paths of the frames that read it
    (Graves et al. 2006, equations 5 to 8, in logarithms). A text that is too long for the frames
    counts as one with the least probability in each. Whether scores are probabilities, the
    `reference`, FP32, tells.

    Measured on quantized variants of a text recognizer: it orders 7 of 324 pairs surely wrongly,
    where FP32's own reading is the truth; noise 34, margins of the frames 25 and more.
    """
    assert found.frames is not None and reference.frames is not None
    probabilities = are_probabilities(reference.frames[0].astype(np.float64))
    losses = []
    for frames, text in zip(found.frames, truth.texts, strict=True):
        states = [found.blank]
        for number in found.classes_of(text):
            states += [number, found.blank]
        losses.append(_loss(_log_probabilities(frames, states, probabilities), states, found.blank))
    return np.array(losses, np.float64)


def _loss(logs: Float64, states: list[int], blank: int) -> float:
    """Of one line; `logs` are those of its states in each frame, [frames, states]."""
    every = np.array(states)
    may_skip = np.zeros(len(states), bool)  # the blank before, where another character follows
    may_skip[2:] = (every[2:] != blank) & (every[2:] != every[:-2])
    ways = np.full(len(states), -np.inf)
    ways[:2] = logs[0, :2]
    for frame in logs[1:]:
        moved = np.concatenate([[-np.inf], ways[:-1]])
        skipped = np.concatenate([[-np.inf, -np.inf], ways[:-2]])[: len(ways)]
        before = np.logaddexp(np.logaddexp(ways, moved), np.where(may_skip, skipped, -np.inf))
        ways = before + frame
    most = -len(logs) * float(np.log(LEAST_PROBABILITY))
    return min(most, -float(np.logaddexp.reduce(ways[-2:])))


def _log_probabilities(frames: Array, states: list[int], probabilities: bool) -> Float64:
    """Of the states in each frame; NaN is no probability."""
    wide = np.nan_to_num(frames.astype(np.float64), nan=0.0 if probabilities else -np.inf)
    if probabilities:
        return np.asarray(np.log(np.maximum(wide[:, states], LEAST_PROBABILITY)), np.float64)
    top = wide.max(axis=1, keepdims=True)
    whole = top + np.log(np.exp(wide - top).sum(axis=1, keepdims=True))
    return np.asarray(np.maximum(wide[:, states] - whole, np.log(LEAST_PROBABILITY)), np.float64)
