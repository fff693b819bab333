"""Judge quantized networks on samples that nothing was fitted to."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from qdebug.analyse.gate import guessing_note
from qdebug.analyse.metric_grain import grain_of
from qdebug.decide.bisect.target import check_target
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.result import Figures, Reason
from qdebug.errors import BackendError, MetricError, ModelError, PlanError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import KeptReference, MetricEvaluator, OutputKeeper, evaluate, run_of
from qdebug.execute.timelimit import check_time
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ErrorTotals, ExecutedBatch
from qdebug.metrics.candidate import CandidateResult
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tensor import Metrics
from qdebug.network.graph import Graph
from qdebug.network.layers import Layers
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.conditions import Condition

Float64 = npt.NDArray[np.float64]

_MOST_GROUPS = 12
"""In so many groups the samples are left out in turn: how much a metric changes says what the
difference between two networks is worth."""

_ERRORS = 2.0
"""Standard errors by which a network must be better than another."""
_WORTH = 0.05
"""Of the noise: a gain of less is not worth more samples to find out whether it is one."""
_MOST_TIMES = 100.0
"""A gain that only so many times as many samples could tell is none."""


@dataclass(frozen=True)
class Judgement:
    """What a network makes of the samples.

    Attributes:
        outputs: metrics of every float output, by name.
        metric: the end-to-end metric, None without one.
        noise: Σerr²/Σref² of an output, averaged over the float outputs: float64, by how much each
            execution adds to it [executions].
        left_out: the metric without each group of samples, float64 [groups]; empty where that
            cannot be said.
        failure: why it cannot be run; then there is nothing else.
    """

    outputs: Mapping[str, Metrics]
    metric: float | None
    noise: Float64
    left_out: Float64
    failure: str = ""

    @property
    def sqnr_db(self) -> float:
        """That of the worst output; NaN where one is broken or there is none."""
        return self.candidate.sqnr_db

    @property
    def candidate(self) -> CandidateResult:
        """As a condition is checked on."""
        noise = float(self.noise.sum())
        return CandidateResult(self.outputs, self.metric, noise, 0.0, {}, self.failure)

    @property
    def figures(self) -> Figures:
        """For the result."""
        return Figures(self.sqnr_db, self.metric, self.failure)


_NOTHING = Judgement({}, None, np.array([math.inf]), np.zeros(0))
"""Of a network that was not run."""


@dataclass(frozen=True)
class Verdict:
    """Whether a changed network is better than the one before, and by what.

    Attributes:
        rank: to choose among several that are better, the larger the better.
        times: how many times as many samples would tell a gain from chance; inf where nothing
            says it.
    """

    better: bool
    reason: Reason
    rank: tuple[float, float] = (0.0, 0.0)
    times: float = math.inf


class Judge:
    """Runs the FP32 network once over some samples, and then any number of quantized ones.

    Attributes:
        reference_metric: the end-to-end metric of FP32, None without one.
        count: of the samples.
        reference_s: seconds that the FP32 network took, with its metric.
        judged_s: seconds that the network took which was judged last, with its metric.
    """

    def __init__(
        self,
        context: Context,
        graph: Graph,
        subset: SampleSubset,
        metric: TaskMetric | None,
        higher_is_better: bool = True,
    ) -> None:
        """Runs the reference.

        Raises:
            QdebugError: the samples cannot be read, the runtime or the metric failed.
            OutOfTimeError: see Context.
        """
        started = time.monotonic()
        self.judged_s = 0.0
        self._context, self._graph = context, graph
        self._sign = 1.0 if higher_is_better else -1.0
        self._last: tuple[Quantized | onnx.ModelProto | None, Judgement] = None, _NOTHING
        with closing(context.backend.open(graph.proto, ())) as session:
            # How much executions differ is what is looked at: their size stays.
            self._reference = KeptReference(context, graph, session, subset, metric, resize=False)
        self.count = self._reference.subset.count
        task = self._reference.task
        self.reference_metric = task.of_reference() if task else None
        batches = self._reference.subset.batches
        groups = min(_MOST_GROUPS, len(batches))
        self._without: list[Sequence[Batch]] = (
            [[b for i, b in enumerate(batches) if i % groups != g] for g in range(groups)]
            if groups > 1
            else []
        )
        self._tasks = [self._reference.task_on(kept) for kept in self._without]
        self.reference_s = time.monotonic() - started

    def until(self, ends_at: float) -> Judge:
        """The same, which raises OutOfTimeError where it would begin anything later than `ends_at`,
        on the clock of `time.monotonic`."""
        other = copy.copy(self)
        other._context = replace(self._context, ends_at=ends_at)
        return other

    def __call__(self, network: Quantized | onnx.ModelProto) -> Judgement:
        """What a quantized network, or a model with Q/DQ, makes of the samples; the last one is
        remembered.

        Raises:
            MetricError: the metric raised on all samples.
            OutOfTimeError: see `until`.
        """
        if network is not self._last[0]:
            started = time.monotonic()
            self._last = network, self._judged(network)
            self.judged_s = time.monotonic() - started
        return self._last[1]

    def _judged(self, network: Quantized | onnx.ModelProto) -> Judgement:
        kept = OutputKeeper(CANDIDATE, self._graph.outputs)
        errors = _NoiseByExecution()
        reference = self._reference
        try:
            proto = network.proto() if isinstance(network, Quantized) else network
            with closing(self._context.simulation.open(proto, ())) as session:
                totals = evaluate(
                    reference.subset,
                    {REFERENCE: reference.run, CANDIDATE: run_of(session)},
                    {CANDIDATE: Comparison(candidate=CANDIDATE)},
                    self._context,
                    feeds=reference.feeds,
                    sinks=[errors, kept],
                    stage="evaluate",
                )[CANDIDATE]
        except (BackendError, ModelError, PlanError) as error:
            return replace(_NOTHING, failure=error.message)
        metric = None
        left_out = np.zeros(0)
        if reference.task is not None:
            self._check_time()
            metric = reference.task(kept.joined())
            left_out = self._left_out(kept)
        return Judgement(totals.metrics(), metric, errors.noise(totals), left_out)

    def _check_time(self) -> None:
        check_time(self._context.ends_at, "metric")

    def verdict(self, before: Judgement, after: Judgement, best: Judgement | None) -> Verdict:
        """See verdict_on."""
        return verdict_on(before, after, best, self._sign > 0)

    def grain(self) -> float | None:
        """The smallest step that the metric is seen to take; None without one."""
        task = self._reference.task
        return grain_of(task, self.count, self._sign > 0) if task else None

    def guessing_note(self) -> str:
        """A note, where FP32 itself is no better than guessing."""
        task, score = self._reference.task, self.reference_metric
        return guessing_note(task, score, self.count) if task and score is not None else ""

    def samples_for(self, verdict: Verdict) -> int | None:
        """About how many samples would tell the gain of a verdict from chance; None where nothing
        says it."""
        return math.ceil(self.count * verdict.times) if math.isfinite(verdict.times) else None

    def change_error(self, before: Judgement, after: Judgement) -> float | None:
        """The standard error of the difference of the metric; None where nothing says it."""
        if len(before.left_out) < 2 or len(before.left_out) != len(after.left_out):
            return None
        return _jackknife(after.left_out - before.left_out, 0.0)

    def recovered_error(self, before: Judgement, after: Judgement) -> float | None:
        """The standard error of the part of the metric's loss that `after` gives back; None where
        nothing says it."""
        if self.change_error(before, after) is None:
            return None
        full = np.array([task.of_reference() for task in self._tasks if task is not None])
        lost = full - before.left_out
        if np.any(lost == 0):
            return None
        return _jackknife((after.left_out - before.left_out) / lost, 0.0)

    def best_of(self, one: Judgement | None, other: Judgement) -> Judgement:
        """The one with the better metric; the first where they are alike."""
        if one is None or one.metric is None or other.metric is None:
            return other if one is None or one.metric is None else one
        return one if self._sign * (one.metric - other.metric) >= 0 else other

    def _left_out(self, kept: OutputKeeper) -> Float64:
        """The metric without each group of samples; empty where it cannot be computed without
        some."""
        found = []
        for task, batches in zip(self._tasks, self._without, strict=True):
            assert isinstance(task, MetricEvaluator)  # there is a metric
            self._check_time()
            try:
                found.append(task(kept.joined(batches)))
            except MetricError:
                return np.zeros(0)
        return np.array(found)


def verdict_on(
    before: Judgement, after: Judgement, best: Judgement | None, higher_is_better: bool = True
) -> Verdict:
    """Whether `after` is better than `before`, by more than chance.

    With a metric: it is better by more than two standard errors of the difference; or it is not
    worse than that, next to `before` and next to the one of the `best` metric so far, and the
    outputs' noise is lower by more than two of its own. Without one the noise alone decides. (Two,
    because many changes are judged on the same samples, and one sample more or less is one.)

    The standard error of the noise is that of its mean over the executions; that of the metric
    is the jackknife's over groups of samples (Efron and Tibshirani 1993, An Introduction to the
    Bootstrap, 11.5).
    """
    if after.failure:
        return Verdict(False, Reason.FAILS)
    noise = _lower(before.noise, after.noise)
    if after.metric is None or before.metric is None:
        return _by_noise(noise, (0.0, noise.gain))
    risen, error = _risen(before, after, higher_is_better)
    rank = (risen if risen > error else 0.0, noise.gain)
    if risen > error:
        return Verdict(True, Reason.METRIC, rank)
    drifted = False
    if best is not None:  # another than `before`: the difference to it has an error of its own
        since, chance = _risen(best, after, higher_is_better)
        drifted = since < -chance
    if risen < -error or drifted:
        return Verdict(False, Reason.METRIC_FELL, rank)
    return _by_noise(noise, rank)


def _by_noise(noise: _Noise, rank: tuple[float, float]) -> Verdict:
    """Where the metric tells nothing."""
    if noise.lower:
        return Verdict(True, Reason.LESS_NOISE, rank)
    if noise.gain >= _WORTH and (noise.times <= _MOST_TIMES or math.isinf(noise.times)):
        return Verdict(False, Reason.UNDECIDED, rank, noise.times)
    return Verdict(False, Reason.NO_GAIN, rank)


def _risen(before: Judgement, after: Judgement, higher_is_better: bool) -> tuple[float, float]:
    """By how much the metric is better, and what of that may be chance; 0 without a metric."""
    if before.metric is None or after.metric is None:
        return 0.0, 0.0
    risen = (after.metric - before.metric) * (1.0 if higher_is_better else -1.0)
    return risen, _ERRORS * _jackknife(after.left_out - before.left_out, abs(risen))


def holds(
    condition: Condition | None, layers: Layers, found: Judgement, *, surely: bool = False
) -> bool:
    """Whether a target holds; `surely`: by more than the metric's standard error."""
    if condition is None or found.failure:
        return False
    if surely and condition.scope == "metric":
        sign = 1.0 if condition.operator.startswith(">") else -1.0
        condition = replace(condition, bound=condition.bound + sign * standard_error(found))
    return check_target(condition, found.candidate, layers).passed


