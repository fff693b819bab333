"""Search, check the answer, and where a check fails, search again under that check."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdebug.analyse.gate import guessing_note
from qdebug.decide.bisect.candidates import Engines
from qdebug.decide.bisect.durations import (
    everything_pinned,
    seconds_of_another,
    seconds_of_checks,
)
from qdebug.decide.bisect.evaluation import (
    ON_ENGINE,
    SEARCHED,
    Evaluator,
    Verifier,
    open_evaluator,
    open_verifier,
    search_key,
)
from qdebug.decide.bisect.grain import Coarse, coarse, told
from qdebug.decide.bisect.setup import Setup
from qdebug.decide.search.combined import CombinedPredicate
from qdebug.decide.search.find import Outcome, SearchResult, find, is_minimal
from qdebug.decide.search.journal import SCHEMA, Journal
from qdebug.decide.search.oracle import BudgetSpent, Evaluation, Oracle
from qdebug.decide.search.outcome import HELD_OUT, Check, SelectedPoint
from qdebug.decide.search.pareto import selected_index
from qdebug.decide.search.problem import Measurement, Pins
from qdebug.decide.search.strategies import load_strategy
from qdebug.errors import StoreError, UsageError, given_by
from qdebug.execute.context import emulates_fp16
from qdebug.memo import cache_folder
from qdebug.metrics.tasks.base import is_share
from qdebug.metrics.uncertainty import Interval
from qdebug.results.conditions import Condition
from qdebug.run.executor import workers_note
from qdebug.types import Precision, Progress
from qdebug.wording import counted, duration, option

_LOG = logging.getLogger(__name__)
_ENGINE_DISAGREES = (
    "The engine does not meet the target with the set that the simulation found: the search was "
    "repeated on engines."
)
_DISAGREE = (
    "ONNX Runtime's INT8 kernels and the simulation disagree about the set found: the search was "
    "repeated in the simulation."
)
_TO_EXPLAIN = 0.1
"""Of a time limit, for saying why layers are wrong: where that takes more, it is left out rather
than the search."""
_MOST_LIKELY = 2
"""Sets that a repeated search tries before it begins."""
_MOST_TRIED = 8
"""Sets that passed before and are tried first."""
_FOLDER = "searches"
_BESIDE_KERNELS = {Precision.INT8, Precision.FP16, Precision.FP32}
"""The precisions of layers beside those on ONNX Runtime's INT8 kernels."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search, as the user asked.

    Attributes:
        strategy: a name in STRATEGIES.
        int8_kernels: candidates may run on ONNX Runtime's INT8 kernels.
        cache_bytes: limit of the activations that candidates start from.
        max_evaluations, time_limit_s: when to stop with the best found.
        journal: the file that remembers evaluations; None keeps one in the cache folder.
        restart: a journal of another search may be replaced.
        cached: evaluations may be kept in the cache folder.
        first: sets to try before the search begins; what the search may not pin is left out.
        tells_coarse: it is to be said where the metric is too coarse for the target.
    """

    strategy: str
    int8_kernels: bool = True
    cache_bytes: int = 0
    max_evaluations: int | None = None
    time_limit_s: float | None = None
    started: float | None = None
    journal: str | None = None
    restart: bool = False
    cached: bool = True
    first: Sequence[Pins] = ()
    tells_coarse: bool = True

    @property
    def ends_at(self) -> float | None:
        """When the time is over, on the clock of `time.monotonic`; None where it is not known."""
        if self.time_limit_s is None or self.started is None:
            return None
        return self.started + self.time_limit_s

    def explaining_s(self, takes: float) -> float:
        """Of the time limit, what is kept for explaining the answer, which `takes` so many seconds:
        all or nothing."""
        limit = self.time_limit_s or 0.0
        return takes if takes <= _TO_EXPLAIN * limit else 0.0

    def may_explain(self, takes: float) -> bool:
        """Whether there is time for that."""
        if self.ends_at is None or self.explaining_s(takes):
            return True
        return time.monotonic() + takes <= self.ends_at


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
        earlier: how many sets were evaluated by other searches alone.
        coarse: see there.
        interval: of FP32's metric on the samples searched.
        suspect: a note that FP32 itself guesses; "" where it does not.
        step: by which a share of those samples moves; None of another metric.
    """

    searched: Searched
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    taken: SelectedPoint | None = None
    earlier: int = 0
    coarse: Coarse | None = None
    interval: Interval | None = None
    suspect: str = ""
    step: float | None = None


