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
_PATTERN = re.compile(r"^\s*(\w+)(?:\.(\w+(?:\.\w+)?))?\s*(>=|<=|>|<)\s*(\S+)\s*$")


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
    where = f"{option(setting)}: '{text}'"
    examples = _examples(setting, "output.cosine>=0.99", "metric>=0.95")
    scope, name, operator, bound = _parts(text, where, examples)
    if scope not in names and not name:
        raise _without_scope(where, scope, f"{operator}{bound}", setting)
    _check_known(where, "scope", scope, tuple(names))
    if scope == "metric" and name:
        raise _syntax(f"{where}: 'metric' has no parts", examples)
    if scope == "layer" and name in set(GATED["layer"]).difference(names["layer"]):
        raise MetricError(
            f"{where}: {name} is measured by compare only",
            _examples(setting, "layer.sqnr_db>=20", "output.sqnr_db>=30"),
            code="QD-METRIC-CONDITION-NOT-MEASURED",
        )
    if scope != "metric":
        _check_known(where, "metric", name or "", names[scope], f" for scope '{scope}'")
    return Condition(text, scope, name or "", operator, _bound(bound, where))


def parse_value_condition(text: str, names: Sequence[str]) -> Condition:
    """Parse `name operator bound`, a condition of `fail_on` on one of the values `names`; the scope
    is "".

    Raises:
        MetricError: the text is not such a condition, or names an unknown value.
    """
    where = f"{option('fail_on')}: '{text}'"
    examples = _examples("fail_on", f"{names[0]}>=0.8")
    name, part, operator, bound = _parts(text, where, examples)
    if part:
        raise _syntax(f"{where} is not a condition", examples)
    _check_known(where, "value", name, names)
    return Condition(text, "", name, operator, _bound(bound, where))


def _parts(text: str, where: str, examples: str) -> tuple[str, str | None, str, str]:
    """The scope, the name, the operator and the bound of a condition."""
    match = _PATTERN.match(text)
    if match is None:
        raise _syntax(f"{where} is not a condition", examples)
    return match[1], match[2], match[3], match[4]


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


def _examples(setting: str, *conditions: str) -> str:
    return f"Write for example {' or '.join(option(setting, c) for c in conditions)}."


def _without_scope(where: str, word: str, rest: str, setting: str) -> MetricError:
    """The error of a condition that does not say of what, or names a metric by its own name."""
    code = "QD-METRIC-CONDITION-NAME"
    if word in GATED["output"]:
        hint = f"Write for example {option(setting, f'output.{word}{rest}')}."
        return MetricError(f"{where} does not say of which tensors", hint, code=code)
    hint = (
        f"Write {option(setting, f'metric{rest}')} for the figure of {option('metric')}, whatever "
        f"its name; or that of an output, such as {option(setting, 'output.cosine>=0.99')}."
    )
    return MetricError(f"{where}: unknown figure '{word}'", hint, code=code)


def _syntax(what: str, hint: str) -> MetricError:
    return MetricError(what, hint, code="QD-METRIC-CONDITION-SYNTAX")


def _bound(text: str, where: str) -> float:
    with contextlib.suppress(ValueError):
        if not math.isnan(number := float(text)):
            return number
    raise _syntax(f"{where}: '{text}' is not a number", "Compare with a number, such as 0.99.")


def _check_known(where: str, what: str, name: str, known: Sequence[str], of: str = "") -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    raise MetricError(
        f"{where}: unknown {what} '{name}'{of}",
        f"{hint}Known: {', '.join(known)}.",
        code="QD-METRIC-CONDITION-NAME",
    )
