"""A comparison: what is compared, and what was measured of it so far.

A stage of the analysis takes a comparison, and gives it back with more in its result. The stages
that follow the pass over the samples are here, those that take a page of their own in `summary` and
`engine`; `commands/compare/command.py` says in which order they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from qdebug.analyse.diagnose import diagnosed, input_amax
from qdebug.analyse.flips import flipping, with_comparisons, with_flips
from qdebug.analyse.gate import Gate, checked_conditions, metric_notes, task_result
from qdebug.analyse.run_file import Evidence
from qdebug.analyse.tensor_errors import PairErrors
from qdebug.execute.context import Context
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import CompareResult
from qdebug.results.shown_samples import ShownSample
from qdebug.stages import with_failure

if TYPE_CHECKING:
    from qdebug.analyse.effect.sets import Sets


@dataclass(frozen=True)
class Choice:
    """Layers to keep in FP32 together. On the samples that chose them they gave back `restored` of
    what was lost, NaN where they were not run there."""

    names: tuple[str, ...]
    restored: float


@dataclass(frozen=True)
class Compared:
    """A pair, after the pass over all samples.

    Attributes:
        measured: what that pass found.
        result: what was measured so far.
        sets: runs layers in FP32 together, on the samples of the effects.
        choice: the layers that `curves` chose to keep in FP32.
        fed: see `input_amax`, of all samples; None before the causes are known.
        shown: the samples that lose most by the task, for the run file.
        evidence: what writes activations to the run file.
    """

    context: Context
    pair: ModelPair
    samples: Samples
    gate: Gate
    measured: PairErrors
    result: CompareResult
    sets: Sets | None = None
    choice: Choice | None = None
    fed: Mapping[str, float] | None = None
    shown: tuple[ShownSample, ...] = ()
    evidence: Evidence | None = None

    @property
    def subset(self) -> SampleSubset:
        """All samples."""
        return whole(self.samples)

    @property
    def metric(self) -> TaskMetric | None:
        """The end-to-end metric; None without one. One that raised on all samples is not asked
        again."""
        return self.gate.metric if self.result.metric else None

    def found(self, *notes: str, **fields: Any) -> Self:
        """The same with more in its result: notes, and fields by name."""
        result = replace(self.result, notes=(*self.result.notes, *notes))
        return replace(self, result=replace(result, **fields))

    def attempt(self, stage: str, work: Callable[[Self], Self], *, file: str = "") -> Self:
        """What a stage makes of it; where that ends in an error, the same with the failure. See
        stages.attempted."""
        try:
            return work(self)
        except Exception as error:
            return replace(self, result=with_failure(self.result, stage, error, file=file))


def scored(compared: Compared) -> Compared:
    """With the metric of both runs, where there is one.

    Raises:
        MetricError: it raised.
    """
    if compared.gate.metric is None:
        return compared
    needed = compared.measured.needed()
    return compared.found(metric=task_result(compared.gate.metric, compared.samples, *needed))


def with_metric_notes(compared: Compared) -> Compared:
    """With what the reader must know before all else: whether the metric can be trusted."""
    result = compared.result
    told = metric_notes(result.metric, compared.samples.count, compared.gate)
    return replace(compared, result=replace(result, notes=(*told, *result.notes)))


def judged(compared: Compared) -> Compared:
    """With the verdict on every condition; what was not measured does not hold."""
    return compared.found(conditions=checked_conditions(compared.gate.conditions, compared.result))


def explained(compared: Compared) -> Compared:
    """With the causes of the errors.

    Raises:
        QdebugError: a model does not run, or samples cannot be read.
    """
    result, pair, samples = compared.result, compared.pair, compared.samples
    trusted = result.metric.reference_is_right(samples.count) if result.metric else None
    batches = list(samples.batches())
    fed = input_amax(pair, samples, batches)
    layers = diagnosed(
        compared.context,
        pair,
        samples,
        batches,
        result.layers,
        result.tensors,
        trusted=trusted,
        fed=fed,
        noise_of=compared.measured.noise,
    )
    flips, comparisons = flipping(compared.measured.flips)
    result = with_flips(replace(result, layers=layers), pair, flips)
    return replace(compared, result=with_comparisons(result, pair, comparisons), fed=fed)
