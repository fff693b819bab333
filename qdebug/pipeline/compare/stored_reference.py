"""The reference of an earlier run, read from its file in place of executing the model again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.config.compare import CompareSettings
from qdebug.errors import StoreError, given_by
from qdebug.model.samples import Batch
from qdebug.pipeline.model_pair import names_model
from qdebug.store.reader import RunReader
from qdebug.types import Tensors


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
            else np.concatenate([row[name] for row in rows])
            for name in names
        }


def open_stored(stack: ExitStack, settings: CompareSettings) -> RunReader | None:
    """The run file whose reference may be reused: the one named, or the one to be replaced."""
    named = settings.reference
    if named and not names_model(named):
        with given_by("reference"):
            return stack.enter_context(RunReader(named))
    if settings.output and settings.force and Path(settings.output).exists():
        try:
            return stack.enter_context(RunReader(settings.output))
        except StoreError:
            return None  # it is to be replaced, whatever it is
    return None


def stored_rows(reader: RunReader | None, key: str) -> StoredRows | None:
    """What can be reused of `reader` for the reference with digest `key`."""
    return StoredRows(reader) if reader is not None and not _obstacle(reader, key) else None


def reuse_notes(
    settings: CompareSettings,
    reader: RunReader | None,
    rows: StoredRows | None,
    key: str,
    samples: int,
) -> tuple[str, ...]:
    """What the reader of the result must know of the reuse."""
    if reader is None:
        return ()
    if rows is not None and rows.reused:
        count = len(rows.reused)
        which = "The reference" if count == samples else f"The reference of {count} samples"
        return (f"{which} was read from {reader.path}.",)
    if reader.path != Path(settings.reference or ""):
        return ()
    why = _obstacle(reader, key) or "it does not keep all activations of a batch (--keep all does)"
    return (f"--reference {reader.path} was not used: {why}.",)


def _obstacle(reader: RunReader, key: str) -> str:
    """Why the activations in a run file are not those that the reference would give."""
    if reader.manifest.get("reference_key") != key:
        return "it is of another model, other samples or another batch size"
    settings: Any = reader.manifest.get("settings")
    if not isinstance(settings, dict) or settings.get("keep_dtype") != "float32":
        return "it holds activations rounded to float16"
    return ""


def _listed(value: object) -> list[str]:
    return [str(x) for x in value] if isinstance(value, list) else []
