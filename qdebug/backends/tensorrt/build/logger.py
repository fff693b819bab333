"""The one logger a process gives to TensorRT, and the log of one build.

TensorRT takes the first logger it is given for the whole process, so what listens changes, not the
logger. Its calls come from C++ that no exception may cross.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LOG = logging.getLogger(__name__)
"""Gets every message too."""

_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I", "VERBOSE": "V"}


@dataclass(frozen=True)
class LogMessage:
    """One message.

    Attributes:
        severity: "INTERNAL_ERROR", "ERROR", "WARNING", "INFO" or "VERBOSE".
        text: as TensorRT gave it; may have several lines.
    """

    severity: str
    text: str


class LogCollector:
    """Where TensorRT's messages go: to whoever collects them, else nowhere."""

    def __init__(self) -> None:
        self._listeners: list[list[LogMessage]] = []

    def add(self, severity: Any, text: str) -> None:
        """Take a message; never raises."""
        message = LogMessage(getattr(severity, "name", str(severity)), str(text))
        LOG.debug("[%s] %s", message.severity, message.text)
        for messages in self._listeners:
            messages.append(message)

    @contextmanager
    def collecting(self) -> Iterator[list[LogMessage]]:
        """The messages of the `with` block, a list that grows."""
        messages: list[LogMessage] = []
        self._listeners = [*self._listeners, messages]
        try:
            yield messages
        finally:
            self._listeners = [x for x in self._listeners if x is not messages]


def make_logger(trt: Any, collector: LogCollector) -> Any:
    """An `ILogger` of the TensorRT module `trt` that passes everything to `collector`."""

    class CollectingLogger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # pybind11: a trampoline without it crashes

        def log(self, severity: Any, msg: str) -> None:
            collector.add(severity, msg)

    return CollectingLogger()


def log_text(messages: Sequence[LogMessage]) -> str:
    """The log as TensorRT's own Python logger would print it, without the time of day:
    `[TRT] [V] message`, further lines of a message as they are."""
    return "".join(f"[TRT] [{_LETTERS.get(m.severity, 'V')}] {m.text}\n" for m in messages)
