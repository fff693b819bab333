"""Judge quantized networks on samples that nothing was fitted to."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx

from qdebug.analyse.gate import guessing_note
from qdebug.analyse.metric_samples import interval_of
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.repair.verdict import (
    Float64,
    Judgement,
    Verdict,
    answer_of,
    choices_of,
    jackknife,
    verdict_on,
)
from qdebug.errors import MetricError, QdebugError
from qdebug.execute.context import Context, runner_of
from qdebug.execute.variants import PlannedVariants
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE
from qdebug.metrics.tasks.base import Judged, Rows, TaskMetric
from qdebug.metrics.uncertainty import Interval, group_numbers
from qdebug.network.graph import Graph
from qdebug.network.outputparts import output_parts
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.run.executor import THIS_PROCESS
from qdebug.run.outputs import Evaluated, MetricEvaluator, OutputEvaluator, joined, mixed
from qdebug.run.reducers import Outputs
from qdebug.run.timelimit import OutOfTimeError, check_time
from qdebug.run.variant import Variant, as_it_is
from qdebug.types import Array

_MOST_GROUPS = 12
"""In so many groups the samples are left out in turn: how much a metric changes says what the
difference between two networks is worth."""

_LEAST_OF_DECISIONS = 1e-6
"""Of losses from 0 to 1, by how sure decisions are: next to nothing. A classifier that is sure of
all samples loses 1e-9, of which one calibrator took half and 20 dB of SQNR."""
_EXACT_DB = -200.0
"""The noise of a sample without any error."""


_NOTHING = Judgement({}, None, np.array([math.inf]), np.zeros(0), noise=math.inf)
"""Of a network that was not run."""


class Judge:
    """Runs the FP32 network once over some samples, and then any number of quantized ones.

    Attributes:
        reference_metric: the end-to-end metric of FP32, None without one.
        count: of the samples.
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
        self.judged_s = 0.0
        self._simulation, self._ends_at = context.simulation, context.ends_at
        self._sign = 1.0 if higher_is_better else -1.0
        self._last: tuple[Quantized | onnx.ModelProto | None, Judgement] = None, _NOTHING
        # How much executions differ is what is looked at: their size stays.
        runner = runner_of(replace(context, executor=THIS_PROCESS), subset)
        reference = as_it_is(graph.proto, context.backend, shared=True)
        self._evaluator = OutputEvaluator(
            runner, graph, reference, metric, parts=output_parts(graph), losses=True
        )
        self._task = self._evaluator.task
        if self._task is None:  # a network is blamed for no error of FP32
            runner.run({REFERENCE: reference}, {REFERENCE: Outputs(REFERENCE)}, REFERENCE)
        self.count, batches = subset.count, subset.batches
        self.reference_metric = self._task.of_reference() if self._task else None
        self._reference: Judged | None = None
        numbers = group_numbers(len(batches), _MOST_GROUPS)
        self._choice_of = dict(zip(batches, numbers.tolist(), strict=True))
        self._group_of = np.repeat(numbers, [batch.count for batch in batches])
        groups = int(numbers.max()) + 1
        self._without: list[Rows] = (
            [np.flatnonzero(self._group_of != group) for group in range(groups)]
            if groups > 1
            else []
        )

    def until(self, ends_at: float) -> Judge:
        """The same, which raises OutOfTimeError where it would begin anything later than `ends_at`,
        on the clock of `time.monotonic`."""
        other = copy.copy(self)
        other._ends_at, other._evaluator = ends_at, self._evaluator.until(ends_at)
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
            found = self._evaluated(network)
            judged = (
                replace(_NOTHING, failure=found.message)
                if isinstance(found, QdebugError)
                else self._judgement(found)
            )
            self._last = network, judged
            self.judged_s = time.monotonic() - started
        return self._last[1]

    def _evaluated(self, network: Quantized | onnx.ModelProto) -> Evaluated | QdebugError:
        variants = {CANDIDATE: self._variant(network)}
        return dict(self._evaluator.each(variants, "evaluate", attempt=True))[CANDIDATE]

    def _variant(self, network: Quantized | onnx.ModelProto) -> Variant:
        if isinstance(network, Quantized):
            return PlannedVariants(network.bound, self._simulation).with_layers({})
        return as_it_is(network, self._simulation)

    def cross_validated(
        self, networks: Sequence[Quantized | onnx.ModelProto], found: Sequence[Judgement]
    ) -> Judgement | None:
        """What is to be expected of the network that these samples choose among several, each of
        which was `found` to be worth so much on them: each group of samples has the outputs of the
        network that the other groups choose (Stone 1974, J. R. Stat. Soc. B 36:111), so that no
        sample judges what it helped to choose. None where that cannot be said: see choices_of.
        Where there is a metric, which decides, the metric is, and all else is that of the network
        that all samples choose.

        Of six networks that are each right on 80 % of all samples, the score of the answer was
        0.051 too high on 48 samples and 0.031 on 96, the cross-validated one 0.009 and 0.002. To
        choose on one half of the samples and judge on the other flatters nothing either, but has
        1.2 to 1.5 times the error (16 to 125 samples, two networks of digits).

        Raises:
            QdebugError: as a call does.
        """
        capped = [self._at_most_fp32(one) for one in found]
        choices = choices_of(capped, self._group_of, self._sign > 0)
        if choices is None:
            return None
        distinct, chosen = sorted(set(choices)), self.answer(found)
        if distinct == [chosen]:
            return found[chosen]
        task = self._task
        if task is not None and task.metric.per_sample is None:
            return self._by_groups(task.metric, found, choices, chosen)
        evaluated = {i: self._evaluated(networks[i]) for i in distinct}
        by_batch: dict[Batch, Evaluated] = {}
        for batch, group in self._choice_of.items():
            one = evaluated[choices[group]]
            assert not isinstance(one, QdebugError)  # only what ran is chosen
            by_batch[batch] = one
        of_mixture = self._judgement(mixed(by_batch))
        if of_mixture.metric is None:
            return of_mixture
        return replace(
            found[chosen],
            metric=of_mixture.metric,
            left_out=of_mixture.left_out,
            losses=of_mixture.losses,
            worst_group=of_mixture.worst_group,
            interval=of_mixture.interval,
        )

    def _by_groups(
        self,
        metric: TaskMetric,
        found: Sequence[Judgement],
        choices: Sequence[int],
        chosen: int,
    ) -> Judgement:
        """The same of a metric that is no mean over samples: outputs of two networks, whose scores
        differ in size, cannot be ranked with each other. Each group adds what it adds to the metric
        of its own network: its pseudo-value, G·θ - (G - 1)·θ without it (Tukey 1958)."""
        groups, answer = len(choices), found[chosen]

        def added(choice: int, group: int) -> float:
            whole, left_out = found[choice].metric, found[choice].left_out
            assert whole is not None  # only what ran is chosen
            return float(groups * whole - (groups - 1) * left_out[group])

        own = np.array([added(choice, group) for group, choice in enumerate(choices)])
        of_answer = np.array([added(chosen, group) for group in range(groups)])
        assert answer.metric is not None
        score = answer.metric + float((own - of_answer).mean())
        left_out = score + (own.mean() - own) / (groups - 1)
        losses = answer.losses.copy()
        for sample in range(len(losses)):
            losses[sample] = found[choices[self._group_of[sample]]].losses[sample]
        interval = interval_of(metric, Judged(score, left_out))
        return replace(answer, metric=score, left_out=left_out, losses=losses, interval=interval)

    def _judgement(self, evaluated: Evaluated) -> Judgement:
        totals, task = evaluated.errors, self._task
        noise_db = _noise_db([*evaluated.energies.values()])
        found = Judgement(totals.metrics(), None, noise_db, np.zeros(0), noise=totals.noise())
        if task is None:
            return found
        judged = self._by_metric(task, joined(evaluated.outputs))
        found = replace(
            found,
            metric=judged.score,
            left_out=judged.left_out,
            worst_group=judged.worst_group,
            interval=interval_of(task.metric, judged),
        )
        if judged.loss is None:
            return found
        of_decisions = task.metric.takes in ("scores", "boxes")
        least = _LEAST_OF_DECISIONS if of_decisions else 0.0
        return replace(found, losses=judged.loss, least_loss=least)

    def reference_interval(self, within_s: float) -> Interval | None:
        """Of FP32's metric, 95 %; None where nothing says it, FP32 is the truth, or computing the
        metric without each group of samples takes longer than `within_s` or the time left."""
        task = self._task
        if task is None or task.metric.takes_reference_as_truth:
            return None
        if len(self._without) * task.metric_s > within_s:
            return None
        try:
            return interval_of(task.metric, self._of_reference(task))
        except OutOfTimeError:
            return None

    def _of_reference(self, task: MetricEvaluator) -> Judged:
        if self._reference is None:
            self._reference = self._by_metric(task, task.reference)
        return self._reference

    def _by_metric(self, task: MetricEvaluator, outputs: Mapping[str, Array]) -> Judged:
        """What the metric says of some outputs, [samples, …], and without each group of samples:
        nothing of that where it cannot be computed without some."""
        given = outputs, task.labels, task.reference
        self._check_time()
        sets = self._while_there_is_time(self._without)
        if all(len(array) == self.count for arrays in given[::2] for array in arrays.values()):
            with suppress(MetricError):
                return task.metric.judged(*given, sets)
        return task.metric.judged(*given)

    def _while_there_is_time(self, sets: Sequence[Rows]) -> Iterator[Rows]:
        for rows in sets:
            self._check_time()
            yield rows

    def _check_time(self) -> None:
        check_time(self._ends_at, "metric")

    def verdict(
        self,
        before: Judgement,
        after: Judgement,
        best: Judgement | None = None,
        start: Judgement | None = None,
    ) -> Verdict:
        """See verdict_on; what is better than FP32 by the metric counts as FP32."""
        capped = self._at_most_fp32
        return verdict_on(
            capped(before),
            capped(after),
            capped(best) if best else None,
            capped(start) if start else None,
            self._sign > 0,
        )

    def _at_most_fp32(self, found: Judgement) -> Judgement:
        """With the metric of FP32 where it has a better one, which is chance: to lose that is no
        loss."""
        task, exact = self._task, self.reference_metric
        if task is None or exact is None or found.metric is None:
            return found
        if self._sign * (found.metric - exact) <= 0:
            return found
        try:
            left_out = self._of_reference(task).left_out
        except OutOfTimeError:
            return found
        return replace(found, metric=exact, left_out=left_out)

    def guessing_note(self) -> str:
        """A note, where FP32 itself is no better than guessing."""
        task, score = self._task, self.reference_metric
        return guessing_note(task, score, self.count) if task and score is not None else ""

    def samples_for(self, verdict: Verdict) -> int | None:
        """About how many samples would tell the gain of a verdict from chance; None where nothing
        says it."""
        return math.ceil(self.count * verdict.times) if math.isfinite(verdict.times) else None

    def change_error(self, before: Judgement, after: Judgement) -> float | None:
        """The standard error of the difference of the metric; None where nothing says it."""
        if len(before.left_out) < 2 or len(before.left_out) != len(after.left_out):
            return None
        return jackknife(after.left_out - before.left_out, 0.0)

    def recovered_error(self, before: Judgement, after: Judgement) -> float | None:
        """The standard error of the part of the metric's loss that `after` gives back; None where
        nothing says it, and where the time is over."""
        if self.change_error(before, after) is None:
            return None
        task = self._task
        assert task is not None  # there is a change
        try:
            lost = self._of_reference(task).left_out - before.left_out
        except OutOfTimeError:
            return None
        if np.any(lost == 0):
            return None
        return jackknife((after.left_out - before.left_out) / lost, 0.0)

    def best_of(self, one: Judgement | None, other: Judgement) -> Judgement:
        """The one with the better metric; the first where they are alike."""
        if one is None or one.metric is None or other.metric is None:
            return other if one is None or one.metric is None else one
        return one if self._sign * (one.metric - other.metric) >= 0 else other

    def answer(self, found: Sequence[Judgement]) -> int:
        """See answer_of; what is better than FP32 by the metric counts as FP32."""
        return answer_of([self._at_most_fp32(one) for one in found], self._sign > 0)


def _noise_db(energies: Sequence[Array]) -> Float64:
    """See Judgement: of each sample the part whose error is the largest next to what the part holds
    on average; +inf where it holds NaN or Inf that do not belong there."""
    if not energies:
        return np.zeros(0)
    errors, signals = (np.concatenate([e[:, k] for e in energies], axis=1) for k in (0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = errors / signals.mean(axis=1, keepdims=True)
        worst = np.where(np.isnan(ratio), np.where(errors > 0, np.inf, 0.0), ratio).max(axis=0)
        found: Float64 = np.maximum(10 * np.log10(worst), _EXACT_DB)
    return found
