"""A whole search: is there anything to do, can it be done, and the cheapest way to do it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from qdebug.decide.search.level import Chosen, Level
from qdebug.decide.search.minimal import minimal_part
from qdebug.decide.search.pareto import Point, pareto
from qdebug.decide.search.problem import Evaluate, Measurement, Pinned, Pins, SearchProblem
from qdebug.formats.registry import order_of
from qdebug.result import Inline
from qdebug.types import Precision


class Outcome(StrEnum):
    """How a search ended.

    `nothing-needed`: the target holds with no item raised. `found`: the search ended.
    `impossible`: the target fails with every item raised. `unfinished`: the budget was spent.
    """

    NOTHING_NEEDED = "nothing-needed"
    FOUND = "found"
    IMPOSSIBLE = "impossible"
    UNFINISHED = "unfinished"


class BudgetSpent(Exception):  # noqa: N818 - it ends a search, which is no error
    """A new evaluation was asked for, and none is left."""


@dataclass(frozen=True)
class Budget:
    """When a search stops with the best that it found.

    Attributes:
        evaluations: how many sets may be evaluated; None for any number.
        seconds: that all may take, since the clock of `time.monotonic` was at `started`.
        reserve: what is to be left of them, in evaluations.
    """

    evaluations: int | None = None
    seconds: float = math.inf
    started: float = 0.0
    reserve: float = 0.0

    def check(self, history: Sequence[Evaluation]) -> None:
        """Raises BudgetSpent where a search that evaluated so much may evaluate no more."""
        if self.evaluations is not None and len(history) >= self.evaluations:
            raise BudgetSpent(f"the limit of {self.evaluations} evaluations is reached")
        kept = self.reserve * max((e.measurement.seconds for e in history), default=0.0)
        if time.monotonic() + kept >= self.started + self.seconds:
            raise BudgetSpent(f"the time limit of {self.seconds:g} s is reached")


@dataclass(frozen=True)
class Evaluation(Pinned):
    """One candidate of a search."""

    measurement: Inline[Measurement]


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        pins: the answer, with the pins that are always there. Where nothing passed, only those.
        achieved: the measurement of `pins`; None where nothing passed.
        baseline: with no item raised; None where the budget did not allow for it.
        ceiling: with every item raised; None where it was not asked for.
        ceiling_pins: how far they were raised for that: to FP16 where it suffices.
        minimal: each pin that may be left out was seen to be needed: `pins` fails without it.
        cost: of `pins`, without those that are always there.
        history: every candidate that was evaluated, in order.
        reason: what else is known about the answer, or why there is none.
        pareto: the evaluated candidates that no other beats in cost and noise.
    """

    outcome: Outcome
    pins: Pins
    achieved: Measurement | None
    baseline: Measurement | None
    ceiling: Measurement | None
    ceiling_pins: Pins
    minimal: bool
    cost: float
    history: tuple[Evaluation, ...]
    reason: str
    pareto: tuple[Point, ...]


def find(
    problem: SearchProblem,
    evaluate: Evaluate,
    budget: Budget = Budget(),
    *,
    first: Sequence[Pins] = (),
    on_evaluation: Callable[[Sequence[Evaluation]], None] = lambda _: None,
    knee_by_value: bool = False,
) -> SearchResult:
    """The cheapest pins that are found with which the target holds.

    What is returned was evaluated and passed, and nothing cheaper was that passed. With `AUTO` and
    `LADDER`, items go to the cheapest precision with all of them in which the target holds, and
    each of the answer is lowered afterwards to the cheapest that holds. Where a precision that
    costs nothing leaves less noise with all of them, the search starts from there.

    Args:
        evaluate: the predicate; it is asked once for each set.
        first: sets that are tried before: the answer costs no more than one of them that passes.
        on_evaluation: is given the history after each evaluation.
        knee_by_value: see `by_value` of pareto.
    """
    search = _Search(problem, evaluate, budget, on_evaluation)
    try:
        outcome, pins, reason = search.run(first)
    except BudgetSpent as spent:
        outcome, pins, reason = Outcome.UNFINISHED, search.cheapest_passing(), str(spent)
    known = search.known
    achieved = known.get(pins)
    return SearchResult(
        outcome=outcome,
        pins=pins,
        achieved=achieved if achieved and achieved.passed else None,
        baseline=known.get(problem.always),
        ceiling=known.get(search.ceiling) if search.ceiling else None,
        ceiling_pins=search.ceiling,
        minimal=is_minimal(problem, pins, known.get),
        cost=problem.cost(pins),
        history=search.history,
        reason=reason,
        pareto=pareto(
            (
                Point(e.pins, 0, problem.cost(e.pins), e.measurement.noise or 0.0, e.measurement)
                for e in search.history
                if e.measurement.noise is not None and not math.isnan(e.measurement.noise)
            ),
            by_value=knee_by_value,
        ),
    )


def is_minimal(
    problem: SearchProblem, pins: Pins, known: Callable[[Pins], Measurement | None]
) -> bool:
    """`pins` pass, and with one of them left out were all evaluated, and failed."""
    found, without = known(pins), [known(pins - {pin}) for pin in pins - problem.always]
    return found is not None and found.passed and all(m and not m.passed for m in without)


