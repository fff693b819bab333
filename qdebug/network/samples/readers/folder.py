"""A folder of samples: which format its files have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.network.dataformats import FORMATS, data_usage
from qdebug.network.samples.feed_files import files_in
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source:
    """What a folder holds, by the first format in FORMATS that reads it.

    Raises:
        SampleError: no format does, or its files are of several kinds.
    """
    formats = [each for each in FORMATS if each.in_folders]
    formats.sort(key=lambda each: bool(each.endings))  # folders inside come before files
    alone = [each for each in formats if not each.beside_others and _has_files(path, each.endings)]
    if len(alone) > 1:
        raise SampleError(
            f"{path}: holds both {alone[0].endings[0]} and {alone[1].endings[0]} files.",
            "Keep one kind in the folder.",
            code="QD-SAMPLES-FORMAT",
        )
    for data_format in formats:
        source = data_format.reader.read_folder(path, inputs)
        if source is not None:
            return source
    raise SampleError(
        f"{path}: a folder without samples; it holds {_contents(path)}.",
        f"Give {data_usage()}.",
        code="QD-SAMPLES-FORMAT",
    )


def _contents(path: Path) -> str:
    """What is in a folder, for people: how many files of which ending."""
    kinds = Counter(
        "folder" if each.is_dir() else f"{each.suffix or 'other'} file" for each in path.iterdir()
    )
    return ", ".join(counted(count, kind) for kind, count in kinds.most_common()) or "nothing"


def _has_files(path: Path, endings: Sequence[str]) -> bool:
    return any(files_in(path, ending) for ending in endings)
