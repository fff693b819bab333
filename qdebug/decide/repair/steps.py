"""Try remedies one after the other, and keep what is better on samples that it has not seen."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.decide.remedies.result import Reason, SkippedRemedy, Step
from qdebug.decide.repair.judge import Judge
from qdebug.decide.repair.verdict import Judgement, Verdict
from qdebug.run.timelimit import OutOfTimeError, check_time
from qdebug.types import Progress
from qdebug.wording import counted

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """A remedy that is to be tried.

    Attributes:
        layers: on which; None stands for all that it applies to.
    """

    remedy: str
    layers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Alternative:
    """A network that was better than the one before it, and may be the answer.

    Attributes:
        steps: the numbers, from 0, of the steps whose changes it has.
        network: with what these changed.
        judged: what it is worth on the selection samples.
    """

    steps: tuple[int, ...]
    network: Quantized
    judged: Judgement


Tried = tuple[Step, Quantized | None, Judgement | None]
"""The step, and the changed network with what it is worth: None where there is none."""


@dataclass(frozen=True)
class State:
    """How far a repair is.

    Attributes:
        network: with all that was kept so far.
        waiting: what is still to be tried, in order.
        best: of the network with the best metric so far; None before the first.
        alternatives: after each change that was kept, in this order.
    """

    network: Quantized
    waiting: tuple[Attempt, ...]
    steps: tuple[Step, ...] = ()
    skipped: tuple[SkippedRemedy, ...] = ()
    best: Judgement | None = None
    alternatives: tuple[Alternative, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of the steps whose changes are in the network."""
        return tuple(i for i, step in enumerate(self.steps) if step.accepted)


