"""The steps of `qdebug bisect`: read and calibrate, rate the layers, search, check, and explain."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property

from qdebug.analyse.gate import (
    check_every_group,
    check_metric,
    guessing_note,
    on_model,
    refuse_without_arrays,
    worst_group_notes,
)
from qdebug.analyse.metric_samples import FOR_INTERVAL, reference_interval
from qdebug.analyse.objects import check_objects
from qdebug.backends.engine import EngineRuntime
from qdebug.backends.registry import spec_of
from qdebug.config.engine import check_engine_flags
from qdebug.config.search import BisectSettings
from qdebug.config.specs import PinSearchSpec
from qdebug.decide.bisect.answer import (
    cost_summary,
    explanation,
    hardly_worth,
    pinned_by_plan,
    pinned_layers,
    plan_with,
)
from qdebug.decide.bisect.choices import (
    Ratings,
    Space,
    costs_of,
    profiled,
    raised_to,
    rated,
    space_of,
    untimed_notes,
)
from qdebug.decide.bisect.predicate import Predicate
from qdebug.decide.bisect.result import HELD_OUT, ON_ENGINE, BisectResult, Check, SelectedPoint
from qdebug.decide.bisect.target import (
    AccuracyTarget,
    check_allowed,
    few_samples_note,
    read_target,
)
from qdebug.decide.search.find import Budget, Evaluation, SearchResult, find, is_minimal
from qdebug.decide.search.pareto import selected_index
from qdebug.decide.search.problem import Evaluate, Measurement, Pins
from qdebug.errors import UsageError
from qdebug.execute.cluster.machines import open_executor
from qdebug.execute.context import Context, context_of, session_settings
from qdebug.execute.engine import latency
from qdebug.execute.engine.build import (
    Engine,
    capture_note,
    check_parsed,
    check_requested,
    engine_of,
    fitted,
    open_runtime,
    save_engine,
)
from qdebug.execute.engine.request import build_request
from qdebug.execute.model_pair import (
    CalibratedPlan,
    check_not_quantized,
    load_model,
    plan_from,
    plan_ranges,
)
from qdebug.metrics.tasks.base import is_share
from qdebug.metrics.uncertainty import Interval
from qdebug.network.prepare import Model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.subset import SampleSubset, open_subsets
from qdebug.network.samplespec import given_specs
from qdebug.plan.cost import Costs
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.plan.plan import bind_plan
from qdebug.result import ModelRef
from qdebug.results.engine import KernelTime
from qdebug.run.timelimit import check_time
from qdebug.types import Precision, Progress, ProgressCallback
from qdebug.wording import counted, duration, option

_FOR_RATING = 1 / 3
"""Of the time that is left, for rating the layers: the search needs the rest."""


@dataclass(frozen=True)
class Setup:
    """What a search starts from.

    Attributes:
        planned: the plan with all its ranges.
        searched, held_out: the samples to search on, and those to check the answer on.
        engine: what the answer is built with; None for the simulation alone.
        kernels: of the engine that was profiled; None where costs are not times.
    """

    context: Context
    target: AccuracyTarget
    model: Model
    planned: CalibratedPlan
    searched: SampleSubset
    held_out: SampleSubset
    engine: EngineRuntime | None = None
    kernels: Sequence[KernelTime] | None = None

    @cached_property
    def pair(self) -> ModelPair:
        """The reference, and the model with nothing pinned."""
        return planned_pair(self.model, self.planned.bound)

    def predicate(self, subset: SampleSubset, engine: EngineRuntime | None = None) -> Predicate:
        """The target on some samples, in the simulation or on an engine."""
        bound = self.planned.bound
        return Predicate(self.context, self.pair, bound, subset, self.target, engine)


def prepare(settings: BisectSettings, progress: ProgressCallback, stack: ExitStack) -> Setup:
    """Read everything and calibrate; `stack` releases the workers of a cluster.

    Raises:
        UsageError: the precision is FP32, in which there is nothing to pin.
        QdebugError: bad input, or a runtime that failed.
        OutOfTimeError: the time is over before the ranges are calibrated.
    """
    ends_at = time.monotonic() + (settings.time_limit or math.inf)
    check_engine_flags(settings)
    target = read_target(settings.asked)
    sessions = session_settings(settings)
    engine = open_runtime(settings, cached=settings.cache, sessions=sessions, progress=progress)
    plan = plan_from(settings.quantization)
    check_requested(settings.backend, plan, settings.provider, engine.target if engine else "")
    if plan.precision is Precision.FP32:
        raise UsageError(
            f"{option('precision')}: in FP32 no layer can be kept in higher precision",
            f"Give {option('precision', 'int8')} or {option('precision', 'fp16')}.",
            code="QD-USAGE-NOTHING-TO-PIN",
        )
    sources = (*settings.quantization.samples, *given_specs(settings.held_out))
    raised = raised_to(settings.search)
    model = load_model(settings.model, plan, sources, sessions, progress, raised=raised)
    check_not_quantized(
        model,
        "its precisions are fixed, so nothing can be searched",
        "Give the FP32 model that it was made from. (`qdebug repair` with "
        f"{option('reference', 'FP32.onnx')} starts from the ranges and the rounding of a "
        "quantized model, and pins layers, too.)",
    )
    kernels = profiled(settings.search, model)
    searched, held_out = open_subsets(
        settings.compared,
        settings.held_out,
        sample_inputs(model.graph),
        setting="holdout",
        share=settings.holdout_share,
    )
    target = replace(target, metric=on_model(target.metric, model, settings.worst_group))
    for subset in (searched, held_out):
        check_metric(target.metric, model, subset.samples)
    check_every_group({"searched": searched, "held out": held_out})
    if target.of_outputs:
        refuse_without_arrays(model, "a set of layers")
    builds = spec_of(settings.backend).builds
    context = context_of(settings, progress, open_executor(stack, settings, gpus=builds))
    limited = context.until(ends_at)
    check_objects(limited, model.graph, searched, target.metric)
    check_allowed(target, limited, model.graph, searched)
    planned = plan_ranges(settings.quantization, limited, plan, model, searched)
    return Setup(context, target, model, planned, searched, held_out, engine, kernels)


def search_from(
    how: PinSearchSpec,
    setup: Setup,
    started: float | None = None,
    *,
    ratings: Ratings | None = None,
    first: Sequence[Pins] = (),
) -> BisectResult:
    """Search from a setup, check the answer, and explain it; where a check fails, search once more
    with that check as a second predicate.

    Args:
        started: when the time limit began, on the clock of `time.monotonic`; None for now.
        ratings: of the layers; None to rate them.
        first: see find.

    Raises:
        OutOfTimeError: the time is over before the search can begin.
        QdebugError: settings that do not fit the model, or a runtime or a metric that failed.
    """
    started = time.monotonic() if started is None else started
    ends_at = started + (how.time_limit or math.inf)
    pair = setup.pair
    if setup.engine is not None:
        check_parsed(setup.engine, pair, setup.searched.samples)
    if ratings is None:
        now = time.monotonic()
        until = now + _FOR_RATING * (ends_at - now)
        ratings = rated(setup.context, pair, setup.searched, until)
    space = space_of(how, pair, _costs(how, setup), ratings.noise)
    search = _Search(how, setup, space, started)
    check_time(ends_at)
    search.run(first)
    return _result(search, ratings, explain=time.monotonic() < ends_at)


@dataclass
class _Search:
    """A search with its checks.

    Attributes:
        result: the last search; that with the point that was selected where one was.
        refuted: the checks that an earlier answer failed, which took part in the last search.
        selected: the point that was taken in place of the search's own answer.
    """

    how: PinSearchSpec
    setup: Setup
    space: Space
    started: float
    result: SearchResult = field(init=False)
    refuted: list[str] = field(default_factory=list)
    selected: SelectedPoint | None = None
    notes: list[str] = field(default_factory=list)

    def run(self, first: Sequence[Pins]) -> None:
        """Search, check, and search again where a check fails."""
        allowed = {(i.name, precision) for i in self.space.problem.items for precision in i.costs}
        always = self.space.problem.always
        sets = [always | pins for pins in first if pins - always <= allowed]
        self.result = self._found(self.searched, sets)
        answer = self.result.pins
        if self.result.achieved is not None:
            self.refuted = [on for on, holds in self.checking.items() if not holds(answer).passed]
        if self.refuted:
            again = self._found(self._joint, ())
            if again.achieved is None:
                self.refuted = []
            else:
                self.notes.append(
                    f"The cheapest set found at first ({counted(answer, 'layer')} pinned) does not "
                    f"meet the target on {' and on '.join(self.refuted)}. The search went on and "
                    "required it to hold there too, so these were used in the search."
                )
                self.result = again
        if self.how.select_point is not None:
            self._select(self.how.select_point)

    @cached_property
    def searched(self) -> Predicate:
        """The target on the samples searched."""
        return self.setup.predicate(self.setup.searched)

    @cached_property
    def checking(self) -> dict[str, Predicate]:
        """What the answer is checked on, besides."""
        setup, engine = self.setup, self.setup.engine
        found = {HELD_OUT: setup.predicate(setup.held_out)}
        if engine is not None and not engine.not_run:
            found[ON_ENGINE] = setup.predicate(setup.searched, engine)
        return found

    def checks(self) -> Iterator[Check]:
        """What the answer gives in each check, next to nothing pinned."""
        if self.result.achieved is None:
            return
        for on, predicate in self.checking.items():
            yield Check(
                on,
                predicate.subset.count,
                predicate(self.result.pins),
                predicate(self.space.problem.always),
                predicate.reference_task,
                used_in_search=on in self.refuted,
                bound=predicate.condition.bound,
                reference_interval=self.interval(predicate),
            )

    def interval(self, predicate: Predicate) -> Interval | None:
        """Of FP32's metric, 95 %; None without a metric, and as `reference_interval`."""
        task = predicate.task
        within = FOR_INTERVAL * (self.how.time_limit or math.inf)
        return reference_interval(task, predicate.subset.count, within) if task else None

    def _found(self, evaluate: Evaluate, first: Sequence[Pins]) -> SearchResult:
        held = self.setup.held_out.count / self.setup.searched.count
        return find(
            self.space.problem,
            evaluate,
            # FP32, the answer and nothing pinned on the samples held out, and what is under way.
            Budget(
                self.how.max_evaluations,
                self.how.time_limit or math.inf,
                self.started,
                reserve=1 + 3 * held,
            ),
            first=first,
            on_evaluation=self._report,
            knee_by_value=self.searched.condition.scope == "metric",
        )

    def _joint(self, pins: Pins) -> Measurement:
        """On the samples searched, and where it holds there in the checks that failed; the value is
        that of the one that is closer to failing, or fails."""
        worst = searched = self.searched(pins)
        for on in self.refuted if searched.passed else ():
            found = self.checking[on](pins)
            slack = math.inf if found.slack is None else found.slack
            if not found.passed or slack < (worst.slack or 0.0):
                # The noise stays that of one way to run: it orders the sets.
                worst = replace(
                    found,
                    noise=searched.noise,
                    held_out=on == HELD_OUT,
                    on_engine=on == ON_ENGINE,
                )
            if not worst.passed:
                break
        return worst

    def _select(self, wanted: str) -> None:
        """Take the point that the user wants in place of the answer.

        Raises:
            UsageError: the list of error against cost has no such point.
        """
        own = self.result
        at = selected_index(wanted, own.pareto)
        known = {e.pins: e.measurement for e in own.history}
        pins, problem = own.pareto[at].pins, self.space.problem
        self.selected = SelectedPoint(at + 1, own)
        self.result = replace(
            own,
            pins=pins,
            achieved=known[pins],
            minimal=is_minimal(problem, pins, known.get),
            cost=problem.cost(pins),
        )

    def _report(self, history: Sequence[Evaluation]) -> None:
        passing = [len(e.pins) for e in history if e.measurement.passed]
        notes = [f"{min(passing)} pinned pass"] if passing else []
        if self.how.time_limit is not None:
            left = max(0.0, self.started + self.how.time_limit - time.monotonic())
            notes.append(f"at most {duration(left)} left")
        most = self.how.max_evaluations or 0
        self.setup.context.progress(Progress("search", len(history), most, ", ".join(notes)))


