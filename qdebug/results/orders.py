"""The orders in which tensors are shown: a registry, which settings, results and reports read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdebug.results.ranges import TensorDynamics


@dataclass(frozen=True)
class Order:
    """One order.

    Attributes:
        title: what it is, for people.
        key: to sort by; what has no value goes last, ties by the order of execution.
    """

    title: str
    key: Callable[[TensorDynamics], tuple[float | str, ...]]


def _descending(value: float) -> float:
    return math.inf if math.isnan(value) else -value


ORDERS: Mapping[str, Order] = {
    "crest": Order(
        "hardest to quantize first: by the crest factor, amax / rms",
        lambda t: (_descending(t.crest_factor), t.position),
    ),
    "amax": Order("largest amax first", lambda t: (-t.amax, t.position)),
    "name": Order("by name", lambda t: (t.name, t.position)),
    "order": Order("in execution order", lambda t: (t.position,)),
    "growth": Order(
        "by growth: range of all samples / range of their first half",
        lambda t: (-t.growth, t.position),
    ),
}
"""By the name that users write, the default first."""
