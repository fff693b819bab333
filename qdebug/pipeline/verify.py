"""The answer of a search, run once more: literally, and on samples that took no part in it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

from qdebug.pipeline.bisect_setup import Setup
from qdebug.pipeline.candidates import CandidateRunner, Engines
from qdebug.pipeline.evaluation import evaluator
from qdebug.pipeline.portion import Portion
from qdebug.search.find import SearchResult
from qdebug.search.outcome import HELD_OUT, Check
from qdebug.search.problem import Measurement, Pins

SEARCHED = "searched samples, literal Q/DQ"
ON_ENGINE = "searched samples, on the engine"
_MOST_TRIED = 8
"""Dearer sets that are tried on held-out samples: with many, one would hold by chance."""


class Verifier:
    """Runs sets of pins on the samples of a portion, on literal Q/DQ. A context manager."""

    def __init__(
        self, setup: Setup, portion: Portion, on: str, engines: Engines | None = None
    ) -> None:
        """Runs the reference. `on` says which samples they are, for people; `engines` runs the
        candidates in place of the simulation.

        Raises:
            QdebugError: the samples cannot be read, the runtime or the metric failed.
        """
        target, layers = setup.target, setup.subject.layers
        self._on = on
        self._always = setup.space.problem.always
        self._known: dict[Pins, Measurement] = {}
        with ExitStack() as stack:
            self._runner = stack.enter_context(
                CandidateRunner(
                    setup.context,
                    setup.model,
                    setup.planned.bound,
                    portion,
                    metric=target.metric,
                    capture=target.captured(layers, setup.model.graph),
                    literal=True,
                    engines=engines,
                )
            )
            at_once = 1 if engines else setup.context.parallel.workers
            self._measure = evaluator(self._runner, target, layers, at_once)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def check(self, pins: Pins) -> Check:
        """What `pins` give, beside nothing pinned."""
        new = [p for p in dict.fromkeys([pins, self._always]) if p not in self._known]
        self._known |= dict(zip(new, self._measure(new), strict=True))
        return Check(
            self._on,
            self._runner.portion.count,
            self._known[pins],
            self._known[self._always],
            self._runner.reference_task,
        )


def holding_out(
    setup: Setup, search: SearchResult, engines: Engines | None = None
) -> tuple[SearchResult, Check, str]:
    """`search` with an answer that holds on the held-out samples too, if there is one among the
    next dearer sets that were found to pass; the check, and what the user must know about it."""
    with Verifier(setup, setup.held_out, HELD_OUT, engines) as verifier:
        first = verifier.check(search.pins)
        if first.answer.passed:
            return search, first, ""
        for dearer in _dearer(setup, search):
            check = verifier.check(dearer.pins)
            if check.answer.passed:
                note = (
                    f"The cheapest set ({len(search.pins)} layers) falls to "
                    f"{_value(first.answer)} on the held-out samples. The next dearer one that "
                    "holds there too was taken, so they took part in the choice."
                )
                return dearer, check, note
        return search, first, ""


def _dearer(setup: Setup, search: SearchResult) -> list[SearchResult]:
    """The search with other answers: sets that passed and cost more, the cheapest first."""
    problem = setup.space.problem
    passed = [
        replace(
            search,
            pins=e.pins,
            achieved=e.measurement,
            cost=problem.cost(e.pins),
            minimal=False,
        )
        for e in search.history
        if e.measurement.passed and problem.cost(e.pins) > search.cost
    ]
    return sorted(passed, key=lambda found: found.cost)[:_MOST_TRIED]


def _value(measured: Measurement) -> str:
    return "no value" if measured.value is None else f"{measured.value:.6g}"
