"""Word error rate: edits for each word of the truth, by jiwer."""

from __future__ import annotations

from qdebug.metrics.tasks.cer import loss
from qdebug.metrics.tasks.error_rates import error_rate
from qdebug.metrics.tasks.text import Lines

__all__ = ["loss", "score"]


def score(found: Lines, truth: Lines) -> float:
    """Over all lines: edits of all, for each word of all."""
    return error_rate(found, truth, "wer")
