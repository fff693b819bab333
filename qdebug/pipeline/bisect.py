"""`qdebug bisect`, whole: calibrate, rate the layers, search, verify, and say what it costs."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace

from qdebug.config.bisect import BisectSettings
from qdebug.measure.conditions import Condition
from qdebug.pipeline.answer import (
    cost_summary,
    explanation,
    pinned_layers,
    plan_with,
)
from qdebug.pipeline.bisect_engine import engine_report, engines_of, in_milliseconds
from qdebug.pipeline.bisect_setup import Setup, prepare
from qdebug.pipeline.candidates import CandidateRunner, Engines
from qdebug.pipeline.evaluation import evaluator, search_key
from qdebug.pipeline.journals import open_journal
from qdebug.pipeline.verify import ON_ENGINE, SEARCHED, Verifier, holding_out
from qdebug.search.find import SearchResult, find
from qdebug.search.oracle import Evaluation, Oracle
from qdebug.search.outcome import BisectResult, Check
from qdebug.search.strategies import STRATEGIES
from qdebug.types import Progress, ProgressCallback, ignore_progress

_LOG = logging.getLogger(__name__)
_ENGINE_DISAGREES = (
    "The engine does not meet the target with the set that the simulation found: the search was "
    "done again on engines."
)
_DISAGREE = (
    "ONNX Runtime's INT8 kernels and literal Q/DQ disagree about the set found: the search was "
    "done again on literal Q/DQ."
)


@dataclass(frozen=True)
class _Searched:
    """A search on the search samples, and how its candidates were run."""

    result: SearchResult
    condition: Condition
    reference_task: float | None
    samples: int
    literal: bool
    how: str


def bisect(settings: BisectSettings, progress: ProgressCallback = ignore_progress) -> BisectResult:
    """Find the cheapest layers to keep in higher precision so that the target holds.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was evaluated is kept.
    """
    setup = prepare(settings, progress)
    engines = engines_of(setup)
    if engines is not None and setup.engine is not None and settings.profile is None:
        setup = replace(setup, space=in_milliseconds(setup, setup.engine))
    searched = _search(setup, literal=settings.literal or None)
    notes = list(setup.planned.notes)
    checks: list[Check] = []
    if searched.result.achieved is not None and not searched.literal:
        with Verifier(setup, setup.searched, SEARCHED) as verifier:
            again = verifier.check(searched.result.pins)
        if again.answer.passed:
            checks.append(again)
        else:
            notes.append(_DISAGREE)
            searched = _search(setup, literal=True)
    if engines is not None and searched.result.achieved is not None:
        with Verifier(setup, setup.searched, ON_ENGINE, engines) as verifier:
            again = verifier.check(searched.result.pins)
        if again.answer.passed:
            checks.append(again)
        else:
            notes.append(_ENGINE_DISAGREES)
            checks.clear()
            searched = _search(setup, literal=True, engines=engines)
    search = searched.result
    found = search.achieved is not None
    if found:
        search, check, note = holding_out(setup, search, engines)
        checks.append(check)
        notes += [note] if note else []
    return BisectResult(
        model_path=settings.model,
        model_sha256=setup.model.file.sha256,
        precision=setup.planned.bound.plan.precision,
        target=searched.condition.expression,
        bound=searched.condition.bound,
        samples=searched.samples,
        strategy=settings.strategy,
        candidates=len(setup.space.problem.items),
        reference_metric=searched.reference_task,
        search=search,
        found=found,
        explanation=explanation(setup, search, searched.condition, searched.reference_task),
        pinned=pinned_layers(setup, search) if found else (),
        cost=cost_summary(setup, search.pins),
        plan=plan_with(setup, search.pins),
        checks=tuple(checks),
        fast=searched.how,
        notes=tuple(notes),
        engine=engine_report(setup, plan_with(setup, search.pins)) if found else None,
    )


def _search(setup: Setup, *, literal: bool | None, engines: Engines | None = None) -> _Searched:
    settings, target = setup.settings, setup.target
    layers = setup.subject.layers
    with ExitStack() as stack:
        runner = stack.enter_context(
            CandidateRunner(
                setup.context,
                setup.model,
                setup.planned.bound,
                setup.searched,
                metric=target.metric,
                capture=target.captured(layers, setup.model.graph),
                literal=literal,
                engines=engines,
            )
        )
        at_once = 1 if engines else setup.context.parallel.workers
        one = evaluator(runner, target, layers, at_once)
        # On engines nothing is kept but the engines themselves: they tell little of the machine.
        key = search_key(setup.planned.bound, one, target.metric)
        journal = open_journal(settings, key) if engines is None else None
        if journal:
            stack.enter_context(journal)
        oracle = Oracle(
            one,
            journal=journal,
            max_evaluations=settings.max_evaluations,
            time_limit_s=settings.time_limit,
            on_evaluation=_Watch(setup, settings.max_evaluations or 0),
        )
        result = find(setup.space.problem, oracle, STRATEGIES[settings.strategy])
        return _Searched(
            result,
            one.condition,
            runner.reference_task,
            runner.portion.count,
            runner.literal,
            runner.reason,
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
