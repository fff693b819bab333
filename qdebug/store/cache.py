"""Results kept in the user's cache folder, so that no command repeats the work of another.

Two kinds: what a calibration pass gathered (HDF5, one file per model and data) and small results
of other commands (JSON). It is a cache: any file may be deleted at any time, a damaged file counts
as absent, and a disk that refuses a write is not an error.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from qdebug.inputfiles import open_file, read_text
from qdebug.memo import cache_folder
from qdebug.outputfiles import keep
from qdebug.store.schema import RangeRecord, read_range_records, write_range_records
from qdebug.types import Array

_LOG = logging.getLogger(__name__)
CALIBRATION_SCHEMA = "qdebug.calibration/2"
_DIGEST = "digest"


def load_calibration(key: str) -> dict[str, RangeRecord] | None:
    """The calibration records kept under `key`, by tensor name, or None."""
    import h5py

    path = cache_folder() / f"{key}.h5"
    try:
        with open_file(path) as data, h5py.File(data, "r") as file:
            if file.attrs.get("schema") != CALIBRATION_SCHEMA:
                return None
            records = read_range_records(file)
            return records if file.attrs.get(_DIGEST) == _digest(records) else None
    except Exception:  # h5py raises many types over a damaged file; all of them mean "no file"
        return None


def save_calibration(key: str, records: Mapping[str, RangeRecord]) -> None:
    """Keep `records` under `key`, completely or not at all."""
    import h5py

    memory = io.BytesIO()  # HDF5 crashes where a file cannot be written out
    with h5py.File(memory, "w", libver=("v110", "v110")) as file:
        file.attrs["schema"] = CALIBRATION_SCHEMA
        file.attrs[_DIGEST] = _digest(records)
        write_range_records(file, records)
    keep(cache_folder() / f"{key}.h5", memory.getvalue())


def load_result(kind: str, key: str) -> dict[str, Any] | None:
    """The result of a kind that is kept under `key`, or None."""
    try:
        found = json.loads(read_text(_result_path(kind, key)))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def save_result(kind: str, key: str, result: dict[str, Any]) -> None:
    """Keep a result, completely or not at all.

    Args:
        kind: the name of a folder within the cache folder.
        key: the name of the file within it.
        result: JSON types; NaN and Inf are allowed.
    """
    keep(_result_path(kind, key), json.dumps(result).encode())


def load_arrays(kind: str, key: str) -> dict[str, Array] | None:
    """The arrays of a kind that are kept under `key`, by name, or None."""
    try:
        path = _result_path(kind, key).with_suffix(".npz")
        with open_file(path) as data, np.load(data, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # numpy and zipfile raise many types over a damaged file
        return None


def save_arrays(kind: str, key: str, arrays: Mapping[str, Array]) -> None:
    """Keep arrays, completely or not at all. `kind` and `key` are as in `save_result`."""

    def write(file: IO[bytes]) -> None:
        np.savez(file, **arrays)  # type: ignore[arg-type]

    keep(_result_path(kind, key).with_suffix(".npz"), write)


def discard_arrays(kind: str, key: str) -> None:
    """Forget the arrays that are kept under `key`."""
    with suppress(OSError):
        _result_path(kind, key).with_suffix(".npz").unlink(missing_ok=True)


def _result_path(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{key}.json"


def _digest(records: Mapping[str, RangeRecord]) -> str:
    """SHA-256 of everything the records hold: a single flipped bit would make a wrong range."""
    found = hashlib.sha256()
    for name, record in sorted(records.items()):
        scalars = {key: np.asarray(value).item() for key, value in sorted(record.scalars.items())}
        found.update(repr((name, scalars)).encode())
        for key, array in sorted(record.arrays.items()):
            found.update(repr((key, array.dtype.str, array.shape)).encode())
            found.update(array.tobytes())
    return found.hexdigest()
