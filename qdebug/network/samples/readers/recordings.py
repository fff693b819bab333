"""Recordings, WAV files: one, a folder of them, or a folder with one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.network.samples.class_folders import classed_files
from qdebug.network.samples.recordings import Recordings, is_recording
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """One recording."""
    return Recordings((path,), "1 recording")


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The recordings of a folder, or of the folders in it, each of which is a class."""
    found = classed_files(path, is_recording)
    if found is None:
        return None
    holds = counted(len(found.files), "recording")
    if found.labels is None:
        return Recordings(found.files, holds)
    holds += f" in {found.count} classes by folder"
    return Recordings(found.files, holds, {"labels": found.labels}, found.numbered)
