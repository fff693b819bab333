"""From a set that passes to one in which every layer was seen to be needed.

Adaptive group testing: layers are lowered in batches, each about as likely to pass as to fail, and
a batch that fails is split (generalized binary splitting: Hwang, A method for detecting all
defective members in a population by group testing, 1972), with the number of needed layers
estimated on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qdebug.decide.search.strategies.base import Chosen
from qdebug.decide.search.strategies.belief import Belief

AT_ONCE = 4
"""Layers that are probably needed are asked for together; the same number on every machine."""
_EXPECTED = 1.5
"""How many layers are needed, before anything is known."""


def shrink(belief: Belief, passing: Chosen) -> Chosen:
    """A part of `passing` that passes; each of its layers was needed when it was asked for, with
    others that have gone since."""
    return _Shrinking(belief, passing).run()


def prove(belief: Belief, found: Chosen) -> Chosen:
    """Ask for `found` without each of its layers; what passes is taken, until all of these fail."""
    while True:
        order = belief.removal_order(found)
        for start in range(0, len(order), AT_ONCE):
            few = order[start : start + AT_ONCE]
            smaller = _without_some(belief, found, few)
            if smaller != found:
                found = smaller
                break
        else:
            return found


def _without_some(belief: Belief, found: Chosen, layers: Sequence[str]) -> Chosen:
    """`found` without those of `layers` that it passes without one by one, if it passes without
    all of these; else without the costliest; itself if there is none."""
    sets = [found - {name} for name in layers]
    passing = [s for s, m in zip(sets, belief.ask(sets), strict=True) if m.passed]
    if len(passing) > 1 and belief.passes(together := frozenset.intersection(*passing)):
        return together
    return min(passing, key=belief.cost, default=found)


class _Shrinking:
    """One pass over the layers of a set.

    Attributes:
        found: what passes so far.
        needed: layers without which it failed, when they were asked for.
    """

    def __init__(self, belief: Belief, passing: Chosen) -> None:
        self.found = passing
        self.needed: set[str] = set()
        self._belief = belief
        self._most = len(passing)

    def run(self) -> Chosen:
        """Until every layer was lowered, or is needed."""
        while self.found - self.needed:
            order = self._belief.removal_order(self.found - self.needed)
            if self._belief.trusted:
                self._lower_as_predicted(order)
            else:
                self._lower_or_split(self._even_chance(order))
        return self.found

    def _lower_as_predicted(self, order: Sequence[str]) -> None:
        """All at once that the model says can go; where that is nothing, a few one by one."""
        count = 0
        while count < min(len(order), self._most) and self._belief.expects(
            self.found - set(order[: count + 1])
        ):
            count += 1
        if count > 1:
            smaller = self.found - set(order[:count])
            if self._belief.passes(smaller):
                self.found = smaller
            else:
                self._most = count // 2  # so that wrong predictions cost no more than splitting
            return
        few = order[: 1 if count else AT_ONCE]
        smaller = _without_some(self._belief, self.found, few)
        answers = self._belief.answers
        self.needed |= {n for n in few if not answers[self.found - {n}].passed}
        self.found = smaller

    def _lower_or_split(self, batch: Sequence[str]) -> None:
        """Lower the batch, or all of it up to a layer that is needed."""
        belief, suspects = self._belief, list(batch)
        while not belief.passes(self.found - set(suspects)):
            if len(suspects) == 1:
                self.needed.add(suspects[0])
                return
            half = self._half(suspects)
            if belief.passes(self.found - set(half)):
                self.found -= set(half)
                suspects = suspects[len(half) :]  # what fails without them is known to fail
            else:
                suspects = half
        self.found -= set(suspects)

    def _half(self, batch: Sequence[str]) -> list[str]:
        """The first of a batch with at least two layers, with half of its risk."""
        risks = self._belief.risks
        return _first(batch[:-1], risks, sum(risks[n] for n in batch) / 2)

    def _even_chance(self, order: Sequence[str]) -> list[str]:
        """The first layers, such that with a probability of 1/2 none of them is needed.

        The number of needed layers in a batch is taken as Poisson, with a mean proportional to its
        risk; the rate is estimated from what is decided already (a gamma prior).
        """
        risks = self._belief.risks
        open_risk = sum(risks[n] for n in order)
        rate = (_EXPECTED + len(self.needed)) / (1.0 + max(0.0, 1.0 - open_risk))
        risk = math.log(2) / rate
        if not self.needed:  # at least one is: nothing passes without any
            risk = min(risk, open_risk / 2)
        return _first(order, risks, risk)


def _first(order: Sequence[str], risks: dict[str, float], risk: float) -> list[str]:
    """At least one, and as many as stay within `risk`."""
    count, total = 1, risks[order[0]]
    while count < len(order) and total + risks[order[count]] <= risk * (1 + 1e-9):
        total += risks[order[count]]
        count += 1
    return list(order[:count])
