"""The predicate of a search that goes on with the held-out samples: hold on both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qdebug.decide.search.problem import Measurement, Pins


@dataclass(frozen=True)
class CombinedPredicate:
    """Measures sets on the samples searched, and those that hold there on the held-out ones too.

    The value is that of the samples that are closer to failing, or fail.

    Attributes:
        searched: measures sets on the samples searched, in order.
        at_once: how many of them together.
        held_out: measures sets on the held-out samples.
        known: what earlier searches measured on the samples searched, in the same way.
    """

    searched: Callable[[Sequence[Pins]], Iterable[Measurement]]
    at_once: int
    held_out: Callable[[Sequence[Pins]], Mapping[Pins, Measurement]]
    known: Mapping[Pins, Measurement]

    def __call__(self, sets: Sequence[Pins]) -> Iterator[Measurement]:
        """One measurement for each set, in order, each as soon as it is there."""
        for start in range(0, len(sets), self.at_once):
            group = sets[start : start + self.at_once]
            new = [pins for pins in group if pins not in self.known]
            found = {p: replace(self.known[p], seconds=0.0) for p in group if p in self.known}
            found |= dict(zip(new, self.searched(new), strict=True))
            held = self.held_out([pins for pins in group if found[pins].passed])
            for pins in group:
                yield _worse(found[pins], held[pins]) if pins in held else found[pins]


def _worse(searched: Measurement, held: Measurement) -> Measurement:
    """The one that fails or has less slack, with the noise of `searched`, so that a model of the
    noise compares like with like."""
    seconds = searched.seconds + held.seconds
    if not held.passed or _slack(held) < _slack(searched):
        return replace(held, noise=searched.noise, seconds=seconds, held_out=True)
    return replace(searched, seconds=seconds)


def _slack(measurement: Measurement) -> float:
    return math.inf if measurement.slack is None else measurement.slack
