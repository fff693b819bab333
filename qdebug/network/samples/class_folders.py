"""Files in a folder, or in folders that are their classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdebug.network.samples.feed_files import natural_key
from qdebug.types import Array


@dataclass(frozen=True)
class ClassedFiles:
    """Files in the order in which they are samples.

    Attributes:
        files: of them.
        labels: the class of each, int64; None where they lie in one folder.
        count: of the classes.
        names: of the classes; () where they are numbers.
    """

    files: tuple[Path, ...]
    labels: Array | None = None
    count: int = 0
    names: tuple[str, ...] = ()


def classed_files(path: Path, is_sample: Callable[[Path], bool]) -> ClassedFiles | None:
    """The files of a folder by name, the numbers in which sort as numbers; or, where it holds none,
    those in its folders, each of which is a class: by its number where all are called by one, else
    by its place in the alphabet. None where there are neither."""
    flat = files_of(path, is_sample)
    if flat:
        return ClassedFiles(flat)
    folders = sorted((f for f in path.iterdir() if f.is_dir()), key=lambda f: f.name)
    by_class = {folder.name: files_of(folder, is_sample, deep=True) for folder in folders}
    by_class = {name: files for name, files in by_class.items() if files}
    if not by_class:
        return None
    names = tuple(by_class)
    numbered = all(name.isdecimal() for name in names)
    numbers = [int(name) if numbered else k for k, name in enumerate(names)]
    counts = [len(files) for files in by_class.values()]
    labels = np.repeat(np.array(numbers, np.int64), counts)
    files = [file for each in by_class.values() for file in each]
    order = interleaved(counts)
    chosen = tuple(files[k] for k in order)
    return ClassedFiles(chosen, labels[order], len(names), () if numbered else names)


def files_of(
    folder: Path, is_sample: Callable[[Path], bool], *, deep: bool = False
) -> tuple[Path, ...]:
    """The files of a folder in order; `deep` takes those in its folders, too."""
    files = folder.rglob("*") if deep else folder.iterdir()
    return tuple(sorted((f for f in files if is_sample(f) and f.is_file()), key=natural_key))


def interleaved(counts: Sequence[int]) -> list[int]:
    """An order of items that lie class by class, in which every class is spread evenly: the first N
    of them, as --samples takes them, are then of all classes."""
    starts = np.cumsum([0, *counts])
    places = [
        ((k + 0.5) / count, int(start) + k)
        for start, count in zip(starts, counts, strict=False)
        for k in range(count)
    ]
    return [number for _, number in sorted(places)]
