"""Writes a run file: everything into a temporary file, which becomes the target when it is whole.

h5py releases the interpreter lock while HDF5 writes or compresses, so a thread that writes rows
does not hold up one that runs a model. One writer is for one thread at a time.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import re
import resource
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from qdebug.errors import StoreError
from qdebug.outputfiles import PartialFile, check_new
from qdebug.store import schema
from qdebug.store.schema import FloatStorage, Keep, RangeRecord, Role
from qdebug.types import Array, Tensors
from qdebug.wording import option

_LEAST_BYTES = 1 << 20
"""HDF5 crashes the process where a file cannot hold its first 2 kB."""
_CODES = {
    errno.ENOSPC: "QD-STORE-DISK-FULL",
    errno.EDQUOT: "QD-STORE-DISK-FULL",
    errno.EFBIG: "QD-STORE-FILE-LIMIT",
    errno.EEXIST: "QD-STORE-OUTPUT-EXISTS",
}


class RunWriter(contextlib.AbstractContextManager["RunWriter"]):
    """A context manager; leaving it before finish() removes the temporary file."""

    def __init__(self, path: str | Path, *, overwrite: bool) -> None:
        """Check the target and create the temporary file beside it.

        Raises:
            StoreError: the target exists and `overwrite` is False, its directory is missing or
                not writable, or another run is writing it.
        """
        check_new(str(path), option("output"), force=overwrite)
        if Path(path).exists() and not Path(path).is_file():
            raise StoreError(
                f"{path}: exists and is not a regular file.",
                f"Choose another path with {option('output')}.",
                code="QD-STORE-OUTPUT-PATH",
            )
        self._target, self._overwrite = Path(path), overwrite
        self._dtype: FloatStorage = "float32"
        self._row_of: dict[int, int] = {}
        self._groups: dict[str, Any] = {}
        self._written: defaultdict[tuple[str, Role], set[int]] = defaultdict(set)
        self._partial = PartialFile(path)
        with self._guard():
            self._check_space(_LEAST_BYTES)
            # Smaller indices than in the oldest format, and readable since HDF5 1.10. HDF5's own
            # locking would conflict with the lock on the temporary file.
            self._file = h5py.File(
                self._partial.path, "w", libver=("v110", "v110"), rdcc_nbytes=0, locking=False
            )
            self._file.attrs[schema.ATTR_SCHEMA] = schema.SCHEMA
            self._file.attrs[schema.ATTR_COMPLETE] = False
            now = datetime.datetime.now(datetime.UTC)
            self._file.attrs[schema.ATTR_CREATED] = now.isoformat(timespec="seconds")
        self.choose(Keep("none"), (), "float32")
        self.set_manifest({})
        self.set_plan("")

    def __exit__(self, *_: object) -> None:
        self._close()

    def choose(
        self, keep: Keep, samples: Sequence[int], dtype: FloatStorage, size: float = 0
    ) -> None:
        """Say which samples are kept, before the first row.

        Args:
            keep: by which rule they were chosen.
            samples: their numbers.
            dtype: "float32" stores what was captured; "float16" narrows floats, except tensors
                with finite values beyond its range.
            size: bytes that they will take: a disk without so much is seen before the work.

        Raises:
            StoreError: the disk has not as much.
        """
        self._dtype = dtype
        self._row_of = {sample: row for row, sample in enumerate(samples)}
        with self._guard():
            self._check_space(size)
            self._file.attrs[schema.ATTR_KEEP] = str(keep)
            self._file.attrs[schema.ATTR_DTYPE] = dtype

    def set_manifest(self, manifest: Mapping[str, object]) -> None:
        """Store the manifest, whose values JSON can hold; replaces an earlier one."""
        with self._guard():
            self._file.attrs[schema.ATTR_MANIFEST] = json.dumps(dict(manifest))

    def set_plan(self, yaml_text: str) -> None:
        """Store the precision plan; replaces an earlier one."""
        with self._replacing(schema.PLAN):
            self._file[schema.PLAN] = yaml_text

    def set_json(self, name: str, text: str) -> None:
        """Store JSON under schema.NETWORK or schema.SHOWN; replaces what is there.

        Raises:
            StoreError: the disk refused.
        """
        data = np.frombuffer(text.encode(), np.uint8)
        with self._replacing(name):
            self._file.create_dataset(name, data=data, compression="gzip")

    def set_ranges(self, ranges: Mapping[str, RangeRecord]) -> None:
        """Store the calibration record of each tensor, by name; replaces earlier ones.

        Raises:
            StoreError: the disk refused.
        """
        with self._replacing(schema.RANGES):
            schema.write_range_records(self._file, ranges)

    def put(self, role: Role, sample: int, tensors: Tensors) -> None:
        """Write what a role gave for one of the samples that were chosen.

        Raises:
            StoreError: the disk is full or refused, or an array is of a dtype that no run file
                holds. The temporary file is gone then.
        """
        with self._guard():
            for name, array in tensors.items():
                self._put(role, name, self._row_of[sample], storable(name, array, self._dtype))

    def finish(self, results_json: str) -> Path:
        """Complete the file and put it in the target's place, in one step.

        Returns:
            The target's path.

        Raises:
            StoreError: the disk is full or refused; the target is as it was before.
        """
        with self._guard():
            for (name, role), rows in self._written.items():
                self._finish_rows(self._groups[name], role, rows)
            self._file[schema.SAMPLES] = np.array(list(self._row_of), np.int64)
            # A name that is no text, as of a file, is as JSON escapes it then.
            text = results_json.encode("utf-8", "backslashreplace").decode("utf-8")
            self._file[schema.RESULTS] = text
            self._file.attrs[schema.ATTR_COMPLETE] = True
            self._file.close()
            os.fsync(self._partial.fd)
            self._partial.publish(force=self._overwrite)
        self._close()
        return self._target

    def _put(self, role: Role, name: str, row: int, array: Array) -> None:
        group = self._groups.get(name)
        if group is None:
            group = self._file.create_group(schema.numbered(schema.TENSORS, len(self._groups)))
            self._groups[name] = group
            group.attrs[schema.ATTR_NAME] = name
        if role not in group:
            group.attrs[schema.row_attribute(role)] = schema.row_form(array.dtype, array.shape)
            shape = (len(self._row_of), *array.shape)
            # Its rows are written anyway, those without a value by finish().
            group.create_dataset(role, shape, array.dtype, fill_time="never")
        dataset = group[role]
        if (array.dtype, array.shape) == (dataset.dtype, dataset.shape[1:]):
            dataset[row] = array
            self._written[name, role].add(row)
            return
        self._written[name, role].discard(row)
        apart = group.require_group(schema.ragged_group(role))
        if str(row) in apart:
            del apart[str(row)]
        apart[str(row)] = array

    def _finish_rows(self, group: Any, role: Role, written: set[int]) -> None:
        """Fill the rows of a dataset that hold nothing, and record which these are."""
        dataset, rows = group[role], range(len(self._row_of))
        ragged = set(map(int, group.get(schema.ragged_group(role), ()))) - written
        missing = set(rows) - written - ragged
        for row in ragged | missing:
            dataset[row] = np.nan if dataset.dtype.kind == "f" else 0
        for attribute, which in ((schema.ATTR_RAGGED, ragged), (schema.ATTR_MISSING, missing)):
            if which:
                dataset.attrs[attribute] = np.array(sorted(which), np.int64)

    def _check_space(self, needed: float) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if needed > self._free_bytes():
            raise OSError(errno.ENOSPC, f"it needs about {needed / 1e6:.0f} MB")
        if limit != resource.RLIM_INFINITY and needed > limit:
            raise OSError(errno.EFBIG, f"it needs about {needed / 1e6:.0f} MB")

    def _free_bytes(self) -> int:
        """What the disk has for the file, what it takes already included."""
        return shutil.disk_usage(self._target.parent).free + os.fstat(self._partial.fd).st_size

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[None]:
        """As `_guard`, for what takes the place of an item of the file."""
        with self._guard():
            if name in self._file:
                del self._file[name]
            yield

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Leave no temporary file behind a write that failed.

        Raises:
            StoreError: in place of what h5py raises.
            ValueError: the file is closed: a mistake of the caller.
        """
        if self._partial.fd < 0:
            raise ValueError("the run file is closed")
        try:
            yield
        except (OSError, RuntimeError) as error:  # RuntimeError is one that HDF5 has
            failed = self._failure(error)
            self._close()
            raise failed from error
        except BaseException:
            self._close()
            raise

    def _failure(self, error: OSError | RuntimeError) -> StoreError:
        """What a write that failed is told as. HDF5 has the system's error number only in its
        text, where closing a file fails."""
        told = re.search(r"errno = (\d+)", str(error))
        number = getattr(error, "errno", None) or (int(told[1]) if told else 0)
        why = getattr(error, "strerror", None) or os.strerror(number)
        if not number:
            why = (str(error).splitlines() or ["unknown"])[0]
        less = f"{option('keep', 'worst:8')}, {option('keep', 'none')}"
        return StoreError(
            f"{self._target}: writing the run file failed: {why}; "
            f"{self._free_bytes() / 1e6:.0f} MB available.",
            f"Choose a path on another disk with {option('output')}, raise `ulimit -f` where that "
            f"is the limit, or keep less ({less}).",
            code=_CODES.get(number, "QD-STORE-OUTPUT-PATH"),
        )

    def _close(self) -> None:
        """Remove the temporary file, unless it has become the target. May be called again."""
        self._groups.clear()  # HDF5 keeps a file open as long as something in it is
        if self._partial.fd >= 0:
            with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
                self._file.close()
            self._partial.discard()


def storable(name: str, array: Array, storage: FloatStorage) -> Array:
    """The array as it is stored: of the machine's byte order, floats narrowed.

    "float16" narrows floats to half the bits unless a finite value would become infinite;
    "float32" leaves every dtype as it was captured.

    Raises:
        StoreError: text, complex numbers or another dtype that run files cannot hold.
    """
    if array.dtype.kind not in "fiub":
        raise StoreError(
            f"Tensor '{name}': arrays of {array.dtype} cannot be stored.",
            "Leave this tensor out of the comparison.",
            code="QD-STORE-DTYPE",
        )
    array = np.asarray(array, array.dtype.newbyteorder("="))
    if storage == "float32" or array.dtype.kind != "f" or array.itemsize == 2:
        return array
    with np.errstate(over="ignore", under="ignore"):
        narrow = array.astype(np.float16)
    # isinf() on float16 takes longer than the narrowing itself; the bits say as much.
    infinite = (narrow.view(np.uint16) & 0x7FFF) == 0x7C00
    return narrow if np.isinf(array[infinite]).all() else array
