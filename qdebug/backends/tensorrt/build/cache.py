"""Engines kept from one run to the next.

One file per engine, `KEY.zip`, with the engine, its log and what else is known of the build. A
cache: it may be deleted at any time, and whatever is wrong with a file makes it as if it were not
there. Above `limit_bytes` the least recently used engines are deleted.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from qdebug.backends.engine import BuildWarning, BuiltEngine
from qdebug.backends.tensorrt.execute.device import Device, find_device
from qdebug.backends.tensorrt.library import Library
from qdebug.outputfiles import keep
from qdebug.types import Skipped

LIMIT_BYTES = 4 * 2**30
"""The default limit of the disk space that all kept engines take together."""

_SCHEMA = "qdebug.engine/1"


def library_file(folder: Path, kind: str, library: Library) -> Path:
    """Where in `folder` something of a library is kept, such as its "timing" cache: a file for each
    version and GPU, since TensorRT takes no other's."""
    device = find_device()
    gpu = device.name if isinstance(device, Device) else "no GPU"
    version = ".".join(map(str, library.version))
    return folder / re.sub(r"[^\w.-]+", "-", f"{kind}-{library.kind}-{version}-{gpu}.bin")


class EngineCache:
    """A folder of engines."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder = folder
        self._limit = limit_bytes

    def load(self, key: str) -> BuiltEngine | None:
        """The engine kept under `key`, marked as cached, or None."""
        path = self._path(key)
        try:
            with zipfile.ZipFile(path) as file:
                facts = json.loads(file.read("facts.json"))
                if facts["schema"] != _SCHEMA or facts["key"] != key:
                    return None
                built = _from_facts(facts, file.read("engine"), file.read("build.log").decode())
        except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
            return None
        with suppress(OSError):  # a folder that can only be read
            os.utime(path)
        return replace(built, cached=True)

    def save(self, built: BuiltEngine) -> None:
        """Keep an engine, whole or not at all; a write error is ignored."""

        def write(stream: IO[bytes]) -> None:
            with zipfile.ZipFile(stream, "w") as file:
                file.writestr("engine", built.engine)
                file.writestr("build.log", built.log, zipfile.ZIP_DEFLATED)
                file.writestr("facts.json", json.dumps(_facts(built)))

        keep(self._path(built.key), write)
        self._shrink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.zip"

    def _shrink(self) -> None:
        found = []
        for path in self._folder.glob("*.zip"):
            with suppress(OSError):  # another process may have removed it
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit:
                return
            with suppress(OSError):
                path.unlink()
            total -= size


def _facts(built: BuiltEngine) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "key": built.key,
        "seconds": built.seconds,
        "warnings": [asdict(w) for w in built.warnings],
        "skipped": [asdict(s) for s in built.skipped],
    }


def _from_facts(facts: Mapping[str, Any], engine: bytes, log: str) -> BuiltEngine:
    warnings = [BuildWarning(w["text"], tuple(w["nodes"]), w["count"]) for w in facts["warnings"]]
    skipped = [Skipped(s["tensor"], s["reason"]) for s in facts["skipped"]]
    seconds = float(facts["seconds"])
    return BuiltEngine(engine, log, tuple(warnings), tuple(skipped), seconds, str(facts["key"]))
