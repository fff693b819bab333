"""The one way a search evaluates: every set of pins once, within a budget, on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from qdebug.decide.search.journal import Journal
from qdebug.decide.search.problem import Measurement, Pinned, Pins
from qdebug.result import Inline

Evaluate = Callable[[Sequence[Pins]], Iterable[Measurement]]
"""Measures candidates, one result each, in order. One that yields each result as soon as it exists
loses the least when it is killed."""


class BudgetSpent(Exception):  # noqa: N818 - it ends a search, which is no error
    """A new evaluation was asked for, and none is left."""


@dataclass(frozen=True)
class Evaluation(Pinned):
    """One candidate of a search.

    Attributes:
        replayed: it came from the journal, and took no time now.
    """

    measurement: Inline[Measurement]
    replayed: bool = False


class Oracle:
    """Answers for sets of pins; each is evaluated once.

    What the journal holds counts as an evaluation when it is first asked for, so that a search that
    is resumed asks, counts and finds the same as one that was never interrupted. It costs no time:
    the time limit is that of this process. An evaluation that is under way when it is reached is
    finished.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        *,
        journal: Journal | None = None,
        max_evaluations: int | None = None,
        time_limit_s: float | None = None,
        started: float | None = None,
        reserve_s: Callable[[Sequence[Evaluation]], float] = lambda _: 0.0,
        clock: Callable[[], float] = time.monotonic,
        on_evaluation: Callable[[Evaluation], None] | None = None,
    ) -> None:
        """Nothing is evaluated yet. `on_evaluation` is called after each, in order. The time limit
        counts from when the clock showed `started`; None is now. `reserve_s`: what is to be left
        of it for what follows a search that evaluated so much."""
        self._evaluate = evaluate
        self._journal = journal
        self._max_evaluations = max_evaluations
        self._time_limit_s = time_limit_s
        self._clock = clock
        self._started = clock() if started is None else started
        self._reserve_s = reserve_s
        self._on_evaluation = on_evaluation
        self._memo: dict[Pins, Evaluation] = {}

    @property
    def history(self) -> tuple[Evaluation, ...]:
        """Everything evaluated, in order."""
        return tuple(self._memo.values())

    @property
    def evaluations(self) -> int:
        """How many sets were evaluated, those from the journal included."""
        return len(self._memo)

    def known(self, pins: Pins) -> Measurement | None:
        """What `pins` gave, if they have been asked for."""
        found = self._memo.get(pins)
        return found.measurement if found else None

    def ask(self, pins: Pins) -> Measurement:
        """The measurement of `pins`. Raises as `ask_all` does."""
        return self.ask_all([pins])[0]

    def ask_all(self, sets: Sequence[Pins]) -> list[Measurement]:
        """The measurements of several sets, in order; they may be evaluated in parallel.

        Raises:
            BudgetSpent: not all could be evaluated; those that could are in the history.
        """
        new = [pins for pins in dict.fromkeys(sets) if pins not in self._memo]
        limit = self._max_evaluations
        left = len(new) if limit is None else max(0, limit - len(self._memo))
        self._evaluate_new(new[:left])
        if left < len(new):
            raise BudgetSpent(f"the limit of {limit} evaluations is reached")
        return [self._memo[pins].measurement for pins in sets]

    def _evaluate_new(self, new: Sequence[Pins]) -> None:
        recorded = self._journal.recorded if self._journal else {}
        fresh = [pins for pins in new if pins not in recorded]
        results = iter(self._evaluate(fresh)) if fresh else iter(())
        for pins in new:
            if pins in recorded:
                self._remember(Evaluation(pins, recorded[pins], replayed=True))
                continue
            self._check_time()
            measurement = next(results, None)
            if measurement is None:
                raise RuntimeError("an evaluation gave fewer results than it was asked for")
            if self._journal:
                self._journal.append(pins, measurement)
            self._remember(Evaluation(pins, measurement))

    def _check_time(self) -> None:
        limit = self._time_limit_s
        if limit is None:
            return
        elapsed, reserve = self._clock() - self._started, self._reserve_s(self.history)
        if elapsed + reserve < limit:
            return
        if self._memo:
            kept = f", with about {reserve:.2g} s of it for checking the answer" if reserve else ""
            raise BudgetSpent(f"the time limit of {limit:g} s is reached{kept}")
        after = f", and checking an answer about {reserve:.2g} s" if reserve else ""
        raise BudgetSpent(
            f"the time limit of {limit:g} s leaves nothing for the search: what comes before it "
            f"takes {elapsed:.2g} s{after}"
        )

    def _remember(self, evaluation: Evaluation) -> None:
        self._memo[evaluation.pins] = evaluation
        if self._on_evaluation:
            self._on_evaluation(evaluation)
