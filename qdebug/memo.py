"""Results kept on disk by the digest of all that they depend on: nothing is computed twice.

A command that was killed and runs again finds here what it had computed, and one command takes what
another has measured. It is a cache: any file may be deleted at any time, a damaged one counts as
absent, and a disk that refuses a write is not an error.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from qdebug import __version__

_LOG = logging.getLogger(__name__)
_DIGEST_BYTES = hashlib.sha256().digest_size
_LARGEST = 1 / 16
"""Of the limit: a larger result would push out too many others."""
_PRUNED_AFTER = 1 / 4
"""Of the limit, written by one command, before it looks at the size of the folder again."""
_TRUSTED = ("qdebug.", "numpy.", "numpy", "collections")
_BUILTINS = frozenset({"set", "frozenset", "complex", "slice", "range"})


def cache_folder() -> Path:
    """`$QDEBUG_CACHE_DIR`, or `qdebug` in the user's cache folder. Where the user has no home, as
    in a container that runs under a number alone, a path at which nothing can be kept."""
    own = os.environ.get("QDEBUG_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "qdebug"
    except RuntimeError:
        return _nowhere()


@cache
def _nowhere() -> Path:
    _LOG.warning(
        "nothing is kept between commands: this user has no home folder, and neither HOME nor"
        " QDEBUG_CACHE_DIR is set"
    )
    return Path(os.devnull) / "qdebug"


def digest_of(*parts: object) -> str:
    """SHA-256 of the `repr` of some parts, for keys."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Memo:
    """A folder of results, the least recently used of which go when it exceeds its limit.

    Keys of different versions of qdebug's sources never meet.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = 2 << 30) -> None:
        """`folder` is by default `memo` in the cache folder."""
        self._folder = folder or cache_folder() / "memo"
        self._limit = limit_bytes
        self._written = 0
        self._sources = _digest_of_sources()
        self._prune()

    def get(self, key: str) -> Any:
        """The result kept under `key`; None where there is none."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
                return None
            found = _Unpickler(io.BytesIO(data[_DIGEST_BYTES:])).load()
            os.utime(path)  # the least recently used go first
        except Exception:  # pickle raises many types; all of them mean "no result"
            return None
        return found

    def put(self, key: str, value: object) -> None:
        """Keep a result, which is not None, completely or not at all; one that is large against the
        limit is not kept."""
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if len(data) > _LARGEST * self._limit:
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(hashlib.sha256(data).digest() + data)
            Path(file.name).replace(self._path(key))
        self._written += len(data)
        if self._written > _PRUNED_AFTER * self._limit:
            self._prune()

    def _path(self, key: str) -> Path:
        return self._folder / digest_of(self._sources, key)

    def _prune(self) -> None:
        self._written = 0
        with suppress(OSError):
            files = sorted(
                ((s.st_mtime_ns, s.st_size, p) for p in self._folder.iterdir() if (s := p.stat())),
                reverse=True,
            )
            total = 0
            for _, size, path in files:
                total += size
                if total > self._limit:
                    path.unlink(missing_ok=True)


class _Unpickler(pickle.Unpickler):
    """Makes values of qdebug and numpy only: a file of the cache that somebody else wrote runs no
    code of theirs."""

    def find_class(self, module: str, name: str) -> Any:
        """See pickle.Unpickler."""
        if module.startswith(_TRUSTED) or (module == "builtins" and name in _BUILTINS):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no value of a result")


def _digest_of_sources() -> str:
    """Of the version, and of the names, sizes and times of the sources: those of somebody who
    works on them change while the version stays."""
    root = Path(__file__).parent
    stats = [(str(p), s.st_size, s.st_mtime_ns) for p in root.rglob("*.py") if (s := p.stat())]
    return digest_of(__version__, sorted(stats))
