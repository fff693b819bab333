"""Any number of candidates against one reference, by their outputs: errors and the task's score."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qdebug.errors import QdebugError
from qdebug.memo import digest_of
from qdebug.metrics.accumulate import (
    CANDIDATE,
    REFERENCE,
    Comparison,
    ErrorTotals,
    ExecutedBatch,
    compare_batch,
)
from qdebug.metrics.effect import output_energies
from qdebug.metrics.sums import MeasureOptions
from qdebug.metrics.tasks.base import Float64, TaskMetric, join_outputs
from qdebug.network.graph import Graph
from qdebug.network.outputparts import OutputParts
from qdebug.network.samples import Batch, Samples
from qdebug.run.runner import Runner
from qdebug.run.variant import Variant
from qdebug.types import Array, Tensors

ByBatch = Mapping[Batch, Tensors]
"""Tensors of each batch, in order."""


@dataclass(frozen=True)
class Evaluated:
    """What a candidate makes of the samples.

    Attributes:
        errors: of its float outputs, against the reference.
        inner: of the tensors that it captures.
        outputs: of each batch, what a metric needs of them; empty without a metric.
        energies: of each batch, as of `output_energies`; empty where they are not asked for.
        each: the errors of each batch; likewise.
    """

    errors: ErrorTotals
    inner: ErrorTotals
    outputs: ByBatch
    energies: Mapping[Batch, Array]
    each: Mapping[Batch, ErrorTotals]

    @property
    def sample_energies(self) -> Array | None:
        """Σerr² and Σref² of each output for each sample, float64 [outputs, 2, samples]; None where
        an output does not lie on the samples' axis."""
        if not self.energies:
            return None
        found = np.concatenate([*self.energies.values()], axis=2)
        return found if found.shape[2] == sum(batch.count for batch in self.energies) else None


def mixed(by_batch: Mapping[Batch, Evaluated]) -> Evaluated:
    """What a candidate would give that makes of each batch what another one makes of it; their
    energies were asked for."""
    errors = ErrorTotals()
    for batch, one in by_batch.items():
        errors.add(one.each[batch])
    outputs = {batch: one.outputs[batch] for batch, one in by_batch.items() if one.outputs}
    energies = {batch: one.energies[batch] for batch, one in by_batch.items() if one.energies}
    return Evaluated(errors, ErrorTotals(), outputs, energies, {})


@dataclass(frozen=True)
class NeededOutputs:
    """What a metric needs of the outputs of one variant. See Reducer.

    Attributes:
        outputs: the names of the outputs.
        samples: have the labels.
        losses: keep what each sample loses against the reference, too.
    """

    variant: str
    outputs: tuple[str, ...]
    metric: TaskMetric
    samples: Samples
    losses: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return tuple(dict.fromkeys((REFERENCE, self.variant)))

    @property
    def key(self) -> str | None:
        """See Reducer."""
        if self.metric.key is None:
            return None
        read = self.metric.key, self.samples.labels_digest
        return digest_of("needed", self.variant, self.outputs, read, self.losses)

    def reduce(self, executed: ExecutedBatch) -> dict[Batch, Tensors]:
        """See Reducer. Where the metric needs hardly less than the outputs, these.

        Raises:
            MetricError: the metric does not take them.
        """
        batch = executed.batch
        own = reference = self._of_samples(executed, self.variant)
        if not (self.losses and self.variant == REFERENCE):
            reference = self._of_samples(executed, REFERENCE) if self.losses else {}
        labels = self.samples.extras.rows(batch.start, batch.count)
        needed = self.metric.reduced(own, labels, reference)
        if needed is not None:
            return {batch: {**needed}}
        tensors = executed.of(self.variant)
        # The runtime's own arrays would keep more of its memory than they are large.
        return {batch: {t: tensors[t].copy() for t in self.outputs if t in tensors}}

    def merge(
        self, before: dict[Batch, Tensors], after: dict[Batch, Tensors]
    ) -> dict[Batch, Tensors]:
        """See Reducer."""
        return before | after

    def _of_samples(self, executed: ExecutedBatch, variant: str) -> dict[str, Array]:
        tensors = executed.of(variant)
        return joined({executed.batch: {t: tensors[t] for t in self.outputs if t in tensors}})