@dataclass
class Trying:
    """Tries the remedies of `remedies` that a state waits for.

    Attributes:
        start: what the network is worth before the first step; None judges it.
        enough: whether a network is good enough to stop.
        holds: whether the target holds with a network.
        ends_at: an attempt that has not ended at this time, of `time.monotonic`, is cut off and
            dropped.
        on_step: is told the state after every step; returns what is to be said of it.
        keep_undecided: what looks better is kept, too, where too few samples judge it to tell.
    """

    study: Study
    judge: Judge
    remedies: Mapping[str, Remedy]
    enough: Callable[[Judgement], bool]
    holds: Callable[[Judgement], bool]
    start: Judgement | None = None
    ends_at: float = math.inf
    on_step: Callable[[State], str] = lambda _: ""
    keep_undecided: bool = False

    def run(self, state: State) -> tuple[State, Judgement, str]:
        """Try all that waits. Returns the state, what its network is worth, and why it ended
        early, or "".

        Raises:
            QdebugError: the metric raised, or samples cannot be read.
        """
        current = self.judge(state.network)
        if self.start is None:
            self.start = current
        state = replace(state, best=self.judge.best_of(state.best, current))
        said = ""
        while state.waiting:
            if self.enough(current):
                return state, current, ""
            after = None
            if time.monotonic() < self.ends_at:
                after = self._next(state, current)
            if after is None:
                left = ", ".join(dict.fromkeys(a.remedy for a in state.waiting))
                told = f"The part of the time limit that is for remedies was over before {left}."
                return state, current, told
            before = len(state.steps)
            state, current = after
            state = replace(state, best=self.judge.best_of(state.best, current))
            if len(state.steps) > before:
                said = self.on_step(state) or said
            self._report(state, current, said)
        return state, current, ""

    def _next(self, state: State, current: Judgement) -> tuple[State, Judgement] | None:
        """After the first attempt that waits; None where time ran out during it."""
        attempt, rest = state.waiting[0], state.waiting[1:]
        remedy = self.remedies[attempt.remedy]
        if attempt.layers is None:
            return self._opened(replace(state, waiting=rest), remedy), current
        tried = self._tried(state, attempt, current)
        if tried is None:
            return None
        step, result, after = tried
        state = replace(state, waiting=rest, steps=(*state.steps, step))
        if step.accepted and result is not None and after is not None:
            found = Alternative(state.kept, result, after)
            alternatives = (*state.alternatives, found)
            return replace(state, network=result, alternatives=alternatives), after
        return state, current

    def _opened(self, state: State, remedy: Remedy) -> State:
        """With the attempts that a remedy on all its layers consists of, at the front."""
        name = remedy.name
        reason = ""
        layers = remedy.layers(state.network)
        count = self.study.samples.count
        if not layers:
            reason = "no layer that it applies to"
        elif count < remedy.fewest_samples:
            reason = f"needs {remedy.fewest_samples} calibration samples, there are {count}"
        if reason:
            return replace(state, skipped=(*state.skipped, SkippedRemedy(name, reason)))
        groups = [Attempt(name, tuple(group)) for group in remedy.groups(state.network, layers)]
        return replace(state, waiting=(*groups, *state.waiting))

    def _tried(self, state: State, attempt: Attempt, current: Judgement) -> Tried | None:
        """What a remedy gives on some layers; None where time ran out before all of it was judged:
        a part of the proposals would decide otherwise than all of them."""
        try:
            return self._judged(state, attempt, current)
        except OutOfTimeError:
            return None

    def _judged(self, state: State, attempt: Attempt, current: Judgement) -> Tried:
        remedy, layers = self.remedies[attempt.remedy], attempt.layers or ()
        study, judge = self.study, self.judge
        if math.isfinite(self.ends_at):
            study, judge = study.until(self.ends_at), judge.until(self.ends_at)
        begun, count = time.monotonic(), 0
        found: tuple[Proposal, Judgement, Verdict] | None = None
        for proposal in _proposals(remedy, study, state.network, layers):
            count += 1
            after = judge(proposal.result)
            verdict = self.judge.verdict(current, after, state.best, self.start)
            if self.keep_undecided and verdict.reason is Reason.UNDECIDED:
                verdict = replace(verdict, better=True)
            if verdict.better and self.holds(current) and not self.holds(after):
                verdict = replace(verdict, better=False, reason=Reason.METRIC_FELL)
            does_harm = verdict.reason in (Reason.METRIC_FELL, Reason.MORE_LOSS, Reason.FAILS)
            if not (verdict.better or does_harm) and self.holds(after) and not self.holds(current):
                # Of one noisy sample a target of all samples' noise may depend.
                verdict = replace(verdict, better=True, reason=Reason.TARGET)
            what = f"{remedy.name} ({proposal.what})" if proposal.what else remedy.name
            metric = "" if after.metric is None else f", metric {after.metric:.4g}"
            _LOG.info("%s: %.2f dB%s: %s", what, after.sqnr_db, metric, verdict.reason)
            if found is None or (verdict.better, verdict.rank) > (found[2].better, found[2].rank):
                found = proposal, after, verdict
            check_time(self.ends_at)
        seconds = time.monotonic() - begun
        before = current.figures
        if found is None:
            step = Step(
                remedy.name, "", layers, False, Reason.NOTHING_CHANGED, before, None, 0, seconds
            )
            return step, None, None
        proposal, after, verdict = found
        step = Step(
            remedy=remedy.name,
            what=proposal.what,
            layers=proposal.layers if verdict.better else layers,
            accepted=verdict.better,
            reason=verdict.reason,
            before=before,
            after=after.figures,
            proposals=count,
            seconds=seconds,
            samples_needed=self.judge.samples_for(verdict),
        )
        return step, proposal.result, after

    def _report(self, state: State, current: Judgement, said: str) -> None:
        done = len(state.steps) + len(state.skipped)
        kept = counted(len(state.kept), "change")
        note = f"{kept} kept, {current.sqnr_db:.1f} dB"
        if current.metric is not None:
            note += f", metric {current.metric:.4g}"
        note += f"; {said}" if said else ""
        self.study.progress(Progress("repair", done, done + len(state.waiting), note))


def _proposals(
    remedy: Remedy, study: Study, network: Quantized, layers: tuple[str, ...]
) -> Iterator[Proposal]:
    """What a remedy proposes. Corrections that a quantized model came with make up for the errors
    of its layers: with these gone they may be errors themselves, so that a rewritten network is
    tried with the weights of FP32, too."""
    for proposal in remedy.propose(study, network, layers):
        yield proposal
        if remedy.rewrites and network.bound.corrections and proposal.result.bound.corrections:
            bare = proposal.result.with_own_weights()
            yield replace(proposal, result=bare, what=f"{proposal.what}, weights of FP32")