@dataclass(frozen=True)
class _Round:
    """How one search is done.

    Attributes:
        evaluator: measures sets on the samples searched.
        repeated: the answer of a search in another way failed in this one.
        held_out: the answer must hold there too.
        before: an earlier search in the same way but for that.
        first: sets that passed in another way, and are likely to pass in this one.
    """

    evaluator: Evaluator
    repeated: bool = False
    held_out: Verifier | None = None
    before: tuple[Evaluation, ...] = field(default=())
    first: tuple[Pins, ...] = ()


def answered(setup: Setup, engines: Engines | None, options: SearchOptions) -> Answered:
    """Search until the answer passes its checks: as literal Q/DQ, on engines, on held-out samples.

    Where the cheapest set fails on the held-out samples, the search continues and requires the
    target to hold on both.

    Raises:
        QdebugError: a runtime or a metric failed, or a journal cannot be used.
        OutOfTimeError: the time is over before the search can begin.
    """
    tried: set[Pins] = set()
    with ExitStack() as stack:
        first = stack.enter_context(_simulation(setup, options))
        step = _step(setup, first) if options.tells_coarse else None
        found = setup.coarse or (told(_coarse(setup, first)) if step else None)
        suspect = _suspect(first)
        answer = _answered(setup, engines, options, stack, first, tried)
        interval = first.reference_interval
    earlier = len(tried) - len(answer.searched.result.history)
    return replace(
        answer, earlier=earlier, coarse=found, suspect=suspect, interval=interval, step=step
    )


def _step(setup: Setup, first: Evaluator) -> float | None:
    """In what steps the metric moves on the samples searched; None of one that is no share of
    them."""
    shared = is_share(setup.target.metric) and first.condition.scope == "metric"
    return 1 / first.runner.subset.count if shared else None


def _coarse(setup: Setup, first: Evaluator) -> Coarse | None:
    """Whether the metric is too coarse for the target."""
    sets = (first.runner.subset.count, "samples searched"), (setup.held_out.count, HELD_OUT)
    return coarse(setup.target, first.runner.reference_task, sets)


def _suspect(first: Evaluator) -> str:
    """See guessing_note."""
    task, score = first.runner.task, first.runner.reference_task
    if task is None or score is None:
        return ""
    return guessing_note(task, score, first.runner.subset.count)


def _answered(
    setup: Setup,
    engines: Engines | None,
    options: SearchOptions,
    stack: ExitStack,
    first: Evaluator,
    tried: set[Pins],
) -> Answered:
    """See answered; what any of the searches evaluates is added to `tried`."""
    before: Answered | None = None
    refuted: Answered | None = None
    notes = [*_not_kept(setup, options)]
    one = _Round(first)
    while True:
        searched = _search(setup, one, options)
        tried.update(evaluation.pins for evaluation in searched.result.history)
        if searched.result.achieved is None:
            unfinished = searched.result.outcome is Outcome.UNFINISHED
            known = before or (refuted if unfinished else None)
            return known or Answered(searched, notes=tuple(notes))
        checks, other = _checked(setup, searched, one, engines, stack)
        if other is not None:
            refuted = Answered(searched, tuple(checks), tuple(notes))
            why = _ENGINE_DISAGREES if other.evaluator.on_engines else _DISAGREE
            notes.append(why)
            one = other
            continue
        held_out = one.held_out
        if held_out is None:
            opened = open_verifier(setup, setup.held_out, HELD_OUT, engines)
            held_out = stack.enter_context(opened)
        check = held_out.check(searched.result.pins)
        check = replace(check, used_in_search=one.held_out is not None)
        done = Answered(searched, (*checks, check), tuple(notes))
        if check.answer.passed or check.used_in_search:
            return done
        before = done
        notes.append(_falls(searched.result, check))
        one = replace(
            one,
            held_out=held_out,
            before=searched.result.history,
            first=_likely(setup, searched.result, check),
        )


