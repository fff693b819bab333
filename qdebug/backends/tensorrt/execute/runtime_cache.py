"""What TensorRT for RTX compiles when an engine is executed: kept in the process, and in a file.

It compiles kernels for the GPU when a context is made, and more for shapes that it meets then.
Seen: 2.0 s for a first context, 0.02 s for the next one of the same engine and 0.4 s for one of an
engine that differs in its outputs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdebug.outputfiles import keep


@dataclass
class _Kept:
    """A `trt.IRuntimeCache`, and what of it is in the file."""

    raw: Any
    saved: bytes = b""


_kept: dict[str, _Kept] = {}


def runtime_cache(library: str, config: Any, file: Path | None) -> Any:
    """The one `trt.IRuntimeCache` of this process for a library; new, it begins with what `file`
    holds, unless that is of another GPU, driver or version: TensorRT sees to that.

    TensorRT keeps no reference to it (seen: a segmentation fault), so it is kept here for good.

    Args:
        library: its name and version.
        config: a `trt.IRuntimeConfig` to make it of.
        file: may be missing; None for a cache that ends with the process.
    """
    if library not in _kept:
        kept = _Kept(config.create_runtime_cache())
        if file is not None:
            with suppress(OSError):
                kept.saved = file.read_bytes()
        if kept.saved:
            kept.raw.deserialize(kept.saved)
        _kept[library] = kept
    return _kept[library].raw


def save_runtime_cache(library: str, file: Path) -> None:
    """Write what was compiled so far, if that is not what the file holds; a disk that refuses is no
    error."""
    kept = _kept.get(library)
    if kept is None:
        return
    memory = kept.raw.serialize()
    data = bytes(memory) if memory is not None else b""
    if data not in (b"", kept.saved):
        keep(file, data)
        kept.saved = data
