"""The calibrators by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from qdebug.calibrate.histogram import TensorHistogram
from qdebug.calibrate.minmax import minmax_amax
from qdebug.calibrate.percentile import percentile_amax
from qdebug.errors import UsageError

METHODS = ("minmax", "percentile")
DEFAULT_PERCENTILE = 99.99


@dataclass(frozen=True)
class Calibrator:
    """A named rule from a tensor's histogram to its amax."""

    name: str
    amax: Callable[[TensorHistogram], float]


def parse_method(text: str) -> Calibrator:
    """The calibrator for "minmax", "percentile" or "percentile:P".

    Raises:
        UsageError: an unknown method or a percentile out of range.
    """
    name, _, argument = text.partition(":")
    if name == "minmax" and not argument:
        return Calibrator("minmax", minmax_amax)
    if name == "percentile":
        percentile = _percentile(text, argument)
        return Calibrator(
            f"percentile:{percentile:g}", partial(percentile_amax, percentile=percentile)
        )
    close = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.4)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    raise UsageError(
        f"--method: unknown calibrator '{text}'", f"{hint}Known: {', '.join(METHODS)}."
    )


def _percentile(text: str, argument: str) -> float:
    try:
        percentile = float(argument) if argument else DEFAULT_PERCENTILE
    except ValueError:
        percentile = 0.0
    if not 0 < percentile <= 100:
        raise UsageError(
            f"--method: '{text}' is no percentile", "Write for example percentile:99.99."
        )
    return percentile