def with_selected_point(
    setup: Setup, answer: Answered, engines: Engines | None, wanted: str | None
) -> Answered:
    """`answer` with the point that the user wants, checked as an answer is; unchanged where that is
    None.

    Raises:
        UsageError: the list of error against cost has no such point.
    """
    if wanted is None:
        return answer
    search = answer.searched.result
    index = selected_index(wanted, search.pareto)
    pins = search.pareto[index].pins
    known: dict[Pins, Measurement] = {e.pins: e.measurement for e in search.history}
    result = replace(
        search,
        pins=pins,
        achieved=known[pins],
        minimal=known[pins].passed and is_minimal(setup.space.problem, pins, known.get),
        cost=setup.space.problem.cost(pins),
    )
    own = search.achieved is not None and pins == search.pins
    return replace(
        answer,
        searched=replace(answer.searched, result=result),
        checks=answer.checks if own else tuple(_checks_of(setup, answer, pins, engines)),
        taken=SelectedPoint(index + 1, search),
    )


def _checks_of(
    setup: Setup, answer: Answered, pins: Pins, engines: Engines | None
) -> Iterator[Check]:
    """`pins` once more, as the answer of a search: on the samples searched, and held out."""
    if engines is not None:
        with open_verifier(setup, setup.searched, ON_ENGINE, engines) as verifier:
            yield verifier.check(pins)
    elif not answer.searched.literal:
        with open_verifier(setup, setup.searched, SEARCHED) as verifier:
            yield verifier.check(pins)
    used_in_search = any(check.used_in_search for check in answer.checks)
    with open_verifier(setup, setup.held_out, HELD_OUT, engines) as verifier:
        yield replace(verifier.check(pins), used_in_search=used_in_search)


def _simulation(setup: Setup, options: SearchOptions) -> Evaluator:
    raised = {p for item in setup.space.problem.items for p in item.costs}
    # Sets with layers in other formats have no INT8 kernels, and all are to run alike.
    literal = None if options.int8_kernels and raised <= _BESIDE_KERNELS else True
    cache_bytes = options.cache_bytes
    ends_at = math.inf if options.ends_at is None else options.ends_at
    return open_evaluator(
        setup, setup.searched, literal=literal, cache_bytes=cache_bytes, ends_at=ends_at
    )


def _checked(
    setup: Setup, searched: Searched, one: _Round, engines: Engines | None, stack: ExitStack
) -> tuple[list[Check], _Round | None]:
    """The answer once more on the samples searched, more exactly than while searching; and how to
    search again where it fails."""
    checks, always, pins = [], setup.space.problem.always, searched.result.pins
    if not one.evaluator.literal:
        literally = one.evaluator.literally()
        checks.append(Verifier(literally, always, SEARCHED).check(pins))
        if not checks[-1].answer.passed:
            first = _likely(setup, searched.result, checks[-1])
            return checks, _Round(literally, repeated=True, held_out=one.held_out, first=first)
    if engines is not None and not one.evaluator.on_engines:
        with open_verifier(setup, setup.searched, ON_ENGINE, engines) as verifier:
            checks.append(verifier.check(pins))
        if not checks[-1].answer.passed:
            first = _likely(setup, searched.result, checks[-1])
            opened = open_evaluator(setup, setup.searched, literal=True, engines=engines)
            engine = stack.enter_context(opened)
            return checks, _Round(engine, repeated=True, held_out=one.held_out, first=first)
    return checks, None


