"""The calibrators by name. Adding one takes a file in this package and an entry here.

Help texts, defaults, the ranges that reports mark and the reference pages all read this list.
Nothing here imports numpy: the command line's `--help` reads it too.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from qdebug.errors import UsageError
from qdebug.wording import as_known, option

if TYPE_CHECKING:
    from qdebug.calibrators.histogram import TensorHistogram
    from qdebug.formats.base import Format


@dataclass(frozen=True)
class Parameter:
    """The number that a calibrator takes after a colon, as in percentile:99.9.

    Attributes:
        name: how help texts call it.
        default: its value where none is given.
        above, up_to: it must be larger than the one, and at most the other.
    """

    name: str
    default: float
    above: float
    up_to: float


@dataclass(frozen=True)
class Method:
    """An entry of the registry.

    `qdebug/calibrators/<name>.py` holds `<name>_amax(histogram) -> float`, with underscores for the
    hyphens of the name. Where there is a parameter, the function takes it as second argument; where
    the range depends on the number format, that is its keyword `form`.

    Attributes:
        name: as users write it.
        summary: where it ends the range, in half a line.
        strength, weakness: when it is a good choice, and when it is not.
        parameter: what it can be told.
        clips: False where its range holds every value that it has seen.
        by_format: its range is the best one for a number format.
    """

    name: str
    summary: str
    strength: str
    weakness: str
    parameter: Parameter | None = None
    clips: bool = True
    by_format: bool = False

    @property
    def usage(self) -> str:
        """How to write it: "minmax", or "percentile[:P]"."""
        return self.name if self.parameter is None else f"{self.name}[:{self.parameter.name}]"

    def load(self) -> Callable[..., float]:
        """The function, whose module is imported now."""
        module = self.name.replace("-", "_")
        function: Callable[..., float] = resolve_name(f"{__package__}.{module}:{module}_amax")
        return function


CALIBRATORS = (
    Method(
        "minmax",
        "the largest magnitude",
        "nothing clips; exact on data like the calibration samples",
        "one outlier makes the step coarse for all other values",
        clips=False,
    ),
    Method(
        "percentile",
        "the P-th percentile of the magnitudes (P = 99.99)",
        "cuts rare outliers by a share that you choose",
        "the right share differs from tensor to tensor",
        Parameter("P", 99.99, above=0, up_to=100),
    ),
    Method(
        "entropy",
        "least KL divergence between the values and their levels, as TensorRT",
        "keeps the shape of long-tailed activations",
        "may clip hard where the tail matters, as in regression and in transformers",
        by_format=True,
    ),
    Method(
        "mse",
        "least squared error of the quantized values",
        "the highest SQNR of each tensor by itself",
        "large values weigh most, whatever the layer makes of them",
        by_format=True,
    ),
    Method(
        "mean-max",
        "the samples' largest magnitudes, averaged",
        "a single extreme sample counts only for its share",
        "every other sample clips a little",
    ),
)
"""All calibrators, in the order in which they are tried; the first is the default."""

METHODS = tuple(method.name for method in CALIBRATORS)
DEFAULT_METHOD = METHODS[0]
NEVER_CLIPPING = frozenset(method.name for method in CALIBRATORS if not method.clips)
"""Calibrators whose range holds every value that they have seen."""


def method_usage() -> str:
    """All calibrators as a help text lists them: "minmax, percentile[:P], …"."""
    return ", ".join(method.usage for method in CALIBRATORS)


@dataclass(frozen=True)
class Calibrator:
    """A named rule from a tensor's histogram to its amax.

    Attributes:
        name: with its parameter, such as "percentile:99.99".
        amax: the range's largest magnitude, which maps to the largest code, such as 127; 0 for a
            tensor that is all 0.
    """

    name: str
    amax: Callable[[TensorHistogram], float]


def parse_method(text: str, form: Format | None = None) -> Calibrator:
    """The calibrator for a name of METHODS, with its parameter after a colon, if it takes one.

    Args:
        form: the format that the tensors are quantized to; None for INT8.

    Raises:
        UsageError: an unknown calibrator, or a parameter out of range.
    """
    name, separator, argument = text.partition(":")
    name = as_known(name, METHODS)
    for method in CALIBRATORS:
        if method.name == name and (method.parameter or not separator):
            return _calibrator(method, text, argument, form)
    close = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.4)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    raise UsageError(
        f"{option('method')}: unknown calibrator '{text}'",
        f"{hint}Known: {method_usage()}.",
        code="QD-USAGE-CALIBRATOR",
    )


def default_calibrators() -> list[Calibrator]:
    """Every calibrator, with the default parameter where it takes one."""
    return [parse_method(name) for name in METHODS]


def _calibrator(method: Method, text: str, argument: str, form: Format | None) -> Calibrator:
    function, parameter = method.load(), method.parameter
    if method.by_format and form is not None:
        function = partial(function, form=form)
    if parameter is None:
        return Calibrator(method.name, function)
    try:
        value = float(argument) if argument else parameter.default
    except ValueError:
        value = float("nan")
    if not parameter.above < value <= parameter.up_to:
        raise UsageError(
            f"{option('method')}: '{text}' is not a valid {method.name}",
            f"{parameter.name} is a number above {parameter.above:g} and at most "
            f"{parameter.up_to:g}: write for example {method.name}:{parameter.default:g}.",
            code="QD-USAGE-CALIBRATOR-PARAMETER",
        )

    def amax(histogram: TensorHistogram) -> float:
        return function(histogram, value)

    return Calibrator(f"{method.name}:{value:.10g}", amax)
