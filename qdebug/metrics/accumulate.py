"""Compare what several models made of a batch, and add up the errors from batch to batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qdebug.metrics.parts import PartEnergies
from qdebug.metrics.sums import ErrorSums, MeasureOptions, measure, noise_ratio
from qdebug.metrics.tensor import Metrics, metrics_of
from qdebug.network.samples import Batch
from qdebug.types import Feeds, Tensors

REFERENCE, CANDIDATE, LOCAL, FEEDS = "reference", "candidate", "local", "feeds"
"""Names of runs: the FP32 model, the model under test, its layers fed with reference activations,
and the inputs themselves."""


@dataclass(frozen=True)
class ExecutedBatch:
    """One batch, executed by several models.

    Attributes:
        feeds: the inputs, by name.
        runs: what each model gave, by the name of the run; tensors by their names in the reference.
    """

    batch: Batch
    feeds: Feeds
    runs: Mapping[str, Tensors]

    @property
    def reference(self) -> Tensors:
        """What the reference gave."""
        return self.runs[REFERENCE]

    def of(self, run: str) -> Tensors:
        """What the run of that name gave; empty where there was none."""
        return self.feeds if run == FEEDS else self.runs.get(run, {})


@dataclass(frozen=True)
class Comparison:
    """What to compare of two runs.

    Attributes:
        reference, candidate: the names of the runs.
        tensors: the tensors to compare; None takes all float tensors that both runs give.
        options: what to measure of a tensor besides the totals.
        local: layer -> (its output, its output when it reads the reference's activations); the
            latter is a tensor of the run LOCAL.
    """

    reference: str = REFERENCE
    candidate: str = CANDIDATE
    tensors: tuple[str, ...] | None = None
    options: Mapping[str, MeasureOptions] = field(default_factory=dict)
    local: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class ErrorTotals:
    """Error totals of some batches; add those of others to get the totals of all.

    Attributes:
        tensors: sums by reference tensor.
        local: sums of each layer's output where it reads the reference's activations, over the
            batches that had one.
        skipped: reference tensors that could not be compared, with the reason.
        local_samples: how many samples those batches held.
        parts: what the errors of the layers' outputs consist of, over some of the batches.
    """

    tensors: dict[str, ErrorSums] = field(default_factory=dict)
    local: dict[str, ErrorSums] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    local_samples: int = 0
    parts: dict[str, PartEnergies] = field(default_factory=dict)

    def add(self, other: ErrorTotals) -> None:
        """Add those of later batches."""
        self.local_samples += other.local_samples
        self.skipped.update(other.skipped)
        for own, more in ((self.tensors, other.tensors), (self.local, other.local)):
            for name, sums in more.items():
                own[name] = own[name].merge(sums) if name in own else sums
        for layer, parts in other.parts.items():
            own_parts = self.parts.get(layer)
            self.parts[layer] = own_parts.merge(parts) if own_parts else parts

    def joined(self, other: ErrorTotals) -> ErrorTotals:
        """These and those of other tensors over the same samples."""
        return ErrorTotals(
            {**self.tensors, **other.tensors},
            {**self.local, **other.local},
            {**self.skipped, **other.skipped},
            max(self.local_samples, other.local_samples),
            parts={**self.parts, **other.parts},
        )

    def metrics(self) -> dict[str, Metrics]:
        """The metrics of every tensor, by name."""
        return {tensor: metrics_of(sums) for tensor, sums in self.tensors.items()}

    def noise(self) -> float:
        """Σerr²/Σref² of a tensor, averaged over the tensors so that none counts more for being
        larger; +inf where one holds NaN or Inf that its reference does not, NaN without any. Each
        part of a tensor that has parts counts as a tensor."""
        if not self.tensors:
            return math.nan
        return float(np.mean([x for sums in self.tensors.values() for x in part_noise(sums)]))

    def worst_noise(self) -> float:
        """The same, where a tensor that has parts counts by its worst one only."""
        if not self.tensors:
            return math.nan
        return float(np.mean([max(part_noise(sums)) for sums in self.tensors.values()]))


def compare_batch(comparison: Comparison, executed: ExecutedBatch) -> ErrorTotals:
    """The errors of one batch."""
    reference, candidate = executed.of(comparison.reference), executed.of(comparison.candidate)
    local = executed.of(LOCAL) if comparison.local else {}
    batch = executed.batch
    totals = ErrorTotals(local_samples=batch.count if local else 0)
    tensors = comparison.tensors
    for tensor in _common_floats(reference, candidate) if tensors is None else tensors:
        expected, found = reference[tensor], candidate[tensor]
        if expected.shape != found.shape:
            totals.skipped[tensor] = (
                f"shape {expected.shape} in the reference, {found.shape} in the candidate"
            )
            continue
        totals.tensors[tensor] = measure(
            expected,
            found,
            first_sample=batch.start,
            samples=batch.count,
            options=comparison.options.get(tensor, MeasureOptions()),
        )
    for layer, (tensor, output) in comparison.local.items() if local else ():
        if tensor in totals.tensors and reference[tensor].shape == local[output].shape:
            totals.local[layer] = measure(reference[tensor], local[output])
    return totals


def _common_floats(reference: Tensors, candidate: Tensors) -> list[str]:
    floats = (t for t, array in reference.items() if np.issubdtype(array.dtype, np.floating))
    return [t for t in floats if t in candidate]


def part_noise(sums: ErrorSums) -> list[float]:
    """Σerr²/Σref² of each part of a tensor; of all of it where it has none."""
    if sums.mismatched_non_finite:
        return [math.inf]
    parts = sums.part_energies() or [(sums.ref_sq, sums.sq_err)]
    return [noise_ratio(error, signal) for signal, error in parts]
