"""Results kept in the user's cache folder, so that no command repeats the work of another.

It is a cache: any file may be deleted at any time, a damaged file counts as absent, and a disk that
refuses a write is not an error.
"""

from __future__ import annotations

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
from qdebug.types import Array

_LOG = logging.getLogger(__name__)


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
