"""Results kept in the user's cache folder, so that no command repeats the work of another.

It is a cache: any file may be deleted at any time, a damaged file counts as absent, and a disk that
refuses a write is not an error.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from qdebug.inputfiles import read_text
from qdebug.memo import cache_folder
from qdebug.outputfiles import keep

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


def _result_path(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{key}.json"
