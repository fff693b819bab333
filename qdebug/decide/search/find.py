"""A whole search: is there anything to do, can it be done, and the strategy in between."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from qdebug.decide.search.ladder import below_fp32, steps_of
from qdebug.decide.search.oracle import BudgetSpent, Evaluation, Oracle
from qdebug.decide.search.pareto import Point, pareto
from qdebug.decide.search.problem import Item, Measurement, Pins, PinTo, SearchProblem, pins_of
from qdebug.decide.search.strategies.base import Choice, Chosen, Found, Strategy
from qdebug.formats.registry import order_of
from qdebug.types import Precision

Raised = Mapping[str, Precision]

_HALVINGS = 5
"""Questions about how many layers suffice: then 1/32 of the layers more are raised than that, at
most."""


class Outcome(StrEnum):
    """How a search ended.

    `nothing-needed`: the target holds with no item raised. `found`: the strategy ended.
    `impossible`: the target fails with every item raised. `unfinished`: the budget was spent.
    """

    NOTHING_NEEDED = "nothing-needed"
    FOUND = "found"
    IMPOSSIBLE = "impossible"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        pins: the answer, with the pins that are always there. Where nothing passed (`impossible`,
            or `unfinished` before anything did), only those.
        achieved: the measurement of `pins`; None where nothing passed.
        baseline: with no item raised; None where the budget did not allow for it.
        ceiling: with every item raised; None where it was not asked for.
        ceiling_pins: how far they were raised for that: to FP16 where it suffices.
        minimal: each pin that may be left out was seen to be needed: `pins` fails without it, and,
            under `auto`, with it in FP16 instead of FP32.
        cost: of `pins`, without those that are always there.
        evaluations: how many candidates were evaluated, those from the journal included.
        history: all of them, in order.
        reason: what else is known about the answer, or why there is none.
        cheaper_left: how many cheaper sets were not evaluated; None where the strategy does not
            count them.
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
    evaluations: int
    history: tuple[Evaluation, ...]
    reason: str
    cheaper_left: int | None
    pareto: tuple[Point, ...]


def find(
    problem: SearchProblem,
    oracle: Oracle,
    strategy: Strategy,
    *,
    knee_by_value: bool = False,
    hurried: bool = False,
) -> SearchResult:
    """The cheapest pins with which the target holds, as far as `strategy` finds them.

    What is returned was evaluated and passed, and nothing cheaper was that passed; whether it is
    minimal is read off the evaluations.
    With `PinTo.AUTO`, every item goes to FP16 where the target holds with all of them in FP16; else
    the strategy is asked twice, first for a set in FP32, then for the part of it that FP16 is not
    enough for. With `PinTo.LADDER` the layers climb it together first (see
    `ladder.steps_of`), and the strategy is asked for a set on the rungs below FP32.

    Args:
        knee_by_value: see `by_value` of pareto.
        hurried: the time may be over soon: before everything is raised, which takes longest and is
            the dearest answer, half of the layers are, those of most noise for their cost, then a
            quarter, and so on; all only where half of them fail. The strategy is asked first for a
            part of what passes so.

    Raises:
        QdebugError: what the evaluation or the strategy raised; the journal keeps what was done.
    """
    search = _Search(problem, oracle)
    try:
        outcome, pins, reason = search.run(strategy, hurried=hurried)
    except BudgetSpent as spent:
        outcome, pins, reason = Outcome.UNFINISHED, search.cheapest_passing(), str(spent)
    achieved = oracle.known(pins)
    if achieved is not None and not achieved.passed:
        achieved = None
    return SearchResult(
        outcome=outcome,
        pins=pins,
        achieved=achieved,
        baseline=oracle.known(problem.always),
        ceiling=oracle.known(search.ceiling) if search.ceiling is not None else None,
        ceiling_pins=search.ceiling or frozenset(),
        minimal=achieved is not None and is_minimal(problem, pins, oracle.known),
        cost=problem.cost(pins),
        evaluations=oracle.evaluations,
        history=oracle.history,
        reason=reason,
        cheaper_left=search.cheaper_left if outcome is Outcome.FOUND else None,
        pareto=pareto(problem, oracle.history, by_value=knee_by_value),
    )


@dataclass(frozen=True)
class _Question:
    """What a strategy may ask. See Ask and Expects.

    Attributes:
        low, high: what layers are raised to that are not chosen, and those that are.
    """

    oracle: Oracle
    always: Pins
    low: Raised
    high: Raised

    def __call__(self, sets: Sequence[Chosen]) -> list[Measurement]:
        return self.oracle.ask_all([self._pins(chosen) for chosen in sets])

    def _pins(self, chosen: Chosen) -> Pins:
        return self.always | pins_of({**self.low, **{name: self.high[name] for name in chosen}})


class _Search:
    """One search.

    Attributes:
        ceiling: the last set asked for as one with everything raised.
        cheaper_left: how many cheaper sets were not evaluated; None where that is not known.
    """

    def __init__(self, problem: SearchProblem, oracle: Oracle) -> None:
        self.ceiling: Pins | None = None
        self.cheaper_left: int | None = None
        self._problem = problem
        self._oracle = oracle

    def run(self, strategy: Strategy, *, hurried: bool) -> tuple[Outcome, Pins, str]:
        always = self._problem.always
        if self._oracle.ask(always).passed:
            return Outcome.NOTHING_NEEDED, always, "the target holds without raising any layer"
        if hurried and (first := self._halve()):
            self._choose(strategy, {}, first)
        if self._problem.pin_to is PinTo.LADDER:
            return self._climb(strategy)
        for level in self._levels():
            self.ceiling = always | pins_of(level)
            if self._oracle.ask(self.ceiling).passed:
                break
        else:
            return Outcome.IMPOSSIBLE, always, self._why_impossible()
        found = self._choose(strategy, {}, level)
        raised = {name: level[name] for name in found.chosen}
        pins, reason = always | pins_of(raised), found.reason
        self.cheaper_left = found.cheaper_left
        lower = {n: p for n, p in self._levels()[0].items() if raised.get(n, p) is not p}
        if lower:
            proven = is_minimal(self._problem, pins, self._oracle.known, lowering=False)
            pins, reason = self._lower(strategy, raised, lower), ""
            self.cheaper_left = None  # of sets in FP32 alone
            if proven:
                pins = self._descend(pins)
        seen = self.cheapest_passing()  # the strategy did not ask for all that was evaluated
        if self._problem.cost(seen) < self._problem.cost(pins):
            pins, reason = self._descend(seen), ""
            self.cheaper_left = None
        return Outcome.FOUND, pins, reason

    def _halve(self) -> Raised:
        """The first layers, by the noise that raising each takes away for its cost, as many as a
        binary search that begins in the middle finds to pass; none where it takes them all."""
        items = self._problem.items
        if self._problem.pin_to is PinTo.LADDER:
            steps: Sequence[Raised] = steps_of(items)
        else:
            level = self._levels()[0]
            order = sorted(items, key=lambda item: -_worth(item, level[item.name]))
            steps = [*accumulate(({item.name: level[item.name]} for item in order), operator.or_)]
        sets = [self._problem.always | pins_of(step) for step in steps]
        fails, passes = -1, len(sets) - 1
        for _ in range(_HALVINGS):
            if passes - fails <= 1:
                break
            middle = (fails + passes) // 2
            if self._oracle.ask(sets[middle]).passed:
                passes = middle
                continue
            fails = middle
            if passes == len(sets) - 1 and not self._oracle.ask(sets[-1]).passed:
                break
        return steps[passes] if passes < len(sets) - 1 else {}

    def _climb(self, strategy: Strategy) -> tuple[Outcome, Pins, str]:
        """Up the ladder to the first step with which the target holds, by a binary search; then
        down again, one layer at a time. The same from the set that `strategy` chooses, where none
        needs FP32: the cheaper one is taken."""
        steps = [self._problem.always | pins_of(step) for step in steps_of(self._problem.items)]
        self.ceiling = steps[-1]
        if not self._oracle.ask(self.ceiling).passed:
            return Outcome.IMPOSSIBLE, self._problem.always, self._why_impossible()
        fails, passes = -1, len(steps) - 1
        while passes - fails > 1:
            middle = (fails + passes) // 2
            if self._oracle.ask(steps[middle]).passed:
                passes = middle
            else:
                fails = middle
        found = [self._descend(steps[passes])]
        below = below_fp32(self._problem.items)
        if below and self._oracle.ask(self._problem.always | pins_of(below)).passed:
            chosen = self._choose(strategy, {}, below).chosen
            start = pins_of({name: below[name] for name in chosen})
            found.append(self._descend(self._problem.always | start))
        found.append(self.cheapest_passing())
        pins = min(found, key=self._problem.cost)
        return Outcome.FOUND, self._descend(pins), ""

    def _why_impossible(self) -> str:
        assert self.ceiling is not None
        failure = self._oracle.ask(self.ceiling).failure
        if failure:
            return f"with every layer raised the model cannot be built or run: {failure}"
        return "the target fails even with every layer raised"

    def _levels(self) -> list[Raised]:
        """What every item is raised to: one level, or under `auto` FP16 and then FP32."""
        items, only = self._problem.items, self._problem.pin_to.precision
        if only is not None:
            return [{item.name: only for item in items}]
        lowest = {item.name: min(item.costs, key=order_of) for item in items}
        highest = {item.name: max(item.costs, key=order_of) for item in items}
        return [lowest] if lowest == highest else [lowest, highest]

    def _choose(self, strategy: Strategy, low: Raised, high: Raised) -> Found:
        """Ask `strategy` which layers of `high` to raise that far; the others are as in `low`."""
        ask = _Question(self._oracle, self._problem.always, low, high)
        items = [item for item in self._problem.items if item.name in high]
        return strategy([_choice(item, low.get(item.name), high[item.name]) for item in items], ask)

    def _lower(self, strategy: Strategy, raised: Raised, lower: Raised) -> Pins:
        """Those of `raised` for which `lower` is enough, lowered."""
        always = self._problem.always
        everything = always | pins_of({**raised, **lower})
        if self._oracle.ask(everything).passed:
            return everything
        high = {name: raised[name] for name in lower}
        low = {**raised, **lower}
        found = self._choose(strategy, low, high)
        return always | pins_of({**low, **{n: high[n] for n in found.chosen}})

    def _descend(self, pins: Pins) -> Pins:
        """Leave out or lower one pin after the other, until none can be."""
        while True:
            nearby = _neighbours(self._problem, pins)
            smaller = next((p for p in nearby if self._oracle.ask(p).passed), None)
            if smaller is None:
                return pins
            pins = smaller

    def cheapest_passing(self) -> Pins:
        """Of what was evaluated; the pins that are always there where nothing passed."""
        passing = [e.pins for e in self._oracle.history if e.measurement.passed]
        return min(passing, key=self._problem.cost, default=self._problem.always)


def is_minimal(
    problem: SearchProblem,
    pins: Pins,
    known: Callable[[Pins], Measurement | None],
    *,
    lowering: bool = True,
) -> bool:
    """`pins` with one item left out (or, while `lowering`, in FP16 instead of FP32, or on a lower
    rung of the ladder) were all evaluated, and failed. `known` gives what was measured, None for
    what was not."""
    found = [known(p) for p in _neighbours(problem, pins, lowering)]
    return all(m is not None and not m.passed for m in found)


def _neighbours(problem: SearchProblem, pins: Pins, lowering: bool = True) -> Iterator[Pins]:
    mixed = lowering and problem.pin_to is PinTo.AUTO
    order = {item.name: item for item in problem.items}
    chosen = dict(pins - problem.always)
    if problem.pin_to is PinTo.LADDER:
        for name, precision in sorted(chosen.items()):
            for lower in _lower_rungs(order[name], precision):
                yield pins - {(name, precision)} | lower
        return
    for name in (n for n in order if n in chosen):
        pin = (name, chosen[name])
        yield pins - {pin}
        if mixed and pin[1] is Precision.FP32 and Precision.FP16 in order[name].costs:
            yield pins - {pin} | {(name, Precision.FP16)}


def _lower_rungs(item: Item, precision: Precision) -> Iterator[Pins]:
    yield frozenset()
    for rung in item.rungs:
        if item.costs[rung] < item.costs[precision]:
            yield pins_of({item.name: rung})


def _worth(item: Item, precision: Precision) -> float:
    """The noise that raising it takes away, for its cost."""
    return item.noise / item.costs[precision] if item.costs[precision] else math.inf


def _choice(item: Item, low: Precision | None, high: Precision) -> Choice:
    """The estimate of an item's noise is for the base precision, not for FP16."""
    cost = item.costs[high] - (item.costs[low] if low else 0.0)
    noise = 0.0 if low else item.noise
    return Choice(item.name, max(0.0, cost), noise, item.noise_std, item.block)
