"""From an order of layers to a set that holds and fails without any one of them.

A predicate, an order and two passes: how many of the first layers suffice, and which of these can
go. Neither assumes more than it has asked; where raising a layer can do harm, they ask more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")
Holds = Callable[[Sequence[ItemT]], bool]
"""Whether the target holds with these layers raised. All layers of an order are known to hold."""


def shortest_prefix(order: Sequence[ItemT], holds: Holds[ItemT]) -> int:
    """How many of the first layers hold where one less fails: 1, 2, 4, … of them until they hold,
    then halving between the last two counts."""
    low, high = 0, 1
    while high < len(order) and not holds(order[:high]):
        low, high = high, 2 * high
    high = min(high, len(order))
    while high - low > 1:
        middle = (low + high) // 2
        if holds(order[:middle]):
            high = middle
        else:
            low = middle
    return high


def minimal_part(order: Sequence[ItemT], holds: Holds[ItemT]) -> list[ItemT]:
    """A part of `order` that holds; each of its layers was needed when it was asked for.

    Delta debugging (Zeller & Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002)
    from the end of the order, where layers are needed least: as many as can go are left out at
    once, twice as many each time, and where they cannot, halving finds the last that is needed. The
    next ones are tried in groups of the size that went before, so that needed layers in a row take
    one question each, and one among n takes 2·log2(n).
    """
    end, size = len(order), 1
    needed: list[ItemT] = []
    while end:
        size = min(size, end)
        if holds([*order[: end - size], *needed]):
            end, size = end - size, 2 * size
            continue
        low, high = 0, size
        while high - low > 1:
            middle = (low + high) // 2
            if holds([*order[: end - middle], *needed]):
                low = middle
            else:
                high = middle
        end, size = end - low - 1, max(1, low // 2)
        needed.append(order[end])
    return needed
