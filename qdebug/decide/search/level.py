"""The cheapest set of layers to raise, where each is raised to one precision or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, combinations

import numpy as np

from qdebug.decide.search.minimal import minimal_part, shortest_prefix
from qdebug.decide.search.noise import Mask, NoiseModel
from qdebug.decide.search.problem import Measurement

Chosen = frozenset[str]
"""Names of the layers that are raised."""

SMALL = 12
"""Layers: of so many, all sets are considered."""
_PATIENCE, _PATIENCE_EACH = 4, 1 / 8
"""Sets that may fail in a row, and more for each layer, before an exchange pass ends."""
_EACH = 4
"""Sets asked for, for each layer, where only verdicts are known."""
_WORTH = 5e-3
"""The share of its cost that asking for a set must be expected to save."""
_MARGINS = (0.0, 0.1, 0.3, 0.7)
"""How far below the noise that may pass sets are looked for, as a logarithm."""
_CLOSEST = 12
"""Layers that an exchange puts in, and pairs of which it leaves out: those of most and of least
noise for their cost."""
_MISSES = 8
"""Cheaper sets that failed, those of least noise, to which one layer more is added."""
_DOUBT = 0.05
"""Of few layers, how many cheaper sets that pass may be expected among those not asked for."""


class Level:
    """Layers at their costs, and what was measured of sets of them.

    Attributes:
        asked: every set that was asked for, and its measurement.
    """

    def __init__(
        self,
        costs: dict[str, float],
        estimates: Sequence[float],
        measure: Callable[[Chosen], Measurement],
    ) -> None:
        """The set of all layers is known to pass, and the empty one to fail; both are asked for.

        Args:
            costs: of raising each layer, in order of execution.
            estimates: see Item.noise.
            measure: the predicate.
        """
        self._costs, self._measure = costs, measure
        self._place = {name: at for at, name in enumerate(costs)}
        self._estimates = dict(zip(costs, estimates, strict=True))
        self.asked: dict[Chosen, Measurement] = {}
        self._model: NoiseModel | None = None
        self.holds(())
        self.holds(costs)
        nothing, everything = (m.noise for m in self.asked.values())
        if nothing and everything is not None and math.isfinite(nothing + everything):
            self._model = NoiseModel(estimates, nothing, everything)

    def holds(self, chosen: Iterable[str]) -> bool:
        """The verdict on a set."""
        key = frozenset(chosen)
        if key not in self.asked:
            self.asked[key] = self._measure(key)
        return self.asked[key].passed

    def cheapest(self) -> Chosen:
        """The shortest prefix that holds, in the order of gain per cost; made cheaper by exchanges
        and minimal."""
        order = self._order(self._costs)
        best = frozenset(order[: shortest_prefix(order, self.holds)])
        if len(self._costs) > SMALL:  # before it is minimal, which takes a question for each layer
            best = self._exchanged(best)
        best = frozenset(minimal_part(self._order(best), self.holds))
        return self._exchanged(best)

    def total(self, chosen: Iterable[str]) -> float:
        """What raising them costs."""
        return math.fsum(self._costs[name] for name in chosen)

    def _order(self, names: Iterable[str]) -> list[str]:
        """Those first that take away most noise for their cost, as far as it is known."""
        gain = self._learned()
        return sorted(names, key=lambda name: (-self._per_cost(gain, name), self._place[name]))

    def _per_cost(self, gain: dict[str, float], name: str) -> float:
        return gain[name] / self._costs[name] if self._costs[name] else math.inf

    def _learned(self) -> dict[str, float]:
        """What each layer is believed to add to the noise."""
        if self._model is None:
            return self._estimates
        seen = {s: m.noise for s, m in self.asked.items() if _is_number(m.noise)}
        del seen[frozenset(self._costs)]
        self._model.fit(self._left_out(seen), [x for x in seen.values() if x is not None])
        return dict(zip(self._costs, self._model.contributions.tolist(), strict=True))

    def _left_out(self, sets: Collection[Chosen]) -> Mask:
        mask = np.ones((len(sets), len(self._costs)), np.bool_)
        for row, chosen in zip(mask, sets, strict=True):
            row[[self._place[name] for name in chosen]] = False
        return mask

    def _exchanged(self, best: Chosen) -> Chosen:
        """`best`, or cheaper sets that passed, asked for in turn until they are not worth it."""
        failed, patience = 0, _PATIENCE + int(len(self._costs) * _PATIENCE_EACH)
        while failed < patience or self._is_small:
            candidate = self._promising(best) if self._model else self._undecided(best)
            if candidate is None:
                break
            if self.holds(candidate):
                best, failed = candidate, 0
            else:
                failed += 1
        return best

    def _promising(self, best: Chosen) -> Chosen | None:
        """The set that saves most times its chance to pass; None where none is worth asking for."""
        assert self._model is not None
        gain, most = self._learned(), self._most_that_passes()
        cost = self.total(best)
        sets = dict.fromkeys(self._all() if self._is_small else self._near(best, gain, most))
        least = 1e-9 if self._is_small else _WORTH
        saved = {s: cost - self.total(s) for s in sets if s not in self.asked}
        saved = {s: x for s, x in saved.items() if x > least * cost}
        if not saved:
            return None
        chances = self._model.chances(self._left_out(saved), most)
        worth = chances * np.array([*saved.values()])
        at = int(np.argmax(worth))
        asks = chances.sum() > _DOUBT if self._is_small else worth[at] > _WORTH * cost
        return [*saved][at] if asks else None

    def _undecided(self, best: Chosen) -> Chosen | None:
        """Where no noise is measured: of few layers, the largest cheaper set that is no part of one
        that failed; if it fails, it decides about most others."""
        if not self._is_small or len(self.asked) >= _EACH * len(self._costs):
            return None
        failed = [s for s, m in self.asked.items() if not m.passed]
        cost = self.total(best) * (1 - 1e-9)
        left = [s for s in self._all() if self.total(s) < cost and not any(s <= f for f in failed)]
        return max(left, key=lambda s: (len(s), -self.total(s)), default=None)

    @property
    def _is_small(self) -> bool:
        return len(self._costs) <= SMALL

    def _all(self) -> Iterator[Chosen]:
        sizes = range(len(self._costs))
        return map(frozenset, chain.from_iterable(combinations(self._costs, k) for k in sizes))

    def _near(self, best: Chosen, gain: dict[str, float], most: float) -> Iterator[Chosen]:
        """The cheapest sets by what is learned; `best` with one or two layers exchanged for none or
        one; and what failed by little, with one layer more."""
        order = sorted(gain, key=lambda name: self._per_cost(gain, name))
        for margin in _MARGINS:
            yield self._greedy(order, gain, most * math.exp(-margin))
        out = [name for name in order if name in best]
        into = order[::-1]
        for names in [*combinations(out, 1), *combinations(out[:_CLOSEST], 2)]:
            rest = best.difference(names)
            yield rest
            yield from self._with_one(rest, [name for name in into if name not in best])
        failed = {s: m.noise for s, m in self.asked.items() if not m.passed and _is_number(m.noise)}
        cheaper = [s for s in failed if self.total(s) < self.total(best)]
        for chosen in sorted(cheaper, key=lambda s: failed[s] or 0.0)[:_MISSES]:
            yield from self._with_one(chosen, [name for name in into if name not in chosen])

    def _with_one(self, chosen: Chosen, names: Sequence[str]) -> Iterator[Chosen]:
        return (chosen | {name} for name in names[:_CLOSEST])

    def _greedy(self, order: Sequence[str], gain: dict[str, float], most: float) -> Chosen:
        """The layers that cost most for their noise stay low, as long as there is room."""
        assert self._model is not None
        room, raised = most - self._model.base, set(gain)
        for name in order:
            if gain[name] <= room:
                room -= gain[name]
                raised.remove(name)
        return frozenset(raised)

    def _most_that_passes(self) -> float:
        """The noise that is expected to be the most: half-way, in logarithms, between the largest
        that passed and the smallest that failed."""
        noise = [(m.noise, m.passed) for m in self.asked.values() if _is_number(m.noise)]
        passing = max((x for x, passed in noise if x is not None and passed), default=0.0)
        failing = min((x for x, passed in noise if x is not None and not passed), default=0.0)
        return math.sqrt(passing * failing) if failing > passing > 0 else passing or failing


def _is_number(noise: float | None) -> bool:
    return noise is not None and math.isfinite(noise)
