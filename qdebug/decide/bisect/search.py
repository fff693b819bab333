"""The search of `qdebug bisect`, whole: search, verify, explain, and say what it costs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from qdebug.analyse.gate import worst_group_notes
from qdebug.analyse.metric_samples import FOR_INTERVAL
from qdebug.config.specs import PinSearchSpec
from qdebug.decide.bisect.answer import (
    cost_summary,
    explanation,
    hardly_worth,
    pinned_blocks,
    pinned_by_plan,
    pinned_layers,
    plan_with,
)
from qdebug.decide.bisect.engines import (
    built_answer,
    engines_of,
    in_milliseconds,
    with_kernel_causes,
)
from qdebug.decide.bisect.rounds import Answered, SearchOptions, answered, with_selected_point
from qdebug.decide.bisect.setup import Setup, untimed_notes
from qdebug.decide.bisect.target import direction_notes
from qdebug.decide.search.find import SearchResult
from qdebug.decide.search.outcome import BisectResult
from qdebug.decide.search.problem import Pins
from qdebug.execute.engine.build import Engine, capture_note, save_engine
from qdebug.metrics.tasks.base import is_share
from qdebug.result import ModelRef
from qdebug.types import Precision

_UNEXPLAINED = (
    "Why the layers are wrong was not looked for: the time limit leaves no time for it. qdebug "
    "compare says it."
)


def search_from(
    how: PinSearchSpec,
    setup: Setup,
    started: float | None = None,
    first: Sequence[Pins] = (),
    *,
    tells_coarse: bool = True,
) -> BisectResult:
    """As `bisect`, from a setup that is there; the time limit counts from `started`, on the clock
    of `time.monotonic`, or from now. The sets in `first` are tried before the search begins: where
    one of them passes, the answer is no dearer. `tells_coarse`: see SearchOptions.

    Raises:
        OutOfTimeError: the time is over before the search can begin.
    """
    setup = replace(setup, interval_s=FOR_INTERVAL * (how.time_limit or math.inf))
    engines = engines_of(setup)
    if engines is not None and setup.engine is not None and how.profile is None:
        setup = replace(setup, space=in_milliseconds(setup, setup.engine))
    options = SearchOptions(
        strategy=how.strategy,
        int8_kernels=how.int8_kernels,
        cache_bytes=how.memory_budget,
        max_evaluations=how.max_evaluations,
        time_limit_s=how.time_limit,
        started=time.monotonic() if started is None else started,
        journal=how.journal,
        restart=how.force,
        cached=how.cache,
        first=first,
        tells_coarse=tells_coarse,
    )
    answer = answered(setup, engines, options)
    answer = with_selected_point(setup, answer, engines, how.select_point)
    explain = options.may_explain(setup.rating_s)
    search = answer.searched.result
    found = search.achieved is not None
    engine = built_answer(setup, plan_with(setup, search.pins)) if found else None
    if engine is not None and how.engine is not None:
        save_engine(engine, how.engine, force=how.force)
    return _result(how, setup, answer, engine, explain)


def _result(
    how: PinSearchSpec, setup: Setup, answer: Answered, engine: Engine | None, explain: bool
) -> BisectResult:
    """`engine` is built from the answer; `explain` it where there is time."""
    searched, search = answer.searched, answer.searched.result
    found = search.achieved is not None
    pinned = pinned_layers(setup, search, explain=explain) if found else ()
    if searched.on_engines and explain:
        pinned = with_kernel_causes(setup, search.pins, pinned)
    task = searched.reference_task
    cost = cost_summary(setup, search)
    worth = hardly_worth(cost, setup.planned.bound.plan.precision) if found else ""
    told = explanation(setup, search, searched.condition, task) if answer.taken is None else ""
    return BisectResult(
        model=ModelRef(how.model, setup.model.file.sha256),
        precision=setup.planned.bound.plan.precision,
        fp16_kernels=setup.context.fp16_kernels if _uses_fp16(setup, search) else None,
        target=searched.condition.expression,
        target_text=searched.condition.words,
        condition=searched.condition,
        metric=setup.target.metric_name,
        metric_is_share=is_share(setup.target.metric),
        grain=answer.coarse.grain if answer.coarse else None,
        samples=searched.samples,
        held_out_samples=setup.held_out.count,
        strategy=how.strategy,
        candidates=len(setup.space.problem.items),
        reference_metric=task,
        reference_interval=answer.interval,
        metric_step=answer.step,
        search=search,
        earlier_evaluations=answer.earlier,
        found=found,
        explanation=told,
        layers=pinned,
        blocks=pinned_blocks(setup, search.pins) if found else (),
        cost=cost,
        plan=plan_with(setup, search.pins),
        checks=answer.checks,
        execution=searched.how,
        notes=(
            *_notes(how, setup, answer, engine),
            *((_UNEXPLAINED,) if pinned and not explain else ()),
            *((worth,) if worth else ()),
        ),
        suspect=answer.suspect,
        said_before=answer.coarse.note if answer.coarse else "",
        engine=engine.report if engine else None,
        selected_point=answer.taken,
        pinned_by_plan=pinned_by_plan(setup),
    )


def _notes(
    how: PinSearchSpec, setup: Setup, answer: Answered, engine: Engine | None
) -> tuple[str, ...]:
    baseline = answer.searched.result.baseline
    direction = direction_notes(
        setup.target,
        answer.searched.reference_task,
        baseline.value if baseline else None,
        setup.context,
        setup.model.graph,
        setup.searched,
    )
    return (
        *setup.planned.notes,
        *setup.pair.notes,
        *setup.notes,
        *worst_group_notes(setup.held_out),
        *untimed_notes(setup.space, how.profile, how.profile_layers),
        *answer.notes,
        *([answer.suspect] if answer.suspect else []),
        *([answer.coarse.note] if answer.coarse else []),
        *direction,
        *(engine.notes if engine else ()),
        *_capture_notes(how, engine),
    )


def _capture_notes(how: PinSearchSpec, engine: Engine | None) -> tuple[str, ...]:
    if engine is None or how.engine is None:
        return ()
    return capture_note(how.engine, engine.report.not_executed_because)


def _uses_fp16(setup: Setup, search: SearchResult) -> bool:
    """Whether any candidate that was run has a layer in FP16."""
    pinned = (precision for e in search.history for _, precision in e.pins)
    return Precision.FP16 in {*setup.pair.precisions.values(), *pinned}
