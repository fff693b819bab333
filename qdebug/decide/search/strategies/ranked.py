"""Strategies that fix an order first, and then only ask how many layers of it to raise."""

from __future__ import annotations

from collections.abc import Sequence

from qdebug.decide.search.strategies.base import Ask, Choice, Found, everything, passes


def rank(choices: Sequence[Choice], ask: Ask) -> Found:
    """The most sensitive layers: 1, 2, 4, … of them until they pass, then binary search between
    the last two counts."""
    order = sorted(choices, key=lambda choice: -choice.noise)
    low, high = 0, 1
    while high < len(order) and not passes(ask, everything(order[:high])):
        low, high = high, 2 * high
    return _smallest(order, ask, low, min(high, len(order)))


def prefix(choices: Sequence[Choice], ask: Ask) -> Found:
    """The first layers of the network: binary search, as `polygraphy debug precision` does it in
    the direction "forward"."""
    return _smallest(choices, ask, 0, len(choices))


def suffix(choices: Sequence[Choice], ask: Ask) -> Found:
    """The last layers of the network: binary search, as `polygraphy debug precision` does it in
    the direction "reverse"."""
    return _smallest(choices[::-1], ask, 0, len(choices))


def _smallest(order: Sequence[Choice], ask: Ask, low: int, high: int) -> Found:
    """Binary search for a count that passes where the one before fails; `high` passes, `low` does
    not."""
    while high - low > 1:
        middle = (low + high) // 2
        if passes(ask, everything(order[:middle])):
            high = middle
        else:
            low = middle
    return Found(everything(order[:high]))