def _costs(how: PinSearchSpec, setup: Setup) -> Costs:
    """What layers cost: in milliseconds of the profile that was given or of the engine with nothing
    pinned, where that runs here and measures its layers; else by multiply-accumulates.

    Raises:
        QdebugError: the engine cannot be built or run.
    """
    samples, pair, runtime = setup.searched.samples, setup.pair, setup.engine
    costs = costs_of(how, pair, samples, setup.kernels)
    if runtime is None or runtime.not_run or how.profile or not spec_of(runtime.name).profiles:
        return costs
    ready = fitted(runtime, setup.model.graph, samples, setup.searched.batches)
    engine = engine_of(ready, pair, not_run="")
    requested, first = build_request(runtime.typing, pair), setup.searched.batches[0]
    with closing(ready.clean(requested.graph.proto, engine.built)) as session:
        measured = session.layer_times(samples.feeds(first.start, first.count))
    return latency.costs_of(latency.kernel_times(engine.info, measured), pair, costs) or costs


def _built(how: PinSearchSpec, setup: Setup, pins: Pins) -> Engine | None:
    """The engine of the answer, audited and saved where that is asked for; None without an engine's
    backend.

    Raises:
        QdebugError: it cannot be built or saved.
    """
    if setup.engine is None:
        return None
    bound = bind_plan(plan_with(setup, pins), setup.model, setup.pair.layers)
    pair = planned_pair(setup.model, bound)
    engine = engine_of(fitted(setup.engine, pair.candidate, setup.searched.samples), pair)
    if how.engine is not None:
        save_engine(engine, how.engine, force=how.force)
    return engine


