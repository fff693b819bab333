"""Sample files stay as they were when they were opened, or a pass over them is an error: one that
is cut off or written anew meanwhile would give samples of two states, and HDF5 gives zeros for what
is no longer there. Figures of both look like any others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.network.dataformats import FORMATS, SCRIPT

Stamps = Mapping[Path, tuple[int, int, int]]
"""The size, the time of the last change and the identity of files."""

_ENDINGS = {".pb", *(ending for each in FORMATS if each is not SCRIPT for ending in each.endings)}


def stamps_of(data: Path) -> Stamps:
    """Of a file, or of all files of samples below a folder; none where there is nothing.

    Raises:
        OSError: a folder cannot be read.
    """
    files = data.rglob("*") if data.is_dir() else [data]
    return {f: _stamp(f) for f in files if f.suffix.lower() in _ENDINGS and f.is_file()}


def check_stamps(stamps: Stamps) -> None:
    """Look at the files again.

    Raises:
        SampleError: one of them is not as it was.
    """
    for file, before in stamps.items():
        try:
            now = _stamp(file)
        except OSError as error:
            raise SampleError(
                f"{file}: cannot be read any more ({error}).",
                "Leave the data in place.",
                code="QD-SAMPLES-DAMAGED",
            ) from error
        if now != before:
            sizes = f" from {before[0]} to {now[0]} bytes" if now[0] != before[0] else ""
            raise SampleError(
                f"{file}: was changed{sizes} while it was read.",
                "Wait until the program that writes it has ended, and repeat the command.",
                code="QD-SAMPLES-CHANGED",
            )


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino
