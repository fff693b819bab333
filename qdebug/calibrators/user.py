"""The user's own calibrator: `file.py:function`, which receives a histogram and returns amax."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import Calibrator
from qdebug.errors import UsageError
from qdebug.userfile import function_of, last_line, load_file, raising_line

_LARGEST = float(np.finfo(np.float32).max)


def load_calibrator(spec: str) -> Calibrator:
    """The calibrator of `file.py:function`; its name is that of the function.

    The function gets a TensorHistogram (`amax`, `bins`, `edges()`, `magnitude_percentile(p)`, …)
    and returns a number >= 0.

    Raises:
        UsageError: there is no such file or function, or, when it is called, it raises or returns
            something else.
    """
    source, _, name = spec.rpartition(":")
    path = Path(source)
    if not source.endswith(".py") or not name:
        raise UsageError(f"--calibrator: '{spec}'", "Write file.py:function.")
    module = load_file(path, "--calibrator", UsageError)
    function = function_of(module, name, spec, "--calibrator", UsageError)

    def amax(histogram: TensorHistogram) -> float:
        try:
            value = float(function(histogram))
        except Exception as error:  # the user's code may raise anything
            message = f"--calibrator {spec} raised {last_line(error)}"
            raise UsageError(message, raising_line(error, path)) from error
        if not 0 <= value <= _LARGEST:  # False for NaN
            raise UsageError(
                f"--calibrator {spec} returned {value:g}", "Return a number >= 0, within float32."
            )
        return value

    return Calibrator(name, amax)
