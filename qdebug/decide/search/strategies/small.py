"""The cheapest set of a few layers, without asking for all of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from qdebug.decide.search.model import Floats
from qdebug.decide.search.problem import CandidateVerdict
from qdebug.decide.search.strategies.base import Chosen, Found
from qdebug.decide.search.strategies.belief import Belief
from qdebug.decide.search.strategies.shrink import AT_ONCE, prove

MOST = 12
"""Layers: 4096 sets, held as the bits of an integer."""
DOUBT = 0.05
"""How many cheaper sets that pass may be expected among those not asked for."""
EACH = 20
"""Sets asked for, for each layer: then the search ends in doubt."""
_VOTES = 3
"""Sets that must have failed, where raising a layer was seen to hurt and noise says nothing."""

Bits = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def optimum(belief: Belief, best: Chosen) -> Found:
    """The cheapest set that passes, starting from `best`, which does.

    Where noise is measured, nothing is assumed about what raising a layer does: every cheaper set
    has a chance to pass, by the model's prediction and its deviation, beside the largest noise that
    may pass. Sets are asked for, those first that save most times their chance, until at most
    `DOUBT` of the others are expected to pass. Without noise, a set that is part of one that failed
    is left out: raising less does not help. Where two answers contradict that (a set passed, and
    failed with more layers raised), it takes `_VOTES` such sets.
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

    def run(self) -> Found:
        """Ask until no set may be the answer but the best one."""
        self._ask_for_all_but_one()
        while True:
            is_open = self._open()
            chances = self._chances(is_open)
            doubt = float(chances.sum())
            few = int(is_open.sum()) <= AT_ONCE
            if is_open.any() and (few or doubt > DOUBT) and not self._spent:
                sets = [self._chosen(i) for i in self._next(is_open, chances, few)]
                self._belief.ask(sets)
                continue
            asked, best = len(self._belief.answers), self._best
            self._best = prove(self._belief, best)
            if self._best == best and len(self._belief.answers) == asked:
                return Found(best, self._reason(is_open, doubt), int(is_open.sum()))

    @property
    def _spent(self) -> bool:
        return len(self._belief.answers) >= EACH * len(self._belief.names)

    def _ask_for_all_but_one(self) -> None:
        """Is a layer of the answer in every answer? Nothing leaves out more sets at once."""
        everything, belief = frozenset(self._belief.names), self._belief
        for name in sorted(self._best, key=belief.names.index):
            chances = self._chances(self._open())
            if not chances[~self._members[:, belief.names.index(name)]].any():
                continue
            if not belief.expects(everything - {name}):
                belief.ask([everything - {name}])

    def _open(self) -> Flags:
        """The sets that are cheaper than the best, and were not asked for."""
        answers = self._belief.answers
        passed = [chosen for chosen, answer in answers.items() if answer.passed]
        self._best = min([self._best, *passed], key=self._belief.cost)
        is_open: Flags = self._costs < self._belief.cost(self._best) * (1 - 1e-9)
        is_open[[self._bits(chosen) for chosen in answers]] = False
        return is_open

    def _chances(self, is_open: Flags) -> Floats:
        """How likely each set is to pass; 0 for those that are not open."""
        belief = self._belief
        if belief.model is not None:
            bound = max(belief.link.passing, belief.link.failing)
            chances = np.zeros(len(self._sets))
            chances[is_open] = belief.chances(self._members[is_open], bound)
            return chances
        passed = [chosen for chosen, answer in belief.answers.items() if answer.passed]
        failed = [
            s for s, answer in belief.answers.items() if answer.verdict is CandidateVerdict.FAIL
        ]
        self._contradicted = any(chosen < other for chosen in passed for other in failed)
        kept = self._held_by(failed) < (_VOTES if self._contradicted else 1)
        return np.asarray(is_open & kept, np.float64)

    def _held_by(self, failed: list[Chosen]) -> Bits:
        """For every set, how many of those that failed it is a part of."""
        votes = np.zeros(len(self._sets), np.int64)
        for chosen in failed:
            bits = self._bits(chosen)
            votes += self._sets | bits == bits
        return votes

    def _next(self, is_open: Flags, chances: Floats, few: bool) -> list[int]:
        """What to ask for: all where few are left; else what saves most times its chance; without
        a model the set that, failing, leaves out most."""
        belief = self._belief
        if few:
            return [int(i) for i in np.flatnonzero(is_open)]
        if belief.model is not None:
            worth = chances * (belief.cost(self._best) - self._costs)
            return [int(np.argmax(worth))]
        may_be = chances > 0
        parts = may_be.astype(np.int64)
        for bit in range(self._members.shape[1]):
            low = parts.reshape(-1, 2, 1 << bit)
            low[:, 1] += low[:, 0]
        return [int(np.argmax(np.where(may_be, parts, -1)))]

    def _reason(self, is_open: Flags, doubt: float) -> str:
        left = int(is_open.sum())
        if not left:
            return "every cheaper set was evaluated and failed"
        cheaper = int((self._costs < self._belief.cost(self._best) * (1 - 1e-9)).sum())
        asked = f"{cheaper - left} of {cheaper} cheaper sets were evaluated, and failed; "
        if self._belief.model is not None:
            chance = f"{100 * (1 - math.exp(-doubt)):.2g} %"
            return (
                f"{asked}the chance that another one passes is {chance} by the model of the noise"
            )
        if self._contradicted or self._spent:
            return f"{asked}that none of the others passes is likely, but not shown"
        return f"{asked}none of the others passes, unless raising a layer can hurt"

    def _bits(self, chosen: Chosen) -> int:
        return int(self._belief.mask(chosen) @ (1 << np.arange(len(self._belief.names))))

    def _chosen(self, bits: int) -> Chosen:
        return frozenset(n for i, n in enumerate(self._belief.names) if bits >> i & 1)