@dataclass(frozen=True)
class CandidateErrors:
    """All that is measured of one candidate. See Reducer.

    Attributes:
        variant: the candidate's name.
        errors, inner: what to compare of the outputs, and of the captured tensors.
        needed: what the metric needs; None without one.
        parts: of the outputs, for their energies by sample; None where these are not asked for.
    """

    variant: str
    errors: Comparison
    inner: Comparison
    needed: NeededOutputs | None
    parts: Mapping[str, OutputParts] | None

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return REFERENCE, self.variant

    @property
    def key(self) -> str | None:
        """See Reducer. The name of the candidate is no part of it."""
        if self.needed is not None and self.needed.key is None:
            return None
        needed = replace(self.needed, variant=CANDIDATE).key if self.needed else ""
        compared = [replace(c, candidate=CANDIDATE) for c in (self.errors, self.inner)]
        return digest_of("candidate", compared, needed, self.parts)

    def reduce(self, executed: ExecutedBatch) -> Evaluated:
        """See Reducer."""
        batch, energies, each = executed.batch, {}, {}
        outputs = self.errors.tensors or ()
        errors = compare_batch(self.errors, executed)
        if self.parts is not None and outputs:
            found = executed.reference, executed.of(self.variant)
            energies[batch] = output_energies(*found, outputs, batch.count, self.parts)
        if self.parts is not None:
            each[batch] = ErrorTotals().joined(errors)  # `merge` changes the first ones
        inner = compare_batch(self.inner, executed)
        needed = self.needed.reduce(executed) if self.needed else {}
        return Evaluated(errors, inner, needed, energies, each)

    def merge(self, before: Evaluated, after: Evaluated) -> Evaluated:
        """See Reducer."""
        before.errors.add(after.errors)
        before.inner.add(after.inner)
        return replace(
            before,
            outputs={**before.outputs, **after.outputs},
            energies={**before.energies, **after.energies},
            each={**before.each, **after.each},
        )


class OutputEvaluator:
    """Measures candidates against a reference, which runs once.

    Attributes:
        runner: executes both; its samples are those that are measured on.
    """

    def __init__(
        self,
        runner: Runner,
        graph: Graph,
        reference: Variant,
        metric: TaskMetric | None = None,
        *,
        options: Mapping[str, MeasureOptions] | None = None,
        parts: Mapping[str, OutputParts] | None = None,
        losses: bool = False,
        compared: Collection[str] | None = None,
    ) -> None:
        """Runs nothing yet.

        Args:
            graph: of the reference.
            options: what to measure of each output and captured tensor besides its errors.
            parts: of the outputs, where the energies of each sample and the errors of each batch
                are wanted.
            losses: keep what each sample loses by the metric, too.
            compared: the outputs that the candidates have; None for all.
        """
        self.runner = runner
        self._reference = replace(reference, shared=True)
        self._outputs = tuple(graph.outputs)
        there = graph.outputs if compared is None else compared
        self._floats = tuple(t for t in graph.outputs if t in there and graph.is_float(t))
        self._metric, self._losses = metric, losses
        self._options, self._parts = dict(options or {}), parts

    def until(self, ends_at: float) -> OutputEvaluator:
        """The same, within another time; see Runner.until."""
        other = copy(self)
        other.runner = self.runner.until(ends_at)
        return other

    def each(
        self, candidates: Mapping[str, Variant], stage: str = "", *, attempt: bool = False
    ) -> Iterator[tuple[str, Evaluated | QdebugError]]:
        """What each candidate makes of the samples, as soon as it is known; see Runner.each.

        Args:
            candidates: by name; their names for outputs and captured tensors are those of the
                reference.
        """
        run = {f"{CANDIDATE} {name}": name for name in candidates}  # no name is REFERENCE
        variants = {f"{CANDIDATE} {name}": one for name, one in candidates.items()}
        reducers = {name: self._reducer(name, one) for name, one in variants.items()}
        variants[REFERENCE] = self._reference
        for name, result in self.runner.each(variants, reducers, stage, attempt=attempt):
            yield run[name], result

    def evaluated(
        self, candidates: Mapping[str, Variant], stage: str = "", *, attempt: bool = False
    ) -> dict[str, Any]:
        """All that `each` gives."""
        return dict(self.each(candidates, stage, attempt=attempt))

    @cached_property
    def task(self) -> MetricEvaluator | None:
        """The metric, with what it needs of the reference; None without a metric. Runs the
        reference.

        Raises:
            QdebugError: it does not run, or the metric does not take its outputs.
        """
        if self._metric is None:
            return None
        needed = NeededOutputs(REFERENCE, self._outputs, self._metric, self.runner.subset.samples)
        outputs = self.runner.run({REFERENCE: self._reference}, {REFERENCE: needed}, "reference")
        return MetricEvaluator.of(self._metric, self.runner.subset.samples, outputs[REFERENCE])

    def score(self, candidate: Evaluated) -> float | None:
        """The metric of a candidate; None without one.

        Raises:
            MetricError: it raised, or does not take the outputs.
        """
        return self.task(joined(candidate.outputs)) if self.task else None

    def _reducer(self, name: str, variant: Variant) -> CandidateErrors:
        inner = tuple(t for t in variant.capture if t not in self._outputs)
        needed = None
        if self.task is not None:
            samples = self.runner.subset.samples
            needed = NeededOutputs(name, self._outputs, self.task.metric, samples, self._losses)
        options = [
            {t: self._options[t] for t in tensors if t in self._options}
            for tensors in (self._floats, inner)
        ]
        return CandidateErrors(
            name,
            Comparison(REFERENCE, name, self._floats, options[0]),
            Comparison(REFERENCE, name, inner, options[1]),
            needed,
            self._parts,
        )


