"""Values as users write them: sizes in bytes, lists with commas, differences of a metric."""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Gt, Lt
from pydantic import BeforeValidator

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(value: object) -> int:
    """Bytes for "512M", "2G", "1.5GiB" or a plain number.

    Raises:
        ValueError: it is none of these.
    """
    body = str(value).strip().lower().removesuffix("b").removesuffix("i")
    unit = body[-1:] if body[-1:] in _UNITS else ""
    number = _number(body.removesuffix(unit))
    if not 0 < number < math.inf:
        raise ValueError("invalid size; write for example 512M or 2G")
    return int(number * 2 ** _UNITS[unit])


def values_of(given: object) -> tuple[object, ...]:
    """Several values, each once, from "a,b", from one value, or from a list of either.

    Objects that are not text, such as functions, stay as they are.

    Raises:
        ValueError: there is none, or one is a list or a mapping itself.
    """
    items = given if isinstance(given, (list, tuple)) else [given]
    found: list[object] = []
    for item in items:
        if isinstance(item, bool):  # YAML reads off and on as truth values
            found.append("on" if item else "off")
        elif isinstance(item, (str, int, float)):
            found += filter(None, (part.strip() for part in str(item).split(",")))
        elif isinstance(item, (list, tuple, set, dict)):
            raise ValueError("a list or a mapping in place of a value; write each value by itself")
        else:
            found.append(item)
    if not found and items:
        raise ValueError("no value; give one or more with commas, or leave it out")
    return tuple(dict.fromkeys(found))


def parse_difference(value: object) -> float:
    """A difference of two values of a metric, which may not be written as a percentage.

    Raises:
        ValueError: it is negative or not a number.
    """
    text = str(value).strip()
    number = _number(text)
    if not 0 <= number < math.inf:
        percent = _number(text.removesuffix("%")) / 100
        example = "write for example 0.01"
        if text.endswith("%") and percent >= 0:
            example = f"write {percent:g} for {text} of a metric from 0 to 1"
        raise ValueError(f"invalid difference of a metric; {example}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Difference = Annotated[float, BeforeValidator(parse_difference)]
Seconds = Annotated[float, Gt(0)]
Share = Annotated[float, Gt(0), Lt(1)]
