"""The user's own calibrator: `file.py:function`, which receives a histogram and returns amax."""

from __future__ import annotations

import importlib.util
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qdebug.calibrate.histogram import TensorHistogram
from qdebug.calibrate.methods import Calibrator
from qdebug.errors import UsageError


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
    if not path.is_file():
        raise UsageError(f"--calibrator: {path}: no such file")
    function = _load(spec, path, name)

    def amax(histogram: TensorHistogram) -> float:
        try:
            value = float(function(histogram))
        except Exception as error:  # the user's code may raise anything
            last = traceback.format_exception_only(error)[-1].strip()
            raise UsageError(f"--calibrator {spec} raised {last}") from error
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"--calibrator {spec} returned {value}", "Return a number >= 0.")
        return value

    return Calibrator(name, amax)


def _load(spec: str, path: Path, name: str) -> Callable[[TensorHistogram], Any]:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found and found.loader  # a .py path always has a loader
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:  # the user's file may raise anything
        last = traceback.format_exception_only(error)[-1].strip()
        raise UsageError(f"--calibrator: {path} cannot be loaded: {last}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"--calibrator: '{spec}': there is no function '{name}'")
    return function  # type: ignore[no-any-return]
