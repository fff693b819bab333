"""Search, check the answer, and search again where a check fails, in a way that meets it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from qdebug.errors import UsageError
from qdebug.measure.conditions import Condition
from qdebug.pipeline.bisect.candidates import CandidateRunner, Engines
from qdebug.pipeline.bisect.combined import CombinedPredicate
from qdebug.pipeline.bisect.evaluation import Evaluator, evaluator, search_key
from qdebug.pipeline.bisect.journals import open_journal
from qdebug.pipeline.bisect.setup import Setup
from qdebug.pipeline.bisect.verify import ON_ENGINE, SEARCHED, Verifier
from qdebug.search.find import SearchResult, find
from qdebug.search.journal import Journal
from qdebug.search.oracle import BudgetSpent, Evaluation, Oracle
from qdebug.search.outcome import HELD_OUT, Check, SelectedPoint
from qdebug.search.problem import Measurement, Pins
from qdebug.search.strategies import load_strategy
from qdebug.types import Progress
from qdebug.wording import option

_LOG = logging.getLogger(__name__)
_ENGINE_DISAGREES = (
    "The engine does not meet the target with the set that the simulation found: the search was "
    "done again on engines."
)
_DISAGREE = (
    "ONNX Runtime's INT8 kernels and literal Q/DQ disagree about the set found: the search was "
    "done again on literal Q/DQ."
)
_MOST_TRIED = 8
"""Sets that passed before and are tried first when the held-out samples join."""


@dataclass(frozen=True)
class Searched:
    """A search, and how its candidates were run.

    Attributes:
        condition: the target on the samples searched; `reference_task` is FP32's metric on them.
        how: what ran the candidates, for people; `on_engines` where those were engines.
    """

    result: SearchResult
    condition: Condition
    reference_task: float | None
    samples: int
    literal: bool
    how: str
    on_engines: bool = False


@dataclass(frozen=True)
class Answered:
    """The last search, what checked its answer, and what the user must know about how it went.

    Attributes:
        taken: the point that was taken in place of the search's own answer.
    """

    searched: Searched
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    taken: SelectedPoint | None = None


@dataclass(frozen=True)
class _Way:
    """How a search is done.

    Attributes:
        held_out: the answer must hold there too.
        before: an earlier search in the same way but for that.
    """

    literal: bool | None
    engines: Engines | None = None
    held_out: Verifier | None = None
    before: tuple[Evaluation, ...] = field(default=())


def answered(setup: Setup, engines: Engines | None) -> Answered:
    """Search until the answer passes its checks: literally, on engines, on held-out samples.

    Where the cheapest set fails on these, the search goes on and asks that the target hold on both.
    """
    way, notes = _Way(None if setup.settings.int8_kernels else True), _not_kept(setup)
    before: Answered | None = None
    with ExitStack() as stack:
        while True:
            searched = _search(setup, way)
            if searched.result.achieved is None:
                return before or Answered(searched, notes=tuple(notes))
            checks, other = _checked(setup, searched, way, engines)
            if other is not None:
                why = _ENGINE_DISAGREES if other.engines else _DISAGREE
                notes.append(f"{why} The first took {searched.result.evaluations} evaluations.")
                way = other
                continue
            held_out = way.held_out
            if held_out is None:
                held_out = stack.enter_context(Verifier(setup, setup.held_out, HELD_OUT, engines))
            check = held_out.check(searched.result.pins)
            check = replace(check, used_in_search=way.held_out is not None)
            done = Answered(searched, (*checks, check), tuple(notes))
            if check.answer.passed or check.used_in_search:
                return done
            before = done
            notes.append(_falls(searched.result, check))
            way = replace(way, held_out=held_out, before=searched.result.history)


def _checked(
    setup: Setup, searched: Searched, way: _Way, engines: Engines | None
) -> tuple[list[Check], _Way | None]:
    """The answer once more on the samples searched, more exactly than while searching; or how to
    search again where it fails."""
    checks = []
    if not searched.literal and way.engines is None:
        with Verifier(setup, setup.searched, SEARCHED) as verifier:
            checks.append(verifier.check(searched.result.pins))
        if not checks[-1].answer.passed:
            return [], _Way(True, held_out=way.held_out)
    if engines is not None and way.engines is None:
        with Verifier(setup, setup.searched, ON_ENGINE, engines) as verifier:
            checks.append(verifier.check(searched.result.pins))
        if not checks[-1].answer.passed:
            return [], _Way(True, engines, way.held_out)
    return checks, None


def _search(setup: Setup, way: _Way) -> Searched:
    settings, target = setup.settings, setup.target
    layers = setup.pair.layers
    with ExitStack() as stack:
        runner = stack.enter_context(
            CandidateRunner(
                setup.context,
                setup.model,
                setup.planned.bound,
                setup.searched,
                metric=target.metric,
                capture=target.captured(layers, setup.model.graph),
                literal=way.literal,
                engines=way.engines,
                cache_bytes=settings.memory_budget,
            )
        )
        at_once = 1 if way.engines else setup.context.parallel.workers
        one = evaluator(runner, target, layers, at_once)
        oracle = Oracle(
            CombinedPredicate(one, way.held_out, _measured(way)) if way.held_out else one,
            journal=_journal(setup, way, one, stack),
            max_evaluations=settings.max_evaluations,
            time_limit_s=settings.time_limit,
            on_evaluation=_Watch(setup, settings.max_evaluations or 0),
        )
        _try_again(setup, way, oracle)
        result = find(setup.space.problem, oracle, load_strategy(settings.strategy))
        return Searched(
            result,
            one.condition,
            runner.reference_task,
            runner.subset.count,
            runner.literal,
            runner.reason,
            way.engines is not None,
        )


def _journal(setup: Setup, way: _Way, one: Evaluator, stack: ExitStack) -> Journal | None:
    if way.engines is not None or (way.held_out is not None and way.held_out.on_engines):
        # Nothing is kept but the engines themselves: they tell little of the machine.
        return None
    metric = setup.target.metric.key if setup.target.metric else ""
    if metric is None:  # a function in memory whose result does not depend on its code alone
        return None
    key = search_key(setup.planned.bound, one, metric, setup.context.fp16_kernels)
    again = "" if way.literal is None or not setup.settings.int8_kernels else "literal"
    if way.held_out:
        key["held_out"] = setup.held_out.key
        again += "joint"
    journal = open_journal(setup.settings, key, again)
    return stack.enter_context(journal) if journal else None


def _not_kept(setup: Setup) -> list[str]:
    """A note, where evaluations cannot be kept.

    Raises:
        UsageError: they cannot, and the user wants a journal.
    """
    metric = setup.target.metric
    if metric is None or metric.key is not None:
        return []
    reason = f"the metric '{metric.name}' uses objects whose content cannot be told"
    if setup.settings.journal:
        raise UsageError(
            f"{option('journal')}: {reason}",
            f"Give the metric as file.py:function, or leave {option('journal')} out.",
            code="QD-USAGE-JOURNAL-METRIC",
        )
    return [f"The evaluations are not kept on disk, because {reason}."]


def _measured(way: _Way) -> Mapping[Pins, Measurement]:
    return {evaluation.pins: evaluation.measurement for evaluation in way.before}


def _try_again(setup: Setup, way: _Way, oracle: Oracle) -> None:
    """Ask first for what passed before, the cheapest first, so that a search that ends early has
    something better than everything pinned."""
    passed = [e.pins for e in way.before if e.measurement.passed]
    try:
        for pins in sorted(passed, key=setup.space.problem.cost)[:_MOST_TRIED]:
            if oracle.ask(pins).passed:
                return
    except BudgetSpent:
        return  # the search itself says so


def _falls(search: SearchResult, check: Check) -> str:
    value = check.answer.value
    shown = "no value" if value is None else f"{value:.6g}"
    return (
        f"The cheapest set ({len(search.pins)} layers, {search.evaluations} evaluations) falls to "
        f"{shown} on the held-out samples. "
        "The search went on and asked that the target hold there too: they took part in the choice."
    )


class _Watch:
    """Tells how a search is doing."""

    def __init__(self, setup: Setup, limit: int) -> None:
        self._setup = setup
        self._limit = limit
        self._count = 0
        self._best: int | None = None

    def __call__(self, evaluation: Evaluation) -> None:
        self._count += 1
        measured, pinned = evaluation.measurement, len(evaluation.pins)
        if measured.passed and (self._best is None or pinned < self._best):
            self._best = pinned
        _LOG.info(
            "evaluation %d: %d pinned: %s, %s%s",
            self._count,
            pinned,
            measured.value,
            measured.verdict,
            " (from the journal)" if evaluation.replayed else "",
        )
        best = "" if self._best is None else f"{self._best} pinned pass"
        self._setup.context.progress(Progress("search", self._count, self._limit, best))
