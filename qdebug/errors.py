"""The one tree of errors. Each carries the exit code the command line ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class QdebugError(Exception):
    """Base of every error qdebug raises on purpose.

    Args:
        message: what is wrong, naming the file, layer, tensor or flag.
        hint: the next step for the user; shown after the message.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(QdebugError):
    """A flag or a combination of flags that cannot be meant."""


class ModelError(QdebugError):
    """The model file cannot be read, or holds what qdebug cannot handle."""


class SampleError(QdebugError):
    """The input data cannot be read, or does not fit the model."""


class PlanError(QdebugError):
    """A precision plan that is not valid, or does not fit the model."""


class StoreError(QdebugError):
    """A run file cannot be written or read."""


class MetricError(QdebugError):
    """A metric or a condition that is unknown, raises, or yields no number."""


class BackendError(QdebugError):
    """A runtime failed to build or to execute a model."""

    exit_code = 3


@contextmanager
def given_by(flag: str) -> Iterator[None]:
    """Errors within, of reading what the user gave with `flag`, name that flag first."""
    try:
        yield
    except QdebugError as error:
        if error.message.startswith("--"):  # it names one already
            raise
        raise type(error)(f"{flag}: {error.message}", error.hint) from error
