"""A run file in a comparison: activations that it keeps, and a reference that is read from one."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from qdebug.errors import StoreError, given_by
from qdebug.execute.engine.attribute import CLEAN, ENGINE
from qdebug.execute.lockstep import CUMULATIVE
from qdebug.execute.model_pair import names_model
from qdebug.metrics.accumulate import CANDIDATE, ErrorTotals, ExecutedBatch
from qdebug.network.samples import Batch
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep, Role
from qdebug.types import Array, Tensors
from qdebug.wording import option


class RowWriter(Protocol):
    """Takes the activations of one sample; a later row of the same number replaces it."""

    def put_rows(self, role: Role, row: int, sample: int, tensors: Tensors) -> None:
        """See RunWriter.put_rows."""


@dataclass(frozen=True)
class KeptRow:
    """What is to be kept of one sample: its tensors in both runs."""

    sample: int
    tensors: Mapping[Role, Tensors]


@dataclass
class RowKeeper:
    """A RowWriter in memory, for the rows of one part of a pass."""

    rows: dict[int, dict[Role, Tensors]] = field(default_factory=dict)

    def put_rows(self, role: Role, row: int, sample: int, tensors: Tensors) -> None:
        """See RowWriter."""
        self.rows.setdefault(sample, {})[role] = tensors

    @property
    def kept(self) -> list[KeptRow]:
        """What was put, by sample."""
        return [KeptRow(sample, self.rows[sample]) for sample in sorted(self.rows)]


@dataclass
class Ratings:
    """A sink that keeps how bad the outputs of each sample are, by its number."""

    badness: dict[int, float] = field(default_factory=dict)

    def __call__(self, executed: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        """Rate one batch. See evaluator.Sink."""
        rated = errors[CUMULATIVE].sample_ratios
        self.badness |= dict(enumerate(rated, executed.batch.start))


class EvidenceSink:
    """Writes activations of the samples worth keeping, as batches come by.

    With `worst:N` a sample enters while it is among the N worst so far by its outputs' error, and
    takes the row of the one it displaces: exact in one pass, with about N·ln(samples/N) writes.
    """

    def __init__(self, writer: RowWriter, keep: Keep, tensors: Collection[str]) -> None:
        """`tensors`: those of the reference that the candidate has."""
        self._writer = writer
        self._keep = keep
        self._tensors = tensors
        self._left_out: Collection[str] = ()
        self._worst: list[tuple[float, int, int]] = []  # (badness, -sample, row): least bad on top
        self.unsplit: set[str] = set()
        """Reference tensors whose leading axis cannot be split among the samples of a batch."""

    def choose(self, keep: Keep, left_out: Collection[str]) -> None:
        """Keep this instead, without some tensors; before the first batch."""
        self._keep, self._left_out = keep, left_out

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

    def take(self, kept: KeptRow, badness: float = 0.0) -> None:
        """As for a batch, of one sample that is worth keeping; samples in order."""
        row = self._row(kept.sample, badness)
        if row is not None:
            for role, tensors in kept.tensors.items():
                self._put(role, row, kept.sample, tensors)

    def worst_of(self, badness: Mapping[int, float]) -> list[int]:
        """The samples that it would keep of all of these, by how bad each is; in order."""
        ranked = sorted(badness, key=lambda sample: (-badness[sample], sample))
        return sorted(ranked[: self._keep.count])

    def engine(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """Write what the engine gave for the samples that were kept, once all are known. See
        evaluator.Sink."""
        rows = {-sample: row for _, sample, row in self._worst}
        batch = executed.batch
        for index in range(batch.count):
            sample = batch.start + index
            row = sample if self._keep.kind == "all" else rows.get(sample)
            if row is not None:
                found = {**executed.of(ENGINE), **executed.of(CLEAN)}
                self._put("engine", row, sample, _part_of(found, index, batch.count))

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
        self._put("reference", row, sample, _part_of(reference, index, count))
        self._put("candidate", row, sample, _part_of(kept, index, count))

    def _put(self, role: Role, row: int, sample: int, tensors: Tensors) -> None:
        kept = {name: array for name, array in tensors.items() if name not in self._left_out}
        self._writer.put_rows(role, row, sample, kept)


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


class StoredRows:
    """The reference activations that a run file keeps."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._tensors = set(reader.tensors("reference"))
        self._samples = set(reader.samples)
        self._unsplit = set(_listed(reader.manifest.get("unsplit_tensors")))
        self.reused: set[int] = set()

    def __call__(self, batch: Batch, names: Sequence[str]) -> Tensors | None:
        """The tensors of a batch, or None when one of them is not stored."""
        samples = range(batch.start, batch.start + batch.count)
        if not self._tensors.issuperset(names) or not self._samples.issuperset(samples):
            return None
        rows = [self._reader.read_rows("reference", sample, names) for sample in samples]
        self.reused.update(samples)
        if len(rows) == 1:
            return rows[0]
        return {
            name: rows[0][name]
            if name in self._unsplit
            else self._joined(name, [row[name] for row in rows])
            for name in names
        }

    def _joined(self, name: str, rows: Sequence[Array]) -> Array:
        try:
            return np.concatenate(rows)
        except ValueError as error:
            raise StoreError(
                f"{self._reader.path}: tensor '{name}' is damaged: its rows do not fit together"
                f" ({error}).",
                "Copy the file again, or repeat the comparison.",
                code="QD-STORE-DAMAGED",
            ) from error


def open_stored(stack: ExitStack, reference: str | None, replaced: str | None) -> RunReader | None:
    """The run file whose reference may be reused: the one that the user names, or the one that is
    to be `replaced`.

    Raises:
        StoreError: the one named cannot be read.
    """
    if reference and not names_model(reference):
        with given_by("reference"):
            return stack.enter_context(RunReader(reference))
    if replaced and Path(replaced).exists():
        try:
            return stack.enter_context(RunReader(replaced))
        except StoreError:
            return None  # it is to be replaced, whatever it is
    return None


def stored_rows(reader: RunReader | None, key: str) -> StoredRows | None:
    """What can be reused of `reader` for the reference with digest `key`."""
    return StoredRows(reader) if reader is not None and not _obstacle(reader, key) else None


def reuse_notes(
    reader: RunReader | None,
    rows: StoredRows | None,
    key: str,
    samples: int,
    reference: str | None,
) -> tuple[str, ...]:
    """What the reader of the result must know of the reuse.

    Args:
        rows: what was reused of `reader`, for the reference with digest `key`.
        samples: how many were compared.
        reference: the file that the user named.
    """
    if reader is None:
        return ()
    if rows is not None and rows.reused:
        count = len(rows.reused)
        which = "The reference" if count == samples else f"The reference of {count} samples"
        return (f"{which} was read from {reader.path}.",)
    if reader.path != Path(reference or ""):
        return ()
    why = _obstacle(reader, key) or (
        f"it does not keep all activations of a batch ({option('keep', 'all')} does)"
    )
    return (f"{option('reference', str(reader.path))} was not used: {why}.",)


def _obstacle(reader: RunReader, key: str) -> str:
    """Why the activations in a run file are not those that the reference would give."""
    if reader.manifest.get("reference_key") != key:
        return "it is of another model, other samples or another batch size"
    if reader.dtype != "float32":
        return "it holds activations rounded to float16"
    return ""


def _listed(value: object) -> list[str]:
    return [str(x) for x in value] if isinstance(value, list) else []
