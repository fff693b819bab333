"""Gate conditions such as "output.cosine>=0.99": parsed once, checked against a result."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qdebug.errors import MetricError
from qdebug.metrics.tensor import GATED
from qdebug.result import MaybeText
from qdebug.wording import option

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": lambda value, bound: value >= bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    "<": lambda value, bound: value < bound,
}
_PATTERN = re.compile(r"\s*([\w.]+)\s*(>=|<=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True)
class Condition:
    """`scope.name operator bound`; it must hold for every output, part, layer, tensor or stage.

    Attributes:
        expression: as the user wrote it.
        scope: output, part, layer, tensor, stage or metric; "" for a value that has no scope.
        name: of a metric; "" where the scope is "metric".
        operator: ">=", "<=", ">" or "<".
        bound: the number on its right side.
        meaning: the same for people, where the expression does not say it; or "".
    """

    expression: str
    scope: str
    name: str
    operator: str
    bound: float
    meaning: str = ""

    @property
    def words(self) -> str:
        """For people."""
        return self.meaning or self.expression

    def holds_for(self, value: float) -> bool:
        """Whether one value meets it; NaN does not."""
        return _COMPARE[self.operator](value, self.bound)

    @property
    def figure(self) -> str:
        """What is checked, as it is written: "output.cosine" or "metric"."""
        return f"{self.scope}.{self.name}" if self.name else self.scope


@dataclass(frozen=True)
class Checked:
    """A condition with the worst value found.

    Attributes:
        expression: as the user wrote it.
        value: NaN where one is; None where there was nothing to check.
        passed: whether it holds for all values.
        reason: why there was nothing to check, where that is known; or "".
        at: which part of an output has that value; "" of other figures.
    """

    expression: str
    value: float | None
    passed: bool
    reason: MaybeText = ""
    at: MaybeText = ""

    @property
    def figure(self) -> str:
        """What is checked, such as "output.cosine", "metric" or "stage.framework.sqnr_db"."""
        found = re.match(r"\s*([\w.]+)", self.expression)
        return found[1] if found else ""


def parse_condition(
    text: str, names: Mapping[str, Sequence[str]] = GATED, setting: str = "fail_on"
) -> Condition:
    """Parse `text`, the value of `setting`; `names` lists what each scope offers.

    Raises:
        MetricError: the text is not a condition, names an unknown scope or metric, or a metric of
            layers that is not in `names`.
    """
    figure, operator, bound = _parsed(text, _figures(names), setting, "output.cosine>=0.99")
    scope, _, name = figure.partition(".")
    return Condition(text, scope, name, operator, bound)


def parse_value_condition(text: str, names: Sequence[str]) -> Condition:
    """Parse `name operator bound`, a condition of `fail_on` on one of the values `names`; the scope
    is "".

    Raises:
        MetricError: the text is not such a condition, or names an unknown value.
    """
    return Condition(text, "", *_parsed(text, names, "fail_on", f"{names[0]}>=0.8"))


def _figures(names: Mapping[str, Sequence[str]]) -> list[str]:
    """What may stand on the left side of a condition."""
    dotted = [f"{scope}.{name}" for scope, offered in names.items() for name in offered]
    return [*dotted, *(["metric"] if "metric" in names else [])]


def _parsed(
    text: str, figures: Sequence[str], setting: str, example: str
) -> tuple[str, str, float]:
    """The figure, the operator and the bound of a condition."""
    where, match = f"{option(setting)}: '{text}'", _PATTERN.fullmatch(text)
    bound = math.nan
    with contextlib.suppress(ValueError):
        bound = float(match[3]) if match else bound
    if match is None or math.isnan(bound):
        raise MetricError(
            f"{where} is not a figure, an operator (>=, <=, > or <) and a number",
            f"Write for example {option(setting, example)}.",
            code="QD-METRIC-CONDITION-SYNTAX",
        )
    figure = match[1]
    if figure in figures:
        return figure, match[2], bound
    of_layers = {f for f in _figures(GATED) if f.startswith("layer.")}
    if figure in of_layers.difference(figures) and of_layers.intersection(figures):
        raise MetricError(
            f"{where}: {figure} is measured by compare only",
            f"Write for example {option(setting, example)}.",
            code="QD-METRIC-CONDITION-NOT-MEASURED",
        )
    close = [f for f in figures if f.endswith(f".{figure}")]
    close = close or difflib.get_close_matches(figure, figures, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    if "metric" in figures:
        scope = (close or figures)[0].partition(".")[0]
        figures = ["metric", *(f for f in figures if f.startswith(f"{scope}."))]
        hint += f"'metric' is the figure of {option('metric')}, whatever its name. "
    raise MetricError(
        f"{where}: unknown figure '{figure}'",
        f"{hint}Known: {', '.join(figures)}.",
        code="QD-METRIC-CONDITION-NAME",
    )


def check_condition(
    condition: Condition,
    values: Sequence[float | None],
    reason: str = "",
    places: Sequence[str] = (),
) -> Checked:
    """Check all `values`; the worst is reported, with its place where each has one. A NaN fails,
    and so does having no value, for the `reason` given."""
    measured = [v for v in values if v is not None]
    if not measured:
        return Checked(condition.expression, None, False, reason)
    if any(math.isnan(v) for v in measured):
        return Checked(condition.expression, math.nan, False)
    worst = min(measured) if condition.operator.startswith(">") else max(measured)
    at = places[values.index(worst)] if places else ""
    return Checked(condition.expression, worst, condition.holds_for(worst), at=at)
