"""`qdebug repair`, whole: remedies in turn, then what must be pinned, and the proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import NamedTuple

from qdebug.analyse.metric_samples import FOR_INTERVAL
from qdebug.commands.check.trials import suspicions
from qdebug.commands.outputs import publish
from qdebug.config.search import RepairSettings
from qdebug.decide.bisect.result import BisectResult
from qdebug.decide.bisect.target import few_samples_note
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.result import Answer, Figures, Outcome, Proof, RepairResult, Step
from qdebug.decide.repair.judge import Judge
from qdebug.decide.repair.pins import dropped_pins, fewest_pins, of_no_use, why_dropped
from qdebug.decide.repair.setup import Setup, prepare, question_of
from qdebug.decide.repair.steps import Alternative, Attempt, State, Trying
from qdebug.decide.repair.verdict import Judgement, holds
from qdebug.errors import UsageError
from qdebug.execute.context import time_limit_told
from qdebug.metrics.tasks.base import is_share
from qdebug.result import ModelRef
from qdebug.results.conditions import Condition
from qdebug.results.words import share
from qdebug.run.timelimit import OutOfTimeError
from qdebug.types import ProgressCallback, ignore_progress
from qdebug.wording import counted, option

_NOT_PINNED = "The time limit left no time to search for layers to pin."
_NOTHING_TO_PIN = (
    "The target holds and no layer needs pinning, so that the repair ended before its time limit."
)
_WENT_ON = (
    "The target held on the selection samples, but not on the held-out samples: more remedies "
    "were tried."
)
_LEAST_LEFT = 0.1
"""Of what the lower precision saves: engines have lost more than that where the precision changes
(docs/validation/repair.md, `split`)."""


def repair(settings: RepairSettings, progress: ProgressCallback = ignore_progress) -> RepairResult:
    """Give a quantized network its accuracy back, without training.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was done is kept.
    """
    ends_at = time.monotonic() + (settings.time_limit or math.inf)
    with ExitStack() as stack, time_limit_told(settings.time_limit):
        return _repair(stack, settings, progress, ends_at)


def _repair(
    stack: ExitStack,
    settings: RepairSettings,
    progress: ProgressCallback,
    ends_at: float,
) -> RepairResult:
    sequence = _sequence(settings)
    setup = prepare(settings, progress, stack, ends_at)
    judge, baseline = setup.judge, setup.baseline
    suspicious = suspicions(
        setup.context, setup.reference.graph, setup.choosing.samples, setup.metric, ends_at=ends_at
    )
    condition = _condition(setup, judge)
    proving = _Proving(setup)

    def on_step(state: State) -> str:
        proven = proving.so_far(state) if state.steps[-1].accepted else None
        if proven is None:
            return ""
        return publish(settings, replace(_found(settings, setup, state, proven), unfinished=True))

    trying = _trying(setup, condition, on_step)
    state = State(setup.start, tuple(Attempt(name) for name in sequence))
    state, found, explanation, went_on = _tried(trying, proving, state)
    proven = proving.of(state)
    was_worse = proven.reverted and judge.verdict(found, baseline).better
    dropped = _why_dropped(setup, was_worse) if proven.reverted else ""
    result = _found(settings, setup, state, proven)
    suspect = judge.guessing_note()
    notes = tuple(
        filter(
            None,
            (
                *suspicious,
                *result.notes,
                suspect,
                few_samples_note(setup.target, setup.proving.count) if setup.target else "",
                went_on,
            ),
        )
    )
    needs_pins = setup.target is not None and not (result.holds and proven.suffices)
    if explanation and setup.target is not None and settings.pin and not needs_pins:
        explanation = _NOTHING_TO_PIN
    fewest, empty = None, ""
    if needs_pins and settings.pin:
        fewest = fewest_pins(setup, result.network, ends_at, state.steps)
        explanation = explanation or ("" if fewest else _NOT_PINNED)
        empty = _not_worth(fewest.found) if fewest else ""
    if fewest is not None and not empty:
        if fewest.network is not result.network:  # then the figures are those of the start, too
            proven = proving.of(replace(state, alternatives=()))._replace(reverted=True)
            notes = (*notes, why_dropped(fewest))
            result = _found(settings, setup, state, proven)
            if fewest.dropped:
                result = replace(result, dropped_pinning=dropped_pins(fewest.dropped))
        result = _with_pins(result, fewest.found)
    explanation = " ".join(filter(None, (_ended_early(explanation, state), empty)))
    return replace(
        result,
        explanation=explanation or dropped or _missed(setup, result),
        notes=notes,
        suspect=suspect,
    )


def _tried(trying: Trying, proving: _Proving, state: State) -> tuple[State, Judgement, str, str]:
    """The state after all remedies, what its network is worth, why it ended early, and that more
    were tried than the selection samples asked for; "" where that is not so."""
    state, found, explanation = trying.run(state)
    steps = len(state.steps)
    # Few selection samples may lose nothing where others do.
    while state.waiting and trying.enough(found) and not proving.of(state).proof.passed:

        def enough(after: Judgement, before: Figures = found.figures) -> bool:
            return after.figures != before and trying.enough(after)

        state, found, explanation = replace(trying, enough=enough).run(state)
        if explanation:
            break
    return state, found, explanation, _WENT_ON if len(state.steps) > steps else ""


def _found(settings: RepairSettings, setup: Setup, state: State, proven: _Proven) -> RepairResult:
    """What a repair gave, nothing pinned."""
    answer, judge = proven.answer, setup.judge
    # The figures and the verdict are those of what is given back.
    found = answer.judged
    if not found.outputs:  # of an earlier run, which kept no more than what steps need
        found = judge.until(math.inf)(answer.network)
    condition = _condition(setup, judge)
    return RepairResult(
        model=ModelRef(settings.model, setup.reference.file.sha256),
        precision=str(setup.start.bound.plan.precision),
        calibration_samples=setup.fitting.count,
        choosing_samples=judge.count,
        choosing_reference_metric=judge.reference_metric,
        metric=setup.metric.name if setup.metric else "",
        target=condition.expression if condition else "",
        target_text=condition.words if condition else "",
        baseline=setup.baseline.figures,
        started=setup.judged_start.figures if setup.given is not None else None,
        repaired=found.figures,
        holds=holds(condition, found) if condition else None,
        reverted=proven.reverted,
        steps=tuple(
            _ended(step, number in answer.steps, None) for number, step in enumerate(state.steps)
        ),
        skipped=state.skipped,
        untried=tuple(dict.fromkeys(attempt.remedy for attempt in state.waiting)),
        proof=proven.proof,
        explanation="",
        plan=answer.network.bound.plan,
        network=answer.network,
        question=question_of(setup),
        given=setup.given.graph.proto if proven.reverted and setup.given else None,
        notes=setup.notes,
    )


def _ended(step: Step, is_in_answer: bool, pinning: BisectResult | None) -> Step:
    """With what became of it in the end."""
    if not step.accepted:
        return step
    if not is_in_answer:
        outcome = Outcome.DROPPED
    elif pinning is not None and of_no_use(step, pinning.pinned):
        outcome = Outcome.NO_USE
    else:
        outcome = Outcome.KEPT
    return replace(step, outcome=outcome)


def _sequence(settings: RepairSettings) -> tuple[str, ...]:
    """The remedies to try, in order.

    Raises:
        UsageError: none is left.
    """
    left = tuple(
        name
        for name in REMEDIES
        if (not settings.only or name in settings.only) and name not in settings.never
    )
    if not left:
        raise UsageError(
            f"{option('never')} leaves no remedy to try",
            f"Drop one of its names, or use {option('only')} alone.",
            code="QD-USAGE-REMEDY",
        )
    return left


def _condition(setup: Setup, judge: Judge) -> Condition | None:
    return setup.target.condition_for(judge.reference_metric) if setup.target else None


class _Proven(NamedTuple):
    """The best network of a repair.

    Attributes:
        answer: with what it is worth on the selection samples.
        reverted: it is what the repair began with, in place of others.
        suffices: the target holds with it on the held-out samples that chose it. Pins are judged
            on these, and cannot be searched for where it does.
    """

    proof: Proof
    answer: Alternative
    reverted: bool
    suffices: bool


class _Proving:
    """Networks on held-out samples, which choose between them. Each is run there once."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._judge = setup, setup.proving_judge
        self._start = setup.proven_start
        self._judged: dict[int, tuple[Quantized, Judgement]] = {}

    def so_far(self, state: State) -> _Proven | None:
        """The best network of a repair that goes on; None where there is no time to say it, and
        where it is what the repair began with."""
        try:
            for one in state.alternatives:
                self._of(one.network, self._setup.remedies_end_at)
        except OutOfTimeError:
            return None
        proven = self.of(state, cross_validated=False)
        return None if proven.answer.network is self._setup.start else proven

    def of(self, state: State, *, cross_validated: bool = True) -> _Proven:
        """The best network of a repair, by samples that chose none: see Judge.answer. What it is
        said to be worth is cross-validated, since they choose now. Where the time is over, only
        the last one is run.
        """
        setup, judge = self._setup, self._judge
        start = Alternative((), setup.start, setup.baseline)
        waiting = [*reversed(state.alternatives)]
        if setup.given:  # it is not in the form that a repair begins with
            waiting.append(Alternative((), setup.start, setup.judged_start))
        compared: list[tuple[Alternative, Judgement]] = []
        for one in waiting:
            with suppress(OutOfTimeError):
                ends_at = setup.ends_at if compared else math.inf
                compared.append((one, self._of(one.network, ends_at)))
        compared.append((start, self._start))
        judged = [found for _, found in compared]
        answer, repaired = compared[judge.answer(judged)]
        validated = None
        # Of the network before the repair nothing is claimed that the choice could flatter.
        if cross_validated and answer is not start:
            networks = [one.network for one, _ in compared[:-1]]
            given = setup.given.graph.proto if setup.given else setup.start
            with suppress(OutOfTimeError):
                validated = judge.cross_validated([*networks, given], judged)
        condition = _condition(setup, judge)
        suffices = holds(condition, repaired)
        repaired = validated or repaired
        proof = Proof(
            samples=judge.count,
            reference_metric=judge.reference_metric,
            start=self._start.figures,
            repaired=repaired.figures,
            target=condition.expression if condition else "",
            passed=None if condition is None else holds(condition, repaired),
            target_text=condition.words if condition else "",
            change_error=judge.change_error(self._start, repaired),
            recovered_error=judge.recovered_error(self._start, repaired),
            higher_is_better=setup.higher_is_better,
            metric_is_share=is_share(setup.metric),
            answers=tuple(
                Answer(one.steps, found.figures, one is answer) for one, found in compared
            )
            if len(compared) > 1
            else (),
            cross_validated=validated is not None,
            reference_interval=judge.reference_interval(
                FOR_INTERVAL * (setup.ends_at - time.monotonic())
            ),
        )
        return _Proven(proof, answer, answer is start and len(compared) > 1, suffices)

    def _of(self, network: Quantized, ends_at: float) -> Judgement:
        """Raises OutOfTimeError."""
        if id(network) not in self._judged:
            self._judged[id(network)] = network, self._judge.until(ends_at)(network)
        return self._judged[id(network)][1]


