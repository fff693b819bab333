"""Creates an HDF5 file for a run; opens a complete one, or says what is wrong with it."""

from __future__ import annotations

import datetime
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from qdebug.errors import StoreError
from qdebug.store import filters, schema
from qdebug.store.schema import FloatStorage, Keep

# Smaller indices and faster row writes than the oldest format, and readable since HDF5 1.10.
_FORMAT = ("v110", "v110")
_HEAD_BYTES = 1 << 16


def create_run(path: Path, keep: Keep, dtype: FloatStorage) -> Any:
    """A new h5py file with the head of a run that is not complete, replacing what was there.

    Raises:
        OSError: the disk refused.
    """
    # HDF5 crashes the process when not even the head of a new file can be written, so a disk that
    # is that full must be noticed without it.
    with path.open("wb", buffering=0) as probe:
        if probe.write(bytes(_HEAD_BYTES)) != _HEAD_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
    # No HDF5 lock: PartialFile holds one. No chunk cache: it would keep up to 8 MiB per tensor
    # until the end, and a row is written as a whole.
    file = h5py.File(path, "w", libver=_FORMAT, locking=False, rdcc_nbytes=0)
    file.attrs[schema.ATTR_SCHEMA] = schema.SCHEMA
    file.attrs[schema.ATTR_COMPLETE] = False
    now = datetime.datetime.now(datetime.UTC)
    file.attrs[schema.ATTR_CREATED] = now.isoformat(timespec="seconds")
    file.attrs[schema.ATTR_KEEP] = str(keep)
    file.attrs[schema.ATTR_DTYPE] = dtype
    file.attrs[schema.ATTR_FILTER] = "raw"
    file.attrs[schema.ATTR_MANIFEST] = "{}"
    file[schema.PLAN] = ""
    return file


def open_run(path: Path) -> Any:
    """The h5py file of a complete run, open for reading, with its filter registered.

    Raises:
        StoreError: no such file, not an HDF5 file, not a run file of this version, or one that
            was never finished; or its filter is not installed.
    """
    file = _open_hdf5(path)
    try:
        with damage(path, "the head of the file"):
            _check_head(path, file.attrs)
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def damage(path: Path, what: str) -> Iterator[None]:
    """Map what h5py and json raise while reading a damaged file.

    Raises:
        StoreError: instead of theirs, naming the file and `what`.
    """
    try:
        yield
    # Damaged JSON and damaged text are both kinds of ValueError.
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(
            f"{path}: {what} cannot be read: the file is damaged ({reason}).",
            "Copy the file again, or run `qdebug compare` again.",
        ) from error


def _open_hdf5(path: Path) -> Any:
    if not path.exists():
        raise StoreError(f"{path}: no such file.", "Run `qdebug compare ... -o` to make one.")
    if path.is_dir():
        raise StoreError(f"{path}: is a directory.", "Give the run file itself.")
    try:
        # Whole rows are read, each once: a chunk cache would only copy them.
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except PermissionError as error:
        raise StoreError(f"{path}: may not be read.", f"Run `chmod +r {path}`.") from error
    except OSError as error:
        raise StoreError(
            f"{path}: not a qdebug run: not an HDF5 file, or truncated.",
            "Give the file that `qdebug compare -o` wrote, or copy it again.",
        ) from error


def _check_head(path: Path, attrs: Any) -> None:
    found = attrs.get(schema.ATTR_SCHEMA)
    if found is None:
        raise StoreError(
            f"{path}: an HDF5 file, but not a qdebug run.",
            "Give the file that `qdebug compare -o` wrote.",
        )
    if found != schema.SCHEMA:
        raise StoreError(
            f"{path}: has the schema {found!r}; this qdebug reads {schema.SCHEMA!r}.",
            "Use the qdebug that wrote it, or run `qdebug compare` again.",
        )
    if not attrs.get(schema.ATTR_COMPLETE, False):
        raise StoreError(
            f"{path}: incomplete: the run that wrote it did not finish.",
            "Run `qdebug compare` again.",
        )
    if attrs[schema.ATTR_FILTER] != "raw":
        # Registers the filters with HDF5.
        filters.dataset_options(attrs[schema.ATTR_FILTER])
