"""Writes a run file: everything into a temporary file, which becomes the target when it is whole.

h5py releases the interpreter lock while HDF5 reads, writes or compresses, so a thread that puts
rows does not hold up one that runs a model. One writer is for one thread at a time.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from qdebug.store import schema
from qdebug.store.partial import PartialRun
from qdebug.store.rows import TensorRows, storable
from qdebug.store.schema import FloatStorage, Keep, RangeRecord, Role, write_range_records
from qdebug.types import Array, Tensors

# Smaller indices and faster row writes than the oldest format, and readable since HDF5 1.10.
_FORMAT = ("v110", "v110")
_RELEASE_BYTES = 32 << 20
"""How much is written between two calls to release_memory()."""


class RunWriter(contextlib.AbstractContextManager["RunWriter"]):
    """A context manager; leaving it before finish() removes the temporary file."""

    def __init__(
        self,
        path: str | Path,
        *,
        overwrite: bool,
        keep: Keep,
        dtype: FloatStorage = "float32",
        expected_rows: int = 0,
    ) -> None:
        """Check the target and create the temporary file beside it.

        Args:
            path: the run file to be.
            overwrite: replace an existing file.
            keep: with "none", put_rows() does nothing; with "worst:N", rows are the N slots.
            dtype: "float32" stores what was captured; "float16" narrows floats, except tensors
                with finite values beyond its range.
            expected_rows: how many rows are coming, 0 when unknown; lets a full disk be seen
                before the work is done.

        Raises:
            StoreError: the target exists and `overwrite` is False, its directory is missing or
                not writable, or another run is writing it.
        """
        self._target = Path(path)
        self._keep = keep
        self._dtype: FloatStorage = dtype
        self._expected = expected_rows
        if keep.kind == "worst":
            self._expected = min(keep.count, expected_rows or keep.count)
        self._samples: dict[int, int] = {}
        self._groups: dict[str, Any] = {}
        self._rows: dict[tuple[Role, str], TensorRows] = {}
        self._row_bytes: dict[Role, int] = {}
        self._unreleased = 0
        self._closed = False
        self._file: Any = None
        self._partial = PartialRun(self._target, overwrite=overwrite)
        with self._guard():
            self._partial.check_space()
            self._file = _create_run(self._partial.path, keep, dtype)

    def __exit__(self, *_: object) -> None:
        self._abort()

    def choose(self, keep: Keep, dtype: FloatStorage) -> None:
        """Keep less than was said at first, or otherwise; before the first row."""
        self._keep, self._dtype = keep, dtype
        if keep.kind == "worst":
            self._expected = min(keep.count, self._expected or keep.count)
        with self._guard():
            self._file.attrs[schema.ATTR_KEEP] = str(keep)
            self._file.attrs[schema.ATTR_DTYPE] = dtype

    def set_manifest(self, manifest: Mapping[str, object]) -> None:
        """Store the manifest, whose values JSON can hold; replaces an earlier one."""
        text = json.dumps(dict(manifest))
        with self._guard():
            self._file.attrs[schema.ATTR_MANIFEST] = text

    def set_plan(self, yaml_text: str) -> None:
        """Store the precision plan; replaces an earlier one."""
        with self._guard():
            del self._file[schema.PLAN]
            self._file[schema.PLAN] = yaml_text

    def set_network(self, text: str) -> None:
        """Store the description of the network, JSON; replaces an earlier one.

        Raises:
            StoreError: the disk refused.
        """
        self._put_json(schema.NETWORK, text)

    def set_shown(self, text: str) -> None:
        """Store the samples that lose most by the task, JSON; replaces an earlier one.

        Raises:
            StoreError: the disk refused.
        """
        self._put_json(schema.SHOWN, text)

    def _put_json(self, name: str, text: str) -> None:
        data = np.frombuffer(text.encode(), np.uint8)
        with self._guard():
            if name in self._file:
                del self._file[name]
            self._file.create_dataset(name, data=data, compression="gzip")

    def set_ranges(self, ranges: Mapping[str, RangeRecord]) -> None:
        """Store the calibration record of each tensor, by name; replaces earlier ones.

        Raises:
            StoreError: the disk refused.
        """
        with self._guard():
            write_range_records(self._file, ranges)

    def put_rows(self, role: Role, row: int, sample: int, tensors: Tensors) -> None:
        """Write row `row` of every tensor; rows come in any order and may be written again.

        What a row holds counts only if, at the end, the row belongs to the sample it was put
        for. So the same samples may pass again with other tensors, through the same slots.

        Args:
            role: "reference", "candidate" or "engine".
            row: from 0; below N with "worst:N".
            sample: the sample, from 0, that the arrays belong to.
            tensors: arrays of any shape by tensor name. They are copied before this returns.

        Raises:
            StoreError: the disk is full or refused, or an array is of a dtype that no run file
                holds. The temporary file is gone then.
            ValueError: a role, row or sample that cannot be meant: a mistake of the caller.
        """
        if self._keep.kind == "none":
            return
        self._check(role, row, sample)
        with self._guard():
            stored = {name: storable(name, a, self._dtype) for name, a in tensors.items()}
            if role not in self._row_bytes:
                self._row_bytes[role] = sum(a.nbytes for a in stored.values())
                self._partial.check_space(self._needed_bytes() if self._expected else 0)
            self._samples[row] = sample
            for name, array in stored.items():
                self._rows_of(role, name, array, row).put(row, sample, array)
                self._count(array.nbytes)

    def finish(self, results_json: str) -> Path:
        """Complete the file and put it in the target's place, in one step.

        Returns:
            The target's path.

        Raises:
            StoreError: the disk is full or refused; the target is as it was before.
            ValueError: two rows belong to the same sample: a mistake of the caller.
        """
        with self._guard():
            samples = self._sample_of_each_row()
            for rows in self._rows.values():
                rows.finish(samples)
            self._file[schema.SAMPLES] = np.array(samples, np.int64)
            # A name that is no text, as of a file, is as JSON escapes it then.
            text = results_json.encode("utf-8", "backslashreplace").decode("utf-8")
            self._file[schema.RESULTS] = text
            self._file.attrs[schema.ATTR_COMPLETE] = True
            self._forget_handles()
            self._file.close()
            self._partial.finish()
        self._closed = True
        self._partial.discard()
        return self._target

    def _sample_of_each_row(self) -> list[int]:
        count = 1 + max(self._samples, default=-1)
        if len(set(self._samples.values())) < len(self._samples):
            raise ValueError("a sample has two rows")
        return [self._samples.get(row, schema.NO_SAMPLE) for row in range(count)]

    def _check(self, role: Role, row: int, sample: int) -> None:
        if role not in schema.ROLES:
            raise ValueError(f"no role {role!r}")
        if row < 0 or (self._keep.kind == "worst" and row >= self._keep.count):
            raise ValueError(f"no row {row} with keep {self._keep}")
        if sample < 0:
            raise ValueError(f"no sample {sample}")

    def _rows_of(self, role: Role, name: str, first: Array, row: int) -> TensorRows:
        found = self._rows.get((role, name))
        if found is None:
            group = self._groups.get(name)
            if group is None:
                path = schema.numbered(schema.TENSORS, len(self._groups))
                group = self._groups[name] = self._file.create_group(path)
                group.attrs[schema.ATTR_NAME] = name
            declared = max(self._expected, row + 1)
            found = TensorRows(group, role, first, declared)
            self._rows[role, name] = found
        return found

    def _count(self, written: int) -> None:
        self._unreleased += written
        if self._unreleased >= _RELEASE_BYTES:
            self._unreleased = 0
            self._partial.release_memory()

    def _needed_bytes(self) -> int:
        """What the activations need, as far as is known."""
        return sum(self._row_bytes.values()) * max(self._expected, len(self._samples))

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Leave no temporary file behind a write that failed.

        Raises:
            StoreError: in place of what h5py raises.
            ValueError: the file is closed: a mistake of the caller.
        """
        if self._closed:
            raise ValueError("the run file is closed")
        try:
            yield
        except (OSError, RuntimeError) as error:  # RuntimeError is one that HDF5 has
            failed = self._partial.error(error, self._needed_bytes())
            self._abort()
            raise failed from error
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        """Remove the temporary file, unless it has become the target. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._forget_handles()
        if self._file is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._file.close()
        self._partial.discard()

    def _forget_handles(self) -> None:
        # HDF5 keeps a file open as long as one of its datasets is.
        self._rows.clear()
        self._groups.clear()


def _create_run(path: Path, keep: Keep, dtype: FloatStorage) -> Any:
    """A new h5py file with the head of an incomplete run."""
    # No chunk cache: it would keep up to 8 MiB per tensor until the end, and a row is written as a
    # whole.
    file = h5py.File(path, "w", libver=_FORMAT, rdcc_nbytes=0, locking=False)
    file.attrs[schema.ATTR_SCHEMA] = schema.SCHEMA
    file.attrs[schema.ATTR_COMPLETE] = False
    now = datetime.datetime.now(datetime.UTC)
    file.attrs[schema.ATTR_CREATED] = now.isoformat(timespec="seconds")
    file.attrs[schema.ATTR_KEEP] = str(keep)
    file.attrs[schema.ATTR_DTYPE] = dtype
    file.attrs[schema.ATTR_MANIFEST] = "{}"
    file[schema.PLAN] = ""
    return file
