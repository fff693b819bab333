"""A run file in a comparison: activations that it keeps, and a reference that is read from one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from qdebug.errors import StoreError, given_by
from qdebug.execute.engine.attribute import CLEAN, ENGINE
from qdebug.execute.model_pair import names_model
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ExecutedBatch
from qdebug.network.samples import Batch
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep, Role
from qdebug.types import Array, Tensors
from qdebug.wording import option


class RowWriter(Protocol):
    """Takes the activations of one sample."""

    def put_rows(self, role: Role, row: int, sample: int, tensors: Tensors) -> None:
        """See RunWriter.put_rows."""


@dataclass(frozen=True)
class SampleRows:
    """The activations of some samples of a batch.

    Attributes:
        rows: of each sample, by its number, what each run gave.
        unsplit: reference tensors whose leading axis cannot be split among the samples.
    """

    rows: Mapping[int, Mapping[Role, Tensors]]
    unsplit: frozenset[str]


@dataclass(frozen=True)
class Rows:
    """Gives the activations of some samples in both runs. See Reducer.

    Attributes:
        samples: their numbers.
        tensors: which ones, by their names in the reference.
    """

    samples: frozenset[int]
    tensors: frozenset[str]

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return REFERENCE, CANDIDATE

    @property
    def key(self) -> None:
        """See Reducer: a run file keeps them."""
        return

    def reduce(self, executed: ExecutedBatch) -> SampleRows:
        """See Reducer."""
        start, count = executed.batch.start, executed.batch.count
        runs: dict[Role, Tensors] = {
            "reference": executed.reference,
            "candidate": executed.of(CANDIDATE),
        }
        kept = {
            role: {t: a for t, a in tensors.items() if t in self.tensors}
            for role, tensors in runs.items()
        }
        rows = {
            start + index: {role: _part_of(kept[role], index, count) for role in runs}
            for index in range(count)
            if start + index in self.samples
        }
        unsplit = frozenset(n for n, a in kept["reference"].items() if not _splits(a, count))
        return SampleRows(rows, unsplit)

    def merge(self, before: SampleRows, after: SampleRows) -> SampleRows:
        """See Reducer."""
        return SampleRows({**before.rows, **after.rows}, before.unsplit | after.unsplit)


@dataclass
class Evidence:
    """Writes the activations of the samples that are worth keeping.

    Attributes:
        row_of: the row of each of them in the file, by its number.
        left_out: tensors that are not kept.
        unsplit: see SampleRows, of all samples so far.
    """

    writer: RowWriter
    row_of: Mapping[int, int]
    left_out: Collection[str] = ()
    unsplit: set[str] = field(default_factory=set)

    def __call__(self, found: SampleRows) -> None:
        """Write those of a batch. See runner.Sink."""
        self.unsplit |= found.unsplit
        for sample, runs in found.rows.items():
            for role, tensors in runs.items():
                self._put(role, sample, tensors)

    def engine(self, executed: ExecutedBatch, _: object = None) -> None:
        """Write what the engine gave for these samples in a batch."""
        batch, tensors = executed.batch, {**executed.of(ENGINE), **executed.of(CLEAN)}
        for index in range(batch.count):
            if batch.start + index in self.row_of:
                part = _part_of(tensors, index, batch.count)
                self._put("engine", batch.start + index, part)

    def _put(self, role: Role, sample: int, tensors: Tensors) -> None:
        kept = {name: array for name, array in tensors.items() if name not in self.left_out}
        self.writer.put_rows(role, self.row_of[sample], sample, kept)


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
