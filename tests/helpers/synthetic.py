"""Synthetic predicates: what a search sees of a network, without one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qdebug.decide.search.find import Budget, SearchResult, find
from qdebug.decide.search.problem import Item, Measurement, Pins, PinTo, SearchProblem
from qdebug.types import Precision

FP16, FP32 = Precision.FP16, Precision.FP32
BASE = 1e-6
"""Noise with every layer raised."""


@dataclass
class Predicate:
    """A target: which sets of raised layers pass, and the noise they leave, where it is known.

    Attributes:
        calls: what was evaluated, in order.
    """

    judge: Callable[[frozenset[str]], bool]
    noise: Callable[[frozenset[str]], float] | None = None
    threshold: float | None = None
    calls: list[Pins] = field(default_factory=list)

    def __call__(self, pins: Pins) -> Measurement:
        self.calls.append(pins)
        raised = frozenset(name for name, _ in pins)
        noise = self.noise(raised) if self.noise else None
        slack = None
        if noise is not None and self.threshold is not None:
            slack = self.threshold - noise
        return Measurement(noise, self.judge(raised), noise, 0.01, slack)


def layers(count: int) -> list[str]:
    return [f"/layer.{i}/Conv" for i in range(count)]


def problem(
    names: Sequence[str],
    costs: Sequence[float] | None = None,
    estimates: Sequence[float] | None = None,
    pin_to: PinTo = PinTo.FP16,
) -> SearchProblem:
    """Layers at one cost and without estimates, unless they are given."""
    costs = costs or [1.0] * len(names)
    estimates = estimates or [0.0] * len(names)
    rows = zip(names, costs, estimates, strict=True)
    return SearchProblem(
        tuple(Item(n, {FP16: c, FP32: 3 * c}, e) for n, c, e in rows), pin_to=pin_to
    )


def needing(culprits: Sequence[str]) -> Predicate:
    """Passes if and only if all culprits are raised."""
    needed = frozenset(culprits)
    return Predicate(lambda raised: needed <= raised)


def additive(
    contributions: Mapping[str, float], threshold: float, deviation: float = 0.0
) -> Predicate:
    """Passes if the noise of what is not raised is at most `threshold`.

    Args:
        deviation: of the logarithm of the noise from the sum; the same for a set every time.
    """

    def noise(raised: frozenset[str]) -> float:
        total = BASE + math.fsum(x for n, x in contributions.items() if n not in raised)
        if not deviation:
            return total
        return total * math.exp(deviation * random.Random(repr(sorted(raised))).gauss(0, 1))

    return Predicate(lambda raised: noise(raised) <= threshold, noise, threshold)


def search(
    predicate: Predicate, of: SearchProblem, most: int | None = None, **more: Any
) -> SearchResult:
    """Run a search of at most so many evaluations, and check that it evaluated nothing twice."""
    result = find(of, predicate, Budget(most), **more)
    assert len(result.history) == len(predicate.calls) == len(set(predicate.calls))
    return result


def names_of(pins: Pins) -> set[str]:
    return {name for name, _ in pins}
