"""Small results kept from one run to the next, so that a command that was killed goes on.

One JSON file per result, `KEY.json`, in a folder of the user's cache folder. A cache: it may be
deleted at any time, and whatever is wrong with a file makes it as if it were not there.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from qdebug.store.calibration import cache_folder


def load_kept(kind: str, key: str) -> dict[str, Any] | None:
    """The result of a kind that is kept under `key`, or None."""
    try:
        found = json.loads(_path(kind, key).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def save_kept(kind: str, key: str, result: dict[str, Any]) -> None:
    """Keep a result, whole or not at all; a disk that refuses is no error.

    Args:
        result: JSON types; NaN and Inf may be among them.
    """
    path = _path(kind, key)
    partial = path.with_name(f".{key}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.replace(path)
    except OSError:
        pass
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _path(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{key}.json"
