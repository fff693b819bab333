"""The user's own calibrator: a function that receives a histogram and returns amax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import Calibrator
from qdebug.errors import UsageError
from qdebug.inmemory import InMemory
from qdebug.userfile import (
    UserCodeProblem,
    function_of,
    last_line,
    load_file,
    name_of,
    raising_line,
)
from qdebug.wording import option

_PROBLEM = UserCodeProblem(UsageError, "QD-USAGE-CALIBRATOR-FUNCTION", "calibrator")
_LARGEST = float(np.finfo(np.float32).max)


def load_calibrator(spec: str) -> Calibrator:
    """The calibrator of `file.py:function`, or of a function that is `InMemory`; its name is that
    of the function.

    The function gets a TensorHistogram (`amax`, `bins`, `edges()`, `magnitude_percentile(p)`, …)
    and returns a number >= 0.

    Raises:
        UsageError: there is no such file or function, or, when it is called, it raises or returns
            something else.
    """
    if isinstance(spec, InMemory):
        return Calibrator(str(spec), _checked(spec.value, spec, None))
    source, _, name = spec.rpartition(":")
    path = Path(source)
    if not source.endswith(".py") or not name:
        raise UsageError(
            f"{option('calibrator')}: '{spec}'",
            "Write file.py:function.",
            code="QD-USAGE-CALIBRATOR-FUNCTION",
        )
    function = function_of(load_file(path, _PROBLEM), name, spec, _PROBLEM)
    return Calibrator(name, _checked(function, spec, path))


def calibrator_in_memory(function: Callable[[TensorHistogram], float]) -> InMemory:
    """The spec of a function in memory, for `load_calibrator`."""
    return InMemory(name_of(function), function)


def _checked(
    function: Callable[..., Any], spec: str, path: Path | None
) -> Callable[[TensorHistogram], float]:
    """`function`, with errors that say whose it is."""
    named = option("calibrator", spec)

    def amax(histogram: TensorHistogram) -> float:
        try:
            value = float(function(histogram))
        except Exception as error:  # the user's code may raise anything
            message = f"{named} raised {last_line(error)}"
            raise UsageError(
                message, raising_line(error, path), code="QD-USAGE-CALIBRATOR-RESULT"
            ) from error
        if not 0 <= value <= _LARGEST:  # False for NaN
            raise UsageError(
                f"{named} returned {value:g}",
                "Return a number >= 0, within float32.",
                code="QD-USAGE-CALIBRATOR-RESULT",
            )
        return value

    return amax