def _likely(setup: Setup, search: SearchResult, check: Check) -> tuple[Pins, ...]:
    """The cheapest sets that passed with at least as much to spare as the answer lost in a check:
    where the time is nearly over, one of them is an answer still. None where no number tells."""
    before, after = search.achieved, check.answer
    if before is None or before.slack is None or after.slack is None:
        return ()
    lost = before.slack - after.slack
    passed = [e for e in search.history if e.measurement.passed and e.pins != search.pins]
    enough = [e.pins for e in passed if (e.measurement.slack or 0.0) >= lost]
    return tuple(sorted(enough, key=setup.space.problem.cost)[:_MOST_LIKELY])


def _search(setup: Setup, one: _Round, options: SearchOptions) -> Searched:
    with ExitStack() as stack:
        evaluator = one.evaluator
        predicate: Evaluator | CombinedPredicate = evaluator
        if one.held_out:
            known = {evaluation.pins: evaluation.measurement for evaluation in one.before}
            at_once = evaluator.at_once
            predicate = CombinedPredicate(evaluator, at_once, one.held_out.measure, known)

        def reserve(history: Sequence[Evaluation]) -> float:
            seconds = _reserve(setup, one, history)
            return seconds + options.explaining_s(setup.rating_s) if seconds else 0.0

        oracle = Oracle(
            predicate,
            journal=_journal(setup, one, options, stack),
            max_evaluations=options.max_evaluations,
            time_limit_s=options.time_limit_s,
            started=options.started,
            reserve_s=reserve,
            clock=time.monotonic,
            on_evaluation=_Watch(setup, options),
        )
        _try_first(setup, one, oracle, options)
        result = find(
            setup.space.problem,
            oracle,
            load_strategy(options.strategy),
            knee_by_value=evaluator.condition.scope == "metric",
            hurried=(options.time_limit_s or options.max_evaluations) is not None,
        )
        runner = evaluator.runner
        return Searched(
            result,
            evaluator.condition,
            runner.reference_task,
            runner.subset.count,
            evaluator.literal,
            evaluator.how,
            evaluator.on_engines,
        )


_ANSWER_AND_ANOTHER = 2
"""Sets that must have passed for a second one to be tried in place of the answer."""


def _reserve(setup: Setup, one: _Round, history: Sequence[Evaluation]) -> float:
    """Seconds for checks of the answer, or, as long as no set passes, of one with half of all
    pinned, which is tried first. What an engine takes to build is not known before."""
    passing = [e for e in history if e.measurement.passed]
    cheapest = min(passing, key=lambda e: setup.space.problem.cost(e.pins), default=None)
    share = setup.held_out.count / setup.searched.count if one.held_out is None else 0.0
    reference, exact = one.evaluator.runner.reference_s, one.evaluator.literal
    precisions = {precision for item in setup.space.problem.items for precision in item.costs}
    unknown = everything_pinned(reference, emulated=emulates_fp16(setup.context, precisions)) / 2
    answer = cheapest.measurement.seconds if cheapest else unknown
    checks = seconds_of_checks(reference, answer, on_searched=not exact, held_out=share)
    if len(passing) < _ANSWER_AND_ANOTHER or one.repeated or one.held_out is not None:
        return checks
    # Where the answer fails in a check, a dearer set that passed with more to spare is tried.
    return checks + seconds_of_another(reference, answer, on_searched=not exact, held_out=share)