def _trying(setup: Setup, condition: Condition | None, on_step: Callable[[State], str]) -> Trying:
    return Trying(
        study=setup.study,
        judge=setup.judge,
        start=setup.judged_start,
        remedies=REMEDIES,
        enough=lambda found: holds(condition, found, surely=True),
        holds=lambda found: holds(condition, found),
        ends_at=setup.remedies_end_at,
        on_step=on_step,
        keep_undecided=setup.keep_undecided,
    )


def _with_pins(result: RepairResult, pinning: BisectResult) -> RepairResult:
    """With what was found to pin."""
    network = result.network
    if pinning.found:
        bound, plan = network.bound, pinning.plan
        precisions = {**bound.precisions, **plan.layers}
        network = replace(network, bound=replace(bound, plan=plan, precisions=precisions))
    took_part = result.holds or any(check.used_in_search for check in pinning.checks)
    return replace(
        result,
        steps=tuple(
            _ended(step, step.outcome in (Outcome.KEPT, Outcome.NO_USE), pinning)
            for step in result.steps
        ),
        proof=replace(result.proof, used_in_search=bool(took_part)),
        pinning=pinning,
        plan=network.bound.plan,
        network=network,
        given=None,
    )


def _not_worth(pinning: BisectResult) -> str:
    """That pins reach the target only where next to nothing is left in lower precision: such a
    network is none that a repair gives. "" where more is left."""
    if not pinning.found or pinning.cost.left_share >= _LEAST_LEFT:
        return ""
    precision = str(pinning.precision).upper()
    return (
        f"{pinning.explanation} {precision} is not worth it: the target takes "
        f"{counted(pinning.layers, 'layer')} in {pinning.raised_to}, which leaves less than "
        f"{share(_LEAST_LEFT)} of what {precision} saves. Nothing was pinned."
    ).strip()


def _ended_early(why: str, state: State) -> str:
    """Why a repair ended early; "" where it did not."""
    if why and not state.steps and state.waiting and why != _NOTHING_TO_PIN:
        return f"{why} None was tried to its end: give more time ({option('time_limit')})."
    return why


def _why_dropped(setup: Setup, was_worse: bool) -> str:
    """Why what was kept is not the result; `was_worse`: on the selection samples, too."""
    if setup.given is not None and was_worse:
        return (
            "In static, symmetric INT8, as TensorRT takes it, the network is worse than the given "
            "model, and the remedies do not make up for that: it is the result."
        )
    return (
        "What was better on the selection samples is worse than the network before the repair on "
        "the held-out samples: it was dropped. Give more samples."
    )


def _missed(setup: Setup, result: RepairResult) -> str:
    """Why the target is not reached, for people; "" where it is, or where there is none."""
    proof, pinning = result.proof, result.pinning
    if setup.target is None or (result.holds and proof.passed):
        return ""
    if pinning is not None:
        return pinning.explanation
    if result.holds:
        how = ", cross-validated" if proof.cross_validated else ""
        return f"The target holds on the selection samples, but not on the held-out samples{how}."
    return "The remedies alone do not reach the target, and nothing was to be pinned."
