"""What a calibration pass gathered, kept so that another method or plan never runs it again.

One small HDF5 file per model and data, `KEY.h5`, in the user's cache folder. A cache: it may be
deleted at any time, and whatever is wrong with a file makes it as if it were not there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from qdebug.store.ranges import read_ranges, write_ranges
from qdebug.store.schema import RangeRecord

CALIBRATION_SCHEMA = "qdebug.calibration/2"
_DIGEST = "digest"


def cache_folder() -> Path:
    """`$QDEBUG_CACHE_DIR`, or `qdebug` in the user's cache folder."""
    own = os.environ.get("QDEBUG_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qdebug"


def load_calibration(key: str) -> dict[str, RangeRecord] | None:
    """The records kept under `key`, or None."""
    import h5py

    path = cache_folder() / f"{key}.h5"
    try:
        with h5py.File(path, "r", locking=False) as file:
            if file.attrs.get("schema") != CALIBRATION_SCHEMA:
                return None
            records = read_ranges(file)
            return records if file.attrs.get(_DIGEST) == _digest(records) else None
    except Exception:  # h5py raises many kinds over a damaged file, and any of them means no file
        return None


def save_calibration(key: str, records: Mapping[str, RangeRecord]) -> None:
    """Keep `records` under `key`, whole or not at all; a disk that refuses is no error."""
    import h5py

    folder = cache_folder()
    partial = folder / f".{key}.{os.getpid()}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with h5py.File(partial, "w", libver=("v110", "v110"), locking=False) as file:
            file.attrs["schema"] = CALIBRATION_SCHEMA
            file.attrs[_DIGEST] = _digest(records)
            write_ranges(file, records)
        partial.replace(folder / f"{key}.h5")
    except (OSError, RuntimeError):
        pass
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _digest(records: Mapping[str, RangeRecord]) -> str:
    """SHA-256 over all that records hold: a single bit that flipped would be a wrong range."""
    found = hashlib.sha256()
    for name, record in sorted(records.items()):
        scalars = {key: np.asarray(value).item() for key, value in sorted(record.scalars.items())}
        found.update(repr((name, scalars)).encode())
        for key, array in sorted(record.arrays.items()):
            found.update(repr((key, array.dtype.str, array.shape)).encode())
            found.update(array.tobytes())
    return found.hexdigest()
