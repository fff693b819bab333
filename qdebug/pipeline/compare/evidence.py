"""Which activations a run file keeps: all samples, the worst ones, or none."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from qdebug.measure.compare import CANDIDATE, ErrorTotals, ExecutedBatch
from qdebug.model.samples import Batch
from qdebug.pipeline.compare.lockstep import CUMULATIVE
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter
from qdebug.types import Array, Tensors


class EvidenceSink:
    """Writes activations of the samples worth keeping, as batches come by.

    With `worst:N` a sample enters while it is among the N worst so far by its outputs' error, and
    takes the row of the one it displaces: exact in one pass, with about N·ln(samples/N) writes.
    """

    def __init__(self, writer: RunWriter, keep: Keep, tensors: Collection[str]) -> None:
        """`tensors`: those of the reference that the candidate has."""
        self._writer = writer
        self._keep = keep
        self._tensors = tensors
        self._worst: list[tuple[float, int, int]] = []  # (badness, -sample, row): least bad on top
        self.unsplit: set[str] = set()
        """Reference tensors whose leading axis cannot be split among the samples of a batch."""

    @property
    def rates(self) -> bool:
        """Whether samples are chosen by the error of their outputs."""
        return self._keep.kind == "worst"

    def start_group(self) -> None:
        """The next executions go over the same samples again, with other tensors."""
        self._worst = []

    def __call__(self, executed: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        """Write what is to be kept of one batch. See evaluator.Sink."""
        for index in range(executed.batch.count):
            badness = errors[CUMULATIVE].sample_ratios[index] if self.rates else 0.0
            row = self._row(executed.batch.start + index, badness)
            if row is not None:
                self._write(executed, index, row)

    def engine(self, batch: Batch, _: Tensors, engine: Tensors, outputs: Tensors) -> None:
        """Write what the engine gave for the samples that were kept, once all are known. See
        EngineSink."""
        rows = {-sample: row for _, sample, row in self._worst}
        for index in range(batch.count):
            sample = batch.start + index
            row = sample if self._keep.kind == "all" else rows.get(sample)
            if row is not None:
                parts = _part_of({**engine, **outputs}, index, batch.count)
                self._writer.put_rows("engine", row, sample, parts)

    def _row(self, sample: int, badness: float) -> int | None:
        if self._keep.kind == "all":
            return sample
        if self._keep.kind == "none":
            return None
        entry = (badness, -sample, len(self._worst))
        if len(self._worst) < self._keep.count:
            heapq.heappush(self._worst, entry)
            return entry[2]
        if (badness, -sample) <= self._worst[0][:2]:
            return None
        row = self._worst[0][2]
        heapq.heapreplace(self._worst, (badness, -sample, row))
        return row

    def _write(self, executed: ExecutedBatch, index: int, row: int) -> None:
        sample, count = executed.batch.start + index, executed.batch.count
        reference, candidate = executed.reference, executed.of(CANDIDATE)
        self.unsplit.update(n for n, a in reference.items() if not _splits(a, count))
        kept = {t: array for t, array in candidate.items() if t in self._tensors}
        self._writer.put_rows("reference", row, sample, _part_of(reference, index, count))
        self._writer.put_rows("candidate", row, sample, _part_of(kept, index, count))


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
    return count == 1 or (array.ndim > 0 and array.shape[0] % count == 0)
