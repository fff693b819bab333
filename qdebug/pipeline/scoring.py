"""Judge the outputs of a candidate: errors added up batch by batch, and an end-to-end metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from qdebug.measure.metrics import Metrics, metrics_of
from qdebug.measure.sums import ErrorSums, MeasureOptions, measure
from qdebug.measure.task import TaskMetric, join_outputs
from qdebug.model.samples import Batch, Samples
from qdebug.types import Array, Tensors


@dataclass
class TensorScore:
    """What one candidate makes of some tensors, its outputs mostly. Add the batches in order.

    Attributes:
        keep: keep the tensors of all samples, for a metric; else nothing is kept but sums.
        options: what to measure of a tensor beside the totals.
        sums: of every float tensor whose shape is the reference's.
    """

    keep: bool
    options: Mapping[str, MeasureOptions] = field(default_factory=dict)
    sums: dict[str, ErrorSums] = field(default_factory=dict)
    _kept: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, reference: Tensors, candidate: Tensors, batch: Batch) -> None:
        """Add the tensors of one batch; the candidate has all those of the reference."""
        for tensor, array in reference.items():
            other = candidate[tensor]
            if self.keep:
                self._kept.setdefault(tensor, []).append(other)
            if not np.issubdtype(array.dtype, np.floating) or other.shape != array.shape:
                continue
            here = measure(
                array,
                other,
                first_sample=batch.start,
                samples=batch.count,
                options=self.options.get(tensor),
            )
            known = self.sums.get(tensor)
            self.sums[tensor] = here if known is None else known.merge(here)

    def batch(self, number: int) -> dict[str, Array]:
        """The tensors kept of the batch that was added as `number`."""
        return {tensor: parts[number] for tensor, parts in self._kept.items()}

    def metrics(self) -> dict[str, Metrics]:
        """By tensor."""
        return {tensor: metrics_of(sums) for tensor, sums in self.sums.items()}

    def joined(self) -> dict[str, Array]:
        """The tensors of all batches, [samples, …].

        Raises:
            MetricError: one has another shape for some samples.
        """
        return join_outputs(self._kept)

    def noise(self) -> float:
        """Σerr²/Σref² of a tensor, averaged over the tensors so that none counts more for being
        larger; +inf where one holds NaN or Inf that its reference does not, NaN without any."""
        if not self.sums:
            return math.nan
        return float(np.mean([_noise(sums) for sums in self.sums.values()]))


@dataclass(frozen=True)
class MetricEvaluator:
    """A metric with all it needs but a candidate's outputs.

    Attributes:
        metric: None judges nothing.
        labels: the arrays beside the inputs, by name, [samples, …].
        reference: the outputs of the reference, [samples, …]; empty without a metric.
    """

    metric: TaskMetric | None
    labels: Mapping[str, Array]
    reference: Mapping[str, Array]

    def __call__(self, score: TensorScore) -> float | None:
        """The metric of a candidate, None without a metric.

        Raises:
            MetricError: the metric raised, or gave no finite number.
        """
        return None if self.metric is None else self.of(score.joined())

    def of(self, outputs: Mapping[str, Array]) -> float | None:
        """The metric of some outputs."""
        return None if self.metric is None else self.metric(outputs, self.labels, self.reference)


def labels_for(samples: Samples, batches: Iterable[Batch]) -> dict[str, Array]:
    """The arrays beside the inputs, of the samples in `batches`."""
    rows = [slice(b.start, b.start + b.count) for b in batches]
    return {
        name: np.concatenate([array[r] for r in rows])
        for name, array in samples.extras.items()
        if array.ndim
    }


def _noise(sums: ErrorSums) -> float:
    if sums.mismatched_non_finite:
        return math.inf
    if sums.sq_err == 0:
        return 0.0
    return sums.sq_err / sums.ref_sq if sums.ref_sq else math.inf