def standard_error(judgement: Judgement) -> float:
    """That of a network's metric; 0 where it cannot be said."""
    return _jackknife(judgement.left_out, 0.0)


class _Noise(NamedTuple):
    """Whether noise is lower by more than chance, and by how much of what it was.

    Attributes:
        times: how many times as many samples would tell the gain from chance: its standard error
            falls with the root of their number. Inf where nothing says it.
    """

    lower: bool
    gain: float
    times: float = math.inf


def _lower(before: Float64, after: Float64) -> _Noise:
    if not np.all(np.isfinite(after)) or len(before) != len(after):
        return _Noise(False, -math.inf)
    if not np.all(np.isfinite(before)):
        return _Noise(True, math.inf)  # it was broken, and is not
    gain = before - after
    mean = float(gain.mean())
    # Of a single execution nothing tells what is chance.
    error = float(gain.std(ddof=1) / math.sqrt(len(gain))) if len(gain) > 1 else math.inf
    whole = float(before.sum())
    part = float(gain.sum()) / whole if whole > 0 else 0.0
    times = (_ERRORS * error / mean) ** 2 if mean > 0 else math.inf
    return _Noise(mean > _ERRORS * error, part, times)


def _jackknife(differences: Float64, change: float) -> float:
    """The standard error of a difference, from what it is without each group in turn. Without
    groups any change may be chance."""
    count = len(differences)
    if count < 2:
        return change
    spread = differences - differences.mean()
    return math.sqrt((count - 1) / count * float(spread @ spread))


class _NoiseByExecution:
    """A sink: Σerr² of every output in each execution; Inf where it holds NaN or Inf that do not
    belong there. See `pipeline.evaluator.Sink`."""

    def __init__(self) -> None:
        self._found: list[dict[str, float]] = []

    def __call__(self, _: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        sums = errors[CANDIDATE].tensors
        self._found.append(
            {t: math.inf if s.mismatched_non_finite else s.sq_err for t, s in sums.items()}
        )

    def noise(self, totals: ErrorTotals) -> Float64:
        """See Judgement.noise."""
        # Where every value is NaN there is no pair of finite ones, and no energy.
        energies = {
            t: sums.ref_sq or 1.0
            for t, sums in totals.tensors.items()
            if sums.ref_sq > 0 or sums.mismatched_non_finite
        }
        count = max(1, len(energies))
        return np.array(
            [
                sum(one.get(t, 0.0) / energy for t, energy in energies.items()) / count
                for one in self._found
            ]
        )