def _journal(setup: Setup, one: _Round, options: SearchOptions, stack: ExitStack) -> Journal | None:
    """Where the evaluations of one round are kept, so that a search that was killed goes on."""
    if one.evaluator.on_engines or (one.held_out is not None and one.held_out.on_engines):
        # Nothing is kept but the engines themselves: they tell little of the machine.
        return None
    metric = setup.target.metric.key if setup.target.metric else ""
    if metric is None:  # a function in memory whose result does not depend on its code alone
        return None
    key = search_key(setup, one.evaluator, metric)
    again = "simulation" if one.repeated else ""
    if one.held_out:
        key["held_out"] = setup.held_out.key
        again += "joint"
    journal = _open_journal(options, key, again)
    return stack.enter_context(journal) if journal else None


def _open_journal(options: SearchOptions, key: dict[str, str], again: str) -> Journal | None:
    """The user's journal, or one in the cache folder; None where that takes no files, or the user
    wants no cache. `again` names a further search of the same command, whose journal is a file
    beside the user's.

    Raises:
        StoreError: the user's own journal cannot be used.
    """
    if options.journal:
        path = Path(f"{options.journal}.{again}" if again else options.journal)
        with given_by("journal"):
            try:
                return Journal(path, key)
            except StoreError:
                if not options.restart:
                    raise
                return Journal(path, key, restart=True)
    if not options.cached:
        return None
    text = json.dumps({"schema": SCHEMA, **key}, sort_keys=True)
    path = cache_folder() / _FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return None if path.is_symlink() else Journal(path, key, needed=False)
    except (OSError, StoreError):
        return None  # it only saves time


def _not_kept(setup: Setup, options: SearchOptions) -> list[str]:
    """A note, where evaluations cannot be kept.

    Raises:
        UsageError: they cannot, and the user wants a journal.
    """
    metric = setup.target.metric
    if metric is None or metric.key is not None:
        return []
    reason = f"the metric '{metric.name}' uses objects whose content cannot be identified"
    if options.journal:
        raise UsageError(
            f"{option('journal')}: {reason}",
            f"Give the metric as file.py:function, or leave {option('journal')} out.",
            code="QD-USAGE-JOURNAL-METRIC",
        )
    return [f"The evaluations are not kept on disk, because {reason}."]


def _try_first(setup: Setup, one: _Round, oracle: Oracle, options: SearchOptions) -> None:
    """Evaluate what passed before first, the cheapest at the head, so that no answer is dearer and
    a search that ends early has something better than everything pinned. Where the time is
    limited, that is at first what likely passes."""
    problem = setup.space.problem
    allowed = {(i.name, precision) for i in problem.items for precision in i.costs}
    given = [problem.always | p for p in options.first if p - problem.always <= allowed]
    passed = [*given, *(e.pins for e in one.before if e.measurement.passed)]
    likely = sorted(one.first, key=problem.cost)
    if options.time_limit_s is None:
        passed, likely = [*passed, *likely], []
    try:
        for pins in [*likely, *sorted(passed, key=problem.cost)][:_MOST_TRIED]:
            if oracle.ask(pins).passed:
                return
    except BudgetSpent:
        return  # the search itself says so


def _falls(search: SearchResult, check: Check) -> str:
    value = check.answer.value
    shown = "no value" if value is None else f"{value:.6g}"
    return (
        f"The cheapest set found at first ({counted(search.pins, 'layer')} pinned) reaches only "
        f"{shown} on the held-out samples. The search went on and required the target to hold "
        "there too, so these samples were used in the search."
    )


class _Watch:
    """Reports how a search is doing."""

    def __init__(self, setup: Setup, options: SearchOptions) -> None:
        self._setup = setup
        self._limit, self._ends_at = options.max_evaluations or 0, options.ends_at
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
        context = self._setup.context
        notes = [] if self._best is None else [f"{self._best} pinned pass"]
        if context.executor.workers:
            notes.append(workers_note(context.executor))
        if not self._limit and self._ends_at is not None:
            left = max(0.0, self._ends_at - time.monotonic())
            notes.append(f"at most {duration(left)} left")
        context.progress(Progress("search", self._count, self._limit, ", ".join(notes)))
