"""Values as users write them: sizes in bytes, lists with commas, differences of a metric."""

from __future__ import annotations

import math

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(value: object) -> int:
    """Bytes for "512M", "2G", "1.5GiB" or a plain number.

    Raises:
        ValueError: it is none of these.
    """
    body = str(value).strip().lower().removesuffix("b").removesuffix("i")
    unit = body[-1:] if body[-1:] in _UNITS else ""
    try:
        number = float(body.removesuffix(unit) if unit else body)
    except ValueError:
        number = 0.0
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
            found += (part.strip() for part in str(item).split(","))
        elif isinstance(item, (list, tuple, set, dict)):
            raise ValueError("a list or a mapping in place of a value; write each value by itself")
        else:
            found.append(item)
    values = unique(tuple(value for value in found if not isinstance(value, str) or value))
    if not values:
        raise ValueError("no value; give one or more with commas, or leave it out")
    return values


def unique(given: tuple[object, ...]) -> tuple[object, ...]:
    """Several values, each once."""
    found: list[object] = []
    for value in given:  # which may be an object that has no hash
        if not any(value is known or value == known for known in found):
            found.append(value)
    return tuple(found)


def parse_difference(value: object) -> float:
    """A difference of two values of a metric, which may not be written as a percentage.

    Raises:
        ValueError: it is negative or not a number.
    """
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        percent = text.removesuffix("%")
        example = "write for example 0.01"
        if percent != text and percent.replace(".", "", 1).isdigit():
            example = f"write {float(percent) / 100:g} for {text} of a metric from 0 to 1"
        raise ValueError(f"invalid difference of a metric; {example}")
    return number
