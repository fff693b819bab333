"""The calibrators by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from qdebug.calibrators.entropy import entropy_amax
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.mean_max import mean_max_amax
from qdebug.calibrators.minmax import minmax_amax
from qdebug.calibrators.mse import mse_amax
from qdebug.calibrators.percentile import percentile_amax
from qdebug.errors import UsageError

_PLAIN: dict[str, Callable[[TensorHistogram], float]] = {
    "minmax": minmax_amax,
    "entropy": entropy_amax,
    "mse": mse_amax,
    "mean-max": mean_max_amax,
}
METHODS = ("minmax", "percentile", "entropy", "mse", "mean-max")
DEFAULT_PERCENTILE = 99.99


@dataclass(frozen=True)
class Calibrator:
    """A named rule from a tensor's histogram to its amax."""

    name: str
    amax: Callable[[TensorHistogram], float]


def parse_method(text: str) -> Calibrator:
    """The calibrator for a name of METHODS, or for "percentile:P".

    Raises:
        UsageError: an unknown method or a percentile out of range.
    """
    name, separator, argument = text.partition(":")
    if name in _PLAIN and not separator:
        return Calibrator(name, _PLAIN[name])
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
