"""Times of whole executions, which `trtexec --exportTimes` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from qdebug.errors import UsageError


@dataclass(frozen=True)
class ExecutionTimes:
    """Executions of an engine.

    Attributes:
        count: how many were measured.
        compute_ms, latency_ms: median of the GPU's computing, and with the copies to and from it;
            None where the file does not say.
    """

    count: int
    compute_ms: float | None
    latency_ms: float | None


def is_times(document: object) -> bool:
    """Whether a JSON document is a list of executions."""
    return (
        isinstance(document, list)
        and bool(document)
        and isinstance(document[0], Mapping)
        and ("computeMs" in document[0] or "latencyMs" in document[0])
    )


def read_times(document: Any, name: str) -> ExecutionTimes:
    """The executions in the JSON.

    Raises:
        UsageError: the document is something else, or a time is not a number.
    """
    if not is_times(document):
        raise UsageError(
            f"{name} does not hold the times of executions",
            "trtexec --exportTimes=FILE writes them.",
            code="QD-USAGE-ENGINE-FILE",
        )
    return ExecutionTimes(
        len(document), _median(document, "computeMs", name), _median(document, "latencyMs", name)
    )


_MOST = 1e300
"""Larger whole numbers are no floats."""


def _median(entries: Sequence[Any], key: str, name: str) -> float | None:
    found = [e[key] for e in entries if isinstance(e, Mapping) and key in e]
    if not all(isinstance(x, int | float) and abs(x) < _MOST for x in found):
        raise UsageError(f"{name}: a '{key}' is not a number", code="QD-USAGE-ENGINE-FILE-DAMAGED")
    return float(median(found)) if found else None