def _result(search: _Search, ratings: Ratings, *, explain: bool) -> BisectResult:
    how, setup, space, found = search.how, search.setup, search.space, search.result
    condition, reference = search.searched.condition, search.searched.reference_task
    count, task = search.searched.subset.count, search.searched.task
    checks = tuple(search.checks())
    engine = _built(how, setup, found.pins) if found.achieved is not None else None
    suspect = guessing_note(task, reference, count) if task and reference is not None else ""
    cost = cost_summary(space, found)
    worth = hardly_worth(cost, setup.planned.bound.plan.precision) if found.achieved else ""
    unexplained = (
        "Why the layers are wrong was not looked for: the time limit leaves no time for it. qdebug "
        "compare says it."
        if found.achieved and found.pins and not explain
        else ""
    )
    used = {*setup.pair.precisions.values(), *(p for e in found.history for _, p in e.pins)}
    notes = (
        *setup.planned.notes,
        *setup.pair.notes,
        *worst_group_notes(setup.held_out),
        *untimed_notes(how, space),
        *search.notes,
        suspect,
        few_samples_note(setup.target, setup.held_out.count),
        *(engine.notes if engine else ()),
        *(
            capture_note(how.engine, engine.report.not_executed_because)
            if engine and how.engine
            else ()
        ),
        unexplained,
        worth,
    )
    return BisectResult(
        model=ModelRef(how.model, setup.model.file.sha256),
        precision=setup.planned.bound.plan.precision,
        fp16_kernels=setup.context.fp16_kernels if Precision.FP16 in used else None,
        target=condition.expression,
        target_text=condition.words,
        condition=condition,
        metric=setup.target.metric_name,
        metric_is_share=is_share(setup.target.metric),
        samples=count,
        held_out_samples=setup.held_out.count,
        candidates=len(space.problem.items),
        reference_metric=reference,
        reference_interval=search.interval(search.searched),
        search=found,
        found=found.achieved is not None,
        explanation="" if search.selected else explanation(found, condition, reference, count),
        layers=pinned_layers(setup, space, ratings, found, explain=explain),
        cost=cost,
        plan=plan_with(setup, found.pins),
        checks=checks,
        notes=tuple(filter(None, notes)),
        suspect=suspect,
        engine=engine.report if engine else None,
        selected_point=search.selected,
        pinned_by_plan=pinned_by_plan(setup),
    )
