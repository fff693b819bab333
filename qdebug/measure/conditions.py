"""Gate conditions such as "output.cosine>=0.99": parsed once, checked against a result."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qdebug.errors import MetricError

SCOPES = ("output", "layer", "tensor", "metric")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": lambda value, bound: value >= bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    "<": lambda value, bound: value < bound,
}
_PATTERN = re.compile(r"^\s*(\w+)(?:\.(\w+))?\s*(>=|<=|>|<)\s*(\S+)\s*$")


@dataclass(frozen=True)
class Condition:
    """`scope.name operator bound`; it must hold for every output, layer or tensor."""

    expression: str
    scope: str
    name: str
    operator: str
    bound: float

    @property
    def figure(self) -> str:
        """What is judged, as it is written: "output.cosine" or "metric"."""
        return f"{self.scope}.{self.name}" if self.name else self.scope


@dataclass(frozen=True)
class Checked:
    """A condition with the worst value found; None when there was nothing to check."""

    expression: str
    value: float | None
    passed: bool


def parse_condition(
    text: str, names: Mapping[str, Sequence[str]], flag: str = "--fail-on"
) -> Condition:
    """Parse `text`, given by `flag`; `names` lists what each scope offers (none for "metric").

    Raises:
        MetricError: the text is not a condition, or names an unknown scope or metric.
    """
    match = _PATTERN.match(text)
    if match is None:
        raise MetricError(
            f"{flag}: '{text}' is not a condition",
            f'Write for example {flag} "output.cosine>=0.99" or "metric>=0.95".',
        )
    scope, name, operator, bound = match.groups()
    _check_known(f"{flag}: '{text}'", "scope", scope, SCOPES)
    if scope == "metric":
        name = name or ""
        if name:
            raise MetricError(f"{flag}: '{text}': 'metric' has no parts", 'Write "metric>=0.95".')
    elif scope == "layer" and name == "local_sqnr_db" and name not in names[scope]:
        raise MetricError(
            f"{flag}: '{text}': local_sqnr_db is not measured here, only by qdebug compare",
            f'Write for example {flag} "layer.sqnr_db>=20", or "output.sqnr_db>=30".',
        )
    else:
        _check_known(f"{flag}: '{text}'", f"metric of scope '{scope}'", name or "", names[scope])
    return Condition(text, scope, name or "", operator, _bound(bound, f"{flag}: '{text}'"))


def parse_value_condition(text: str, names: Sequence[str], flag: str = "--fail-on") -> Condition:
    """Parse `name operator bound`, a condition on one of the values `names`; the scope is "".

    Raises:
        MetricError: the text is not such a condition, or names an unknown value.
    """
    match = _PATTERN.match(text)
    if match is None or match[2]:
        raise MetricError(
            f"{flag}: '{text}' is not a condition", f'Write for example {flag} "{names[0]}>=0.8".'
        )
    _check_known(f"{flag}: '{text}'", "value", match[1], names)
    return Condition(text, "", match[1], match[3], _bound(match[4], f"{flag}: '{text}'"))


def check_condition(condition: Condition, values: Sequence[float | None]) -> Checked:
    """Check all `values`; the worst is reported. A NaN fails, and so does having no value."""
    measured = [v for v in values if v is not None]
    if not measured:
        return Checked(condition.expression, None, False)
    if any(math.isnan(v) for v in measured):
        return Checked(condition.expression, math.nan, False)
    worst = min(measured) if condition.operator.startswith(">") else max(measured)
    passed = _COMPARE[condition.operator](worst, condition.bound)
    return Checked(condition.expression, worst, passed)


def _bound(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise MetricError(f"{where}: '{text}' is not a number")
    return number


def _check_known(where: str, what: str, name: str, known: Sequence[str]) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    raise MetricError(f"{where}: unknown {what} '{name}'", f"{hint}Known: {', '.join(known)}.")
