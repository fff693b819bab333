"""The cheapest set of a few layers, without asking for all of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdebug.search.problem import Verdict
from qdebug.search.strategies.base import Chosen, Found
from qdebug.search.strategies.belief import Belief
from qdebug.search.strategies.shrink import prove

MOST = 12
"""Layers: 4096 sets, held as the bits of an integer."""
_SURE = 3.0
"""Standard deviations."""
_VOTES = 3
"""Sets that must have failed, where raising a layer was seen to hurt."""

Bits = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def optimum(belief: Belief, best: Chosen) -> Found:
    """The cheapest set that passes, starting from `best`, which does.

    A cheaper set is left out if it is part of one that failed: raising less does not help. Where
    two answers contradict that (a set passed, and failed with more layers raised), it takes
    `_VOTES` such sets. And it is left out where the noise model is sure: the noise that it expects
    is `_SURE` standard deviations above every noise that passed and the smallest that failed.
    """
    return _Small(belief, best).run()


class _Small:
    """The state: for every set of layers, whether it may still be the answer."""

    def __init__(self, belief: Belief, best: Chosen) -> None:
        self._belief = belief
        self._best = best
        count = len(belief.names)
        self._sets: Bits = np.arange(1 << count, dtype=np.int64)
        self._members: Flags = (self._sets[:, None] >> np.arange(count)) & 1 == 1
        self._costs = self._members @ belief.costs
        self._contradicted = False
        self._by_model = False

    def run(self) -> Found:
        """Ask until no set may be the answer but the best one."""
        self._ask_for_all_but_one()
        while True:
            open_sets = self._open()
            if open_sets.any():
                self._belief.ask([self._chosen(self._next(open_sets))])
            elif (proven := prove(self._belief, self._best)) == self._best:
                return Found(self._best, self._reason())
            else:
                self._best = proven

    def _ask_for_all_but_one(self) -> None:
        """Is a layer of the answer in every answer? Nothing leaves out more sets at once."""
        everything, belief = frozenset(self._belief.names), self._belief
        for name in sorted(self._best, key=belief.names.index):
            is_open = self._open()
            if not (is_open & ~self._members[:, belief.names.index(name)]).any():
                continue
            if not belief.expects(everything - {name}):
                belief.ask([everything - {name}])

    def _reason(self) -> str:
        if self._contradicted or self._by_model:
            return "no cheaper set is expected to pass"
        return "no cheaper set passes, unless raising a layer can hurt"

    def _open(self) -> Flags:
        """The sets that are cheaper than the best, and neither asked for nor left out."""
        answers = self._belief.answers
        passed = [chosen for chosen, answer in answers.items() if answer.passed]
        failed = [s for s, answer in answers.items() if answer.verdict is Verdict.FAIL]
        self._contradicted = any(chosen < other for chosen in passed for other in failed)
        self._best = min([self._best, *passed], key=self._belief.cost)
        is_open: Flags = self._costs < self._belief.cost(self._best) * (1 - 1e-9)
        is_open &= self._held_by(failed) < (_VOTES if self._contradicted else 1)
        is_open[[self._bits(chosen) for chosen in answers]] = False
        hopeless = is_open & self._hopeless()
        self._by_model = bool(hopeless.any())
        return is_open & ~hopeless

    def _held_by(self, failed: list[Chosen]) -> Bits:
        """For every set, how many of those that failed it is a part of."""
        votes = np.zeros(len(self._sets), np.int64)
        for chosen in failed:
            bits = self._bits(chosen)
            votes += self._sets | bits == bits
        return votes

    def _hopeless(self) -> Flags:
        """The sets that the noise model is sure of."""
        belief = self._belief
        if belief.model is None or not belief.trusted:
            return np.zeros(len(self._sets), np.bool_)
        bound = max(belief.link.passing, belief.link.failing)
        above = np.log(belief.model.predict(self._members) / bound)
        return np.asarray(above > _SURE * belief.model.deviation(self._members))

    def _next(self, is_open: Flags) -> int:
        """The cheapest that is expected to pass; else the one that, failing, leaves out most."""
        belief = self._belief
        if belief.model is not None:
            expected = is_open & (belief.model.predict(self._members) <= belief.link.threshold())
            if expected.any():
                return int(np.argmin(np.where(expected, self._costs, np.inf)))
        parts = is_open.astype(np.int64)
        for bit in range(self._members.shape[1]):
            low = parts.reshape(-1, 2, 1 << bit)
            low[:, 1] += low[:, 0]
        return int(np.argmax(np.where(is_open, parts, -1)))

    def _bits(self, chosen: Chosen) -> int:
        return int(self._belief.mask(chosen) @ (1 << np.arange(len(self._belief.names))))

    def _chosen(self, bits: int) -> Chosen:
        return frozenset(n for i, n in enumerate(self._belief.names) if bits >> i & 1)
