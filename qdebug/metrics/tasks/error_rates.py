"""Error rates of read text, by jiwer."""

from __future__ import annotations

from typing import Literal

from qdebug.errors import MetricError, required
from qdebug.metrics.tasks.text import Lines


def error_rate(found: Lines, truth: Lines, what: Literal["cer", "wer"]) -> float:
    """Edits over all lines for each character or word of the truth.

    Raises:
        MetricError: jiwer is not installed, or the truth has no text.
    """
    library = required("jiwer", f"metric {what}", code="QD-METRIC-EXTRA", error=MetricError)
    # jiwer refuses an empty truth: what is read where nothing stands are insertions.
    pairs = list(zip(truth.texts, found.texts, strict=True))
    there = [(one, other) for one, other in pairs if one.strip()]
    if not there:
        raise MetricError(
            "an error rate needs true text, and these samples have none",
            "Give samples with text in them.",
            code="QD-METRIC-LABELS",
        )
    process = library.process_characters if what == "cer" else library.process_words
    counted = process([one for one, _ in there], [other for _, other in there])
    of = counted.hits + counted.substitutions + counted.deletions
    edits = counted.substitutions + counted.deletions + counted.insertions
    added = (other for one, other in pairs if not one.strip())
    edits += sum(len(other if what == "cer" else other.split()) for other in added)
    return float(edits / of)
