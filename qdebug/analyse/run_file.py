"""The activations that a run file keeps of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ExecutedBatch
from qdebug.store.schema import Keep, Role
from qdebug.types import Array, Tensors


class RowWriter(Protocol):
    """Takes the activations of one sample."""

    def put(self, role: Role, sample: int, tensors: Tensors) -> None:
        """See RunWriter.put."""


@dataclass(frozen=True)
class SampleRows:
    """The activations of some samples of a batch.

    Attributes:
        rows: of each sample, by its number, what each run gave.
    """

    rows: Mapping[int, Mapping[Role, Tensors]]


_BOTH: Mapping[Role, tuple[str, ...]] = {"reference": (REFERENCE,), "candidate": (CANDIDATE,)}


@dataclass(frozen=True)
class Rows:
    """Gives the activations of some samples. See Reducer.

    Attributes:
        samples: their numbers.
        tensors: which ones, by their names in the reference.
        runs: those that give them, of which a later one goes before, for each role.
    """

    samples: frozenset[int]
    tensors: frozenset[str]
    runs: Mapping[Role, tuple[str, ...]] = field(default_factory=lambda: {**_BOTH})

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return tuple(run for runs in self.runs.values() for run in runs)

    @property
    def key(self) -> None:
        """See Reducer: a run file keeps them."""
        return

    def reduce(self, executed: ExecutedBatch) -> SampleRows:
        """See Reducer."""
        start, count = executed.batch.start, executed.batch.count
        kept = {
            role: {t: a for run in runs for t, a in executed.of(run).items() if t in self.tensors}
            for role, runs in self.runs.items()
        }
        return SampleRows(
            {
                start + index: {role: _part_of(kept[role], index, count) for role in kept}
                for index in range(count)
                if start + index in self.samples
            }
        )

    def merge(self, before: SampleRows, after: SampleRows) -> SampleRows:
        """See Reducer."""
        return SampleRows({**before.rows, **after.rows})


@dataclass
class Evidence:
    """Writes the activations of the samples that are worth keeping.

    Attributes:
        samples: their numbers.
        left_out: tensors that are not kept.
    """

    writer: RowWriter
    samples: frozenset[int]
    left_out: Collection[str] = ()

    def __call__(self, found: SampleRows) -> None:
        """Write those of a batch. See runner.Sink."""
        for sample, runs in found.rows.items():
            for role, tensors in runs.items():
                kept = {name: a for name, a in tensors.items() if name not in self.left_out}
                self.writer.put(role, sample, kept)


def kept_samples(keep: Keep, energies: Array | None, samples: int) -> list[int]:
    """The numbers of the samples that are kept: all, or those whose outputs have the largest error,
    the first ones where that cannot be told by sample.

    Args:
        energies: as of `output_energies`.
    """
    if keep.kind != "worst":
        return list(range(samples)) if keep.kind == "all" else []
    if energies is None:
        return list(range(min(keep.count, samples)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(energies[:, 0] == 0, 0.0, energies[:, 0] / energies[:, 1])
    worst = np.argsort(-ratios.max(axis=0), kind="stable")[: keep.count]
    return sorted(int(sample) for sample in worst)


def _part_of(tensors: Tensors, index: int, count: int) -> dict[str, Array]:
    return {name: sample_part(array, index, count) for name, array in tensors.items()}


def sample_part(array: Array, index: int, count: int) -> Array:
    """What belongs to sample `index` of `count`: its share of the leading axis, axis kept; a
    tensor that cannot be split belongs to every sample."""
    if not _splits(array, count):
        return array
    rows = array.shape[0] // count
    return array[index * rows : (index + 1) * rows]


def _splits(array: Array, count: int) -> bool:
    return array.ndim > 0 and array.shape[0] % count == 0
