"""What sets of layers give at the outputs when they run in FP32 together."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from qdebug.analyse.effect.candidates import Candidates, High, candidates_of
from qdebug.errors import MetricError, QdebugError
from qdebug.execute.context import Context, runner_of
from qdebug.execute.measure_options import output_options
from qdebug.metrics.effect import mean_share, noise_by_sample
from qdebug.metrics.tasks.base import Float64, TaskMetric
from qdebug.metrics.tasks.classes import tells_apart
from qdebug.metrics.tensor import noise_db
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import ModelPair
from qdebug.results.curve import CurvePoint, Figure, part_restored
from qdebug.run.outputs import Evaluated, OutputEvaluator, joined
from qdebug.run.variant import as_it_is
from qdebug.types import Array

_SURE = 2.0
_LEAST_LOSS = 0.01
"""A loss is followed where it is worse than FP32's by so many standard errors of the mean, and by
so much of itself."""


@dataclass(frozen=True)
class Outcome:
    """What a set of layers in FP32 gives.

    Attributes:
        noise: the part of each sample in the outputs' noise Σerr²/Σref², of all parts alike,
            float64 [samples]; one for each batch where outputs do not lie on the samples' axis.
        worst: the same of the worst part of each output.
        losses, score: of the metric, the losses float64 [samples], weighted as the samples are;
            None where there are none.
    """

    noise: Array
    worst: Array
    losses: Float64 | None = None
    score: float | None = None


class Sets:
    """Runs sets of layers in FP32 on some samples, each set once.

    Attributes:
        samples: how many there are.
        unseen: the part of all samples that are not among these; the chance not to be among them.
        most: how many sets are run at the most.
        known: what those that were run give; None of those that the runtime does not take.
    """

    def __init__(
        self,
        context: Context,
        pair: ModelPair,
        candidates: Candidates,
        subset: SampleSubset,
        metric: TaskMetric | None = None,
        weights: Array | float = 1.0,
    ) -> None:
        """Runs nothing yet.

        Args:
            weights: how many of all samples each of these stands for.
        """
        self._made_of, self._weights = (context, pair, metric), weights
        self._relative = weights / np.mean(weights)
        self.unseen = float(np.mean(1 - 1 / np.asarray(weights)))
        graph, there = pair.reference, {*pair.candidate.outputs}
        self.candidates, self.samples, self.most = candidates, subset.count, math.inf
        self._judge = OutputEvaluator(
            runner_of(context, subset),
            graph,
            as_it_is(graph.proto, context.backend),
            metric,
            options=output_options(graph),
            parts=pair.parts,
            losses=True,
            compared=there,
        )
        self._places: list[slice] = []  # of the parts of each output, among all parts
        for tensor in (t for t in graph.outputs if t in there and graph.is_float(t)):
            start = self._places[-1].stop if self._places else 0
            count = len(pair.parts[tensor].parts) if tensor in pair.parts else 1
            self._places.append(slice(start, start + count))
        self.known: dict[High, Outcome | None] = {}

    def on(self, subset: SampleSubset, weights: Array | float = 1.0) -> Sets:
        """The same on other samples, which stand for so many each."""
        context, pair, metric = self._made_of
        return Sets(context, pair, self.candidates, subset, metric, weights)

    def __call__(self, sets: Sequence[Collection[str]]) -> list[Outcome | None]:
        """What each set gives; None of one that the runtime does not take, and beyond `most`.

        Raises:
            QdebugError: samples cannot be read, or FP32 does not run.
            OutOfTimeError: it takes longer than it may; what was run is known.
        """
        due = [h for h in dict.fromkeys(map(frozenset, sets)) if h not in self.known]
        due = due[: max(0, int(min(self.most, 1e9)) - len(self.known))]
        variants = {str(k): self.candidates.variant(high) for k, high in enumerate(due)}
        for k, found in self._judge.each(variants, "effects", attempt=True):
            outcome = None if isinstance(found, QdebugError) else self._outcome(found)
            self.known[due[int(k)]] = outcome
        return [self.known.get(frozenset(names)) for names in sets]

    def of_reference(self) -> Outcome:
        """What FP32 gives."""
        task, none = self._judge.task, np.zeros(1)
        with suppress(MetricError):  # so few samples cannot be judged
            if task is not None:
                losses = self._weighted(task.losses(task.reference))
                return Outcome(none, none, losses, task.of_reference())
        return Outcome(none, none)

    def _outcome(self, found: Evaluated) -> Outcome:
        energies = np.concatenate([*found.energies.values()], axis=2) * self._weights
        each = energies.sum(axis=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = np.where(each[:, 0] == 0, 0.0, each[:, 0] / each[:, 1])
        worst = [one.start + int(np.argmax(noise[one])) for one in self._places]
        both = noise_by_sample(energies), noise_by_sample(energies[worst])
        with suppress(MetricError):  # outputs that hold NaN, or too few samples
            if task := self._judge.task:
                outputs = joined(found.outputs)
                return Outcome(*both, self._weighted(task.losses(outputs)), task(outputs))
        return Outcome(*both)

    def _weighted(self, losses: Float64 | None) -> Float64 | None:
        return None if losses is None else losses * self._relative


def sets_of(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    metric: TaskMetric | None = None,
) -> Sets | None:
    """Sets of the layers of a pair; None where no layer can be left out, or no output is
    floating-point.

    Raises:
        PlanError: a rewritten model is not valid.
    """
    graph, candidates = pair.reference, candidates_of(context, pair)
    floats = (t for t in pair.candidate.outputs if t in graph.outputs and graph.is_float(t))
    if candidates is None or not any(floats):
        return None
    return Sets(context, pair, candidates, subset, metric)


@dataclass(frozen=True)
class Yardstick:
    """What sets are judged by: the task's loss, or the noise of the outputs, by their worst parts.

    Attributes:
        planned, reference: it by sample, with no layer in FP32 and with all.
        unseen: see Sets.
    """

    figure: Figure
    planned: Array
    reference: Array
    unseen: float

    @classmethod
    def of(cls, sets: Sets) -> Yardstick | None:
        """The loss, where it is surely worse than FP32's; None where nothing is lost."""
        planned, reference = sets([()])[0], sets.of_reference()
        if planned is None:
            return None
        if planned.losses is not None and reference.losses is not None:
            lost, scores = planned.losses - reference.losses, (planned.score, reference.score)
            tells = tells_apart(planned.losses, reference.losses, *scores)
            least = _LEAST_LOSS * abs(float(planned.losses.mean()))
            least = max(least, _SURE * float(lost.std()) / math.sqrt(len(lost)))
            if np.isfinite(lost).all() and tells and lost.mean() > least:
                return cls(Figure.LOSS, planned.losses, reference.losses, sets.unseen)
        if not planned.worst.sum() > 0:
            return None
        return cls(Figure.SQNR, planned.worst, np.zeros_like(planned.worst), sets.unseen)

    def figure_of(self, by_sample: Array) -> float:
        """The mean loss, or the noise."""
        total = float(by_sample.sum())
        return total / len(by_sample) if self.figure is Figure.LOSS else total

    def restored(self, outcome: Outcome | None) -> float:
        """The part of what was lost that a set gives back; NaN where it is not known."""
        value = self._by_sample(outcome)
        if value is None:
            return math.nan
        figures = (self.figure_of(x) for x in (self.planned, value, self.reference))
        return part_restored(*figures)

    def point(self, layers: int, outcome: Outcome | None, before: float) -> CurvePoint | None:
        """A point of a curve, the highest of which is `before`; None where it is not known."""
        value = self._by_sample(outcome)
        if value is None:
            return None
        restored, lost = self.restored(outcome), float((self.planned - self.reference).sum())
        variance = mean_share(self.planned - value, lost, self.unseen)[1]
        known = math.isfinite(lost) and math.isfinite(variance)
        shown = self.shown(self.figure_of(value))
        std = math.sqrt(variance) if known else None
        return CurvePoint(layers, shown, restored, restored > before, std)

    def shown(self, figure: float) -> float:
        """In dB, where it is noise."""
        return noise_db(figure) if self.figure is Figure.SQNR else figure

    def _by_sample(self, outcome: Outcome | None) -> Array | None:
        if outcome is None:
            return None
        return outcome.losses if self.figure is Figure.LOSS else outcome.worst
