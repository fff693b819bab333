"""The predicate of a search that goes on with the held-out samples: hold on both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qdebug.pipeline.bisect.evaluation import Evaluator
from qdebug.pipeline.bisect.verify import Verifier
from qdebug.search.problem import Measurement, Pins


@dataclass(frozen=True)
class CombinedPredicate:
    """Measures sets on the samples searched, and those that hold there on the held-out ones too.

    The value is that of the samples that are closer to failing, or fail.

    Attributes:
        known: what earlier searches measured on the samples searched, in the same way.
    """

    searched: Evaluator
    held_out: Verifier
    known: Mapping[Pins, Measurement]

    def __call__(self, sets: Sequence[Pins]) -> Iterator[Measurement]:
        """One measurement for each set, in order, each as soon as it is there."""
        at_once = self.searched.at_once
        for start in range(0, len(sets), at_once):
            group = sets[start : start + at_once]
            new = [pins for pins in group if pins not in self.known]
            found = {p: replace(self.known[p], seconds=0.0) for p in group if p in self.known}
            found |= dict(zip(new, self.searched(new), strict=True))
            held = self.held_out.measure([pins for pins in group if found[pins].passed])
            for pins in group:
                yield _worse(found[pins], held[pins]) if pins in held else found[pins]


def _worse(searched: Measurement, held: Measurement) -> Measurement:
    """The one that fails or has less slack, with the noise of `searched`, so that a model of the
    noise compares like with like."""
    worse = held if not held.passed or _slack(held) < _slack(searched) else searched
    seconds = searched.seconds + held.seconds
    return replace(worse, noise=searched.noise, seconds=seconds)


def _slack(measurement: Measurement) -> float:
    return math.inf if measurement.slack is None else measurement.slack
