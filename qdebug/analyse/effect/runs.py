"""Candidates on some samples: what each gives at the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from qdebug.analyse.effect.leave_out import Candidates, High
from qdebug.errors import MetricError, QdebugError
from qdebug.execute.context import Context
from qdebug.metrics.accumulate import REFERENCE, ExecutedBatch
from qdebug.metrics.effect import noise_by_sample, output_energies
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.classes import tells_apart
from qdebug.network.outputparts import OutputParts
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import ModelPair
from qdebug.run.outputs import NeededOutputs, OutputEvaluator, joined
from qdebug.run.runner import Runner
from qdebug.run.variant import Variant, as_it_is
from qdebug.types import Array, Tensors

ALONE, LEFT_OUT = 0.5, 0.8
"""What one run of a sample counts of the work that is paid for, in passes of FP32. It takes 1.1 to
1.6 of them: the amounts were found when runs began from activations of others."""
LEFT_OUT_ON_KERNELS = 0.3
"""The same on INT8 kernels, where it takes 0.4 to 0.6 on the networks of scripts/bench/nets.py."""
PREPARING_MACS = 1e9
"""What it takes per layer to prepare candidates and to open their sessions, as work. Measured: 7e8
to 8e8."""


class Energies(NamedTuple):
    """What a candidate gives on some samples.

    Attributes:
        outputs: as of `output_energies`, float64 [outputs, 2, rows].
        chances: that each row was drawn, [rows].
        score: the metric; None without one, or where it cannot judge these outputs.
        losses: by how much each sample loses more than in FP32, divided by its chance, float64
            [samples]; None without a loss.
        tells: the losses, or the score, are others than FP32's by more than the last bits.
    """

    outputs: Array
    chances: Array
    score: float | None = None
    losses: Array | None = None
    tells: bool = False

    def noise(self, part: int | None = None) -> Array:
        """See `noise_by_sample`; of all outputs, or of one of them (each part counts as one)."""
        chosen = slice(None) if part is None else slice(part, part + 1)
        return noise_by_sample(self.outputs[chosen], self.chances)


@dataclass(frozen=True)
class Reference:
    """The FP32 model of a pair, the outputs to compare, and the metric to compute of them."""

    pair: ModelPair
    outputs: Sequence[str]
    metric: TaskMetric | None = None


@dataclass(frozen=True)
class Drawn:
    """Samples to measure on, and the chance that a batch of them was drawn, by its index, or one
    for all."""

    subset: SampleSubset
    chances: Mapping[int, float] | float = 1.0

    def chance(self, batch: Batch) -> float:
        """That of a batch."""
        return self.chances if isinstance(self.chances, float) else self.chances[batch.index]


class _Given(NamedTuple):
    """What a candidate gives in a batch: energies, and what the metric needs of the outputs."""

    energies: Array
    outputs: Tensors


@dataclass(frozen=True)
class _CandidateOutputs:
    """All of that, by batch. See Reducer."""

    variant: str
    outputs: tuple[str, ...]
    parts: Mapping[str, OutputParts]
    needed: NeededOutputs | None
    key: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return REFERENCE, self.variant

    def reduce(self, executed: ExecutedBatch) -> dict[Batch, _Given]:
        """See Reducer."""
        batch, pair = executed.batch, (executed.reference, executed.of(self.variant))
        energies = output_energies(*pair, self.outputs, batch.count, self.parts)
        needed = self.needed.reduce(executed)[batch] if self.needed else {}
        return {batch: _Given(energies, needed)}

    def merge(self, before: dict[Batch, _Given], after: dict[Batch, _Given]) -> dict[Batch, _Given]:
        """See Reducer."""
        return before | after


class Runs:
    """Candidates on some samples.

    Attributes:
        subset: the samples, `count` of them.
        names, everything: see Candidates.
        known: what others are compared with.
    """

    def __init__(
        self, context: Context, candidates: Candidates, reference: Reference, drawn: Drawn
    ) -> None:
        """When the context's time is over, `run` gives up."""
        self._candidates, self._of, self._drawn = candidates, reference, drawn
        self._backend = context.simulation
        self.subset, self.count = drawn.subset, drawn.subset.count
        self.names, self.everything = candidates.names, candidates.everything
        self._runner = Runner(
            drawn.subset,
            workers=context.parallel.workers,
            ends_at=context.ends_at,
            progress=context.progress,
            executor=context.executor,
        )
        graph = reference.pair.reference
        self._fp32 = as_it_is(graph.proto, context.backend, shared=True)
        self._judge = OutputEvaluator(self._runner, graph, self._fp32, reference.metric)
        self.known: dict[High, Energies] = {}

    def run(self, sets: Sequence[High], beside: High) -> list[Energies | None]:
        """What each set of layers in FP32 gives; None where the runtime takes no such model. The
        set `beside` is known then.

        Raises:
            QdebugError: the runtime does not take the model of `beside`.
            OutOfTimeError: it takes longer than it may.
        """
        if beside not in self.known:
            (begun,) = self._found([beside], attempt=False)
            assert begun is not None  # else it raised
            self.known[beside] = begun
        return self._found(sets, attempt=True)

    def _found(self, sets: Sequence[High], *, attempt: bool) -> list[Energies | None]:
        names = [f"set {k}" for k in range(len(sets))]
        variants = {
            name: Variant(partial(self._candidates.model, high), self._backend)
            for name, high in zip(names, sets, strict=True)
        }
        reducers = {name: self._reducer(name) for name in names}
        variants[REFERENCE] = self._fp32
        run = self._runner.each(variants, reducers, "effects", attempt=attempt)
        found = {name: self._judged(given) for name, given in run}
        return [found[name] for name in names]

    def _reducer(self, name: str) -> _CandidateOutputs:
        pair, metric, needed = self._of.pair, self._of.metric, None
        if metric is not None:
            outputs = tuple(pair.reference.outputs)
            needed = NeededOutputs(name, outputs, metric, self.subset.samples)
        return _CandidateOutputs(name, tuple(self._of.outputs), pair.parts, needed)

    def _judged(self, found: Mapping[Batch, _Given] | QdebugError) -> Energies | None:
        """With what the metric says of the outputs."""
        if isinstance(found, QdebugError):
            return None
        chances = {batch: self._drawn.chance(batch) for batch in found}
        each = [np.full(one.energies.shape[2], chances[batch]) for batch, one in found.items()]
        energies = np.concatenate([one.energies for one in found.values()], axis=2)
        score, losses, tells = None, None, False
        with suppress(MetricError):  # broken outputs, or too few samples
            if task := self._judge.task:
                outputs = joined({batch: one.outputs for batch, one in found.items()})
                score = task(outputs)
                after, before = task.losses(outputs), task.losses(task.reference)
                if after is not None and before is not None:
                    counts = [batch.count for batch in found]
                    losses = (after - before) / np.repeat([*chances.values()], counts)
                    tells = tells_apart(after, before, score, task.of_reference())
        return Energies(energies, np.concatenate(each), score, losses, tells)