class _Search:
    """One search.

    Attributes:
        known: the measurement of every set that was asked for.
        ceiling: the last set asked for as one with everything raised.
    """

    def __init__(
        self,
        problem: SearchProblem,
        evaluate: Evaluate,
        budget: Budget,
        on_evaluation: Callable[[Sequence[Evaluation]], None],
    ) -> None:
        self.known: dict[Pins, Measurement] = {}
        self.ceiling: Pins = frozenset()
        self._problem, self._evaluate, self._budget = problem, evaluate, budget
        self._on_evaluation = on_evaluation

    @property
    def history(self) -> tuple[Evaluation, ...]:
        return tuple(Evaluation(pins, found) for pins, found in self.known.items())

    def run(self, first: Sequence[Pins]) -> tuple[Outcome, Pins, str]:
        always = self._problem.always
        if self._ask(always).passed:
            return Outcome.NOTHING_NEEDED, always, "the target holds without raising any layer"
        for pins in first:
            self._ask(pins)
        level: dict[str, Precision] = {}
        least, floor = _noise(self.known[always]), dict[str, Precision]()
        for level in self._levels():
            self.ceiling = always | frozenset(level.items())
            found = self._ask(self.ceiling)
            if found.passed:
                break
            if not self._problem.cost(self.ceiling) and _noise(found) < least:
                least, floor = _noise(found), level  # better for nothing
        else:
            why = self.known[self.ceiling].failure
            built = f"the model cannot be built or run: {why}" if why else "the target fails"
            return Outcome.IMPOSSIBLE, always, f"with every layer raised {built}"
        pins = self._lowered(self._cheapest(level, floor))
        seen = self.cheapest_passing()  # the first sets, and those on another level
        if self._problem.cost(seen) < self._problem.cost(pins):
            pins = seen
        return Outcome.FOUND, self._needed(pins), ""

    def cheapest_passing(self) -> Pins:
        """Of what was evaluated; the pins that are always there where nothing passed."""
        passing = [pins for pins, found in self.known.items() if found.passed]
        return min(passing, key=self._problem.cost, default=self._problem.always)

    def _ask(self, pins: Pins) -> Measurement:
        """Raises BudgetSpent."""
        if pins not in self.known:
            self._budget.check(self.history)
            self.known[pins] = self._evaluate(pins)
            self._on_evaluation(self.history)
        return self.known[pins]

    def _levels(self) -> list[dict[str, Precision]]:
        """What every item is raised to: one precision, or each that there is, the cheapest first
        and of two at one cost the one of more bits; items without it go as high as they may."""
        items, only = self._problem.items, self._problem.pin_to.precision
        every = dict.fromkeys(p for item in items for p in item.costs)
        levels = [
            {item.name: p if p in item.costs else item.highest for item in items}
            for p in ([only] if only else sorted(every, key=order_of, reverse=True))
        ]
        return sorted(levels, key=lambda level: self._problem.cost(frozenset(level.items())))

    def _cheapest(self, level: dict[str, Precision], floor: dict[str, Precision]) -> Pins:
        """The cheapest set that is found with its items on a level, the others on `floor`."""

        def pins_of(chosen: Chosen) -> Pins:
            raised = {**floor, **{name: level[name] for name in chosen}}
            return self._problem.always | frozenset(raised.items())

        costs = {item.name: item.costs[level[item.name]] for item in self._problem.items}
        estimates = [item.noise for item in self._problem.items]
        return pins_of(
            Level(costs, estimates, lambda chosen: self._ask(pins_of(chosen))).cheapest()
        )

    def _needed(self, pins: Pins) -> Pins:
        """Without the pins that cost nothing, in groups, as far as it holds; then without one pin
        after the other, the dearest first, until it fails without any."""
        cost = {pin: self._problem.cost(frozenset({pin})) for pin in pins - self._problem.always}
        noise = {item.name: item.noise for item in self._problem.items}
        free = sorted((p for p in cost if not cost[p]), key=lambda p: (-noise[p[0]], p))
        others = pins.difference(free)
        pins = others.union(minimal_part(free, lambda some: self._ask(others.union(some)).passed))
        for pin in sorted(filter(cost.get, others), key=lambda p: (-cost[p], p)):
            if self._ask(pins - {pin}).passed:
                return self._needed(pins - {pin})
        return pins

    def _lowered(self, pins: Pins) -> Pins:
        """With each pin in the cheapest precision that holds, one after the other."""
        if self._problem.pin_to.precision is not None:
            return pins
        costs = {item.name: item.costs for item in self._problem.items}
        for name, precision in sorted(
            pins - self._problem.always, key=lambda p: -costs[p[0]][p[1]]
        ):
            own = costs[name]
            at_cost = {own[p]: p for p in sorted(own, key=order_of)}  # of most bits
            for lower in (at_cost[x] for x in sorted(at_cost) if x < own[precision]):
                changed = pins - {(name, precision)} | {(name, lower)}
                if self._ask(changed).passed:
                    pins = changed
                    break
        return pins


def _noise(found: Measurement) -> float:
    return math.inf if found.noise is None or math.isnan(found.noise) else found.noise