@dataclass(frozen=True)
class MetricEvaluator:
    """An end-to-end metric with all it needs but a candidate's outputs.

    Attributes:
        labels: the arrays that are not inputs, by name, [samples, …].
        reference: the outputs of the reference, or what the metric needs of them, [samples, …].
    """

    metric: TaskMetric
    labels: Mapping[str, Array]
    reference: Mapping[str, Array]

    @classmethod
    def of(
        cls, metric: TaskMetric, samples: Samples, reference: Mapping[Batch, Tensors]
    ) -> MetricEvaluator:
        """The metric on the batches of which the reference's outputs are given.

        Raises:
            MetricError: an output has another shape for some samples, or the metric does not take
                them.
        """
        outputs = joined(reference)
        rows = [slice(b.start, b.start + b.count) for b in reference]
        labels = {
            name: np.concatenate([array[r] for r in rows]) if array.ndim else array
            for name, array in samples.extras.items()
        }
        return cls(metric, labels, outputs)

    def __call__(self, outputs: Mapping[str, Array]) -> float:
        """The metric of some outputs, [samples, …].

        Raises:
            MetricError: the metric raised, or gave no finite number.
        """
        return self.metric(outputs, self.labels, self.reference)

    def decided(self, outputs: Mapping[str, Array]) -> tuple[float, str]:
        """The same, and the group of samples that decides it; see TaskMetric.decided."""
        return self.metric.decided(outputs, self.labels, self.reference)

    def losses(self, outputs: Mapping[str, Array]) -> Float64 | None:
        """What each sample loses, float64 [samples]; None where the metric has no loss.

        Raises:
            MetricError: the loss raised, or gave something else.
        """
        loss = self.metric.loss
        return None if loss is None else loss(outputs, self.labels, self.reference)

    def of_reference(self) -> float:
        """The metric of the reference itself; raises as a call does."""
        return self._of_reference[0]

    @property
    def metric_s(self) -> float:
        """Seconds that the metric takes, by that of the reference; raises as a call does."""
        return self._of_reference[1]

    @cached_property
    def _of_reference(self) -> tuple[float, float]:
        began = time.perf_counter()
        return self(self.reference), time.perf_counter() - began


def joined(by_batch: ByBatch) -> dict[str, Array]:
    """The tensors of some batches as one, in their order, [samples, …].

    Raises:
        MetricError: one has another shape for some samples.
    """
    parts: dict[str, list[Array]] = {}
    for tensors in by_batch.values():
        for name, array in tensors.items():
            parts.setdefault(name, []).append(array)
    return join_outputs(parts, [batch.count for batch in by_batch])
