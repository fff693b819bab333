"""Recordings, WAV files: one, a folder of them, or a folder with one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.network.samples.file_set import set_in
from qdebug.network.samples.recordings import Recordings, is_recording
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """One recording."""
    return Recordings((path,), "1 recording")


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The recordings of a folder, or of the folders in it, each of which is a class."""
    return set_in(Recordings, path, is_recording, "recording")
