"""Later stages of a command, which must not take with them what earlier ones have measured."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from qdebug.errors import BackendError, QdebugError, is_about_memory, out_of_memory
from qdebug.result import FailedStage, Result
from qdebug.wording import printable

INTERNAL = "QD-INTERNAL"
"""The code of an error that is a defect of qdebug."""
_DEFECT = (
    "This is a defect of qdebug. Please report it, with what the same command prints with -vv and "
    "with what `qdebug doctor` prints."
)
_LONGEST = 1000
_LOG = logging.getLogger(__name__)
ResultT = TypeVar("ResultT", bound=Result)


def attempted(
    stage: str, result: ResultT, work: Callable[[ResultT], ResultT], *, file: str = ""
) -> ResultT:
    """What `work` makes of `result`; where that ends in an error, `result` with the failure.

    KeyboardInterrupt and the like are not caught.

    Args:
        stage: what is attempted, for the user: "causes".
        file: that it writes.
    """
    try:
        return work(result)
    except Exception as error:
        return with_failure(result, stage, error, file=file)


def with_failure(result: ResultT, stage: str, error: Exception, *, file: str = "") -> ResultT:
    """`result`, which says that a stage ended in `error`. The traceback goes to the log."""
    _LOG.debug("%s failed", stage, exc_info=error)
    failures = (*result.failed, replace(_failure(stage, error), file=file))
    return replace(result, failed=failures)  # type: ignore[type-var]


def _failure(stage: str, error: Exception) -> FailedStage:
    if not isinstance(error, QdebugError) and is_about_memory(error):
        error = out_of_memory(str(error))
    if isinstance(error, QdebugError):
        message = error.message.removeprefix(f"{stage}: ")  # of a flag: shown behind it
        return FailedStage(stage, error.code, message, error.hint, error.exit_code)
    last = printable(traceback.format_exception_only(error)[-1].strip())
    return FailedStage(stage, INTERNAL, last[:_LONGEST], _DEFECT, BackendError.exit_code)
