"""Where the evaluations of a search are kept, so that one that was killed goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from qdebug.config.bisect import BisectSettings
from qdebug.errors import StoreError, given_by
from qdebug.search.journal import SCHEMA, Journal
from qdebug.store.cache import cache_folder

_FOLDER = "searches"


def open_journal(
    settings: BisectSettings, key: Mapping[str, str], again: str = ""
) -> Journal | None:
    """The journal of the search that `key` describes: the user's, or one in the cache folder.

    `again` names a further search of the same command: its journal stands beside the user's. None
    where the cache folder takes no files, or the user wants no cache.

    Raises:
        StoreError: the user's own journal cannot be used.
    """
    if settings.journal:
        path = Path(f"{settings.journal}.{again}" if again else settings.journal)
        with given_by("journal"):
            try:
                return Journal(path, key)
            except StoreError:
                if not settings.force:
                    raise
                return Journal(path, key, restart=True)
    if not settings.cache:
        return None
    text = json.dumps({"schema": SCHEMA, **key}, sort_keys=True)
    path = cache_folder() / _FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Journal(path, key)
    except (OSError, StoreError):
        return None  # it only saves time
