"""The libraries of custom operators that ONNX Runtime loads while a command runs.

They are state of the process, as ONNX Runtime's own registration is: whatever opens a session while
a command runs gets them, and what a result was found with can be told by their digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

_loaded: list[Path] = []
_lock = Lock()


@contextmanager
def loaded(paths: Sequence[Path]) -> Iterator[None]:
    """Within, in every thread, these libraries are loaded into new sessions. Commands that run side
    by side share theirs."""
    with _lock:
        _loaded.extend(paths)
    try:
        yield
    finally:
        with _lock:
            for path in paths:
                _loaded.remove(path)


def libraries() -> tuple[Path, ...]:
    """Those that are loaded, each once."""
    with _lock:
        return tuple(dict.fromkeys(_loaded))


def operators_digest() -> str:
    """SHA-256 of what is loaded; "" where nothing is. A part of the keys of what is kept."""
    parts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in libraries()]
    return hashlib.sha256("".join(parts).encode()).hexdigest() if parts else ""
