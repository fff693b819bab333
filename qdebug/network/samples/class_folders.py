"""Files in a folder, or in folders that are their classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdebug.network.samples.feed_files import natural_key
from qdebug.network.samples.found_preprocessing import class_names, read_metadata
from qdebug.types import Array

_NAMED = 5
"""Folders that a sentence names."""


@dataclass(frozen=True)
class ClassedFiles:
    """Files in the order in which they are samples.

    Attributes:
        files: of them.
        labels: the class of each, int64; None where they lie in one folder.
        count: of the classes.
        names: of the classes; () where they are numbers.
        numbered: the names of the folders in the order of the numbers that these are; () where they
            are none.
    """

    files: tuple[Path, ...]
    labels: Array | None = None
    count: int = 0
    names: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()


@dataclass(frozen=True)
class Numbering:
    """The number of the class of each folder whose name is a number.

    Attributes:
        class_of: by the number that is its name.
        told: why they are not the same, for people; "" where they are.
    """

    class_of: Mapping[int, int]
    told: str = ""

    def of(self, labels: Mapping[str, Array]) -> dict[str, Array]:
        """Labels by name, those called `labels` with these classes."""
        own = [self.class_of[int(number)] for number in labels["labels"]]
        return {**labels, "labels": np.array(own, np.int64)}


def numbering(folders: Sequence[str], model: str) -> Numbering | None:
    """How a model numbers the classes that folders with numbers as names hold, in the order of
    these: as its metadata do where they have all the names; by their names where it has a class of
    each number; else by their order, where it has as many classes: the last axis of its first
    output. None where their names are what is known: no folders or model, two folders of one
    number, or a number of classes that is not known or is another one."""
    numbers = [int(name) for name in folders]
    if not model or not numbers or len(set(numbers)) < len(numbers):
        return None
    metadata = read_metadata(model)
    named = {name: k for k, name in class_names(metadata).items()}
    if all(name in named for name in folders):
        class_of = {number: named[name] for number, name in zip(numbers, folders, strict=True)}
        as_named = all(number == k for number, k in class_of.items())
        return Numbering(class_of, "" if as_named else ", numbered as the model's metadata do")
    count = metadata.last_axes[0] if metadata.last_axes else 0
    if len(folders) != count or max(numbers) < count:
        return None
    shown = [*folders[: _NAMED - 1], "…", folders[-1]] if count > _NAMED else folders
    return Numbering(
        {number: k for k, number in enumerate(numbers)},
        f", numbered from 0 in the order {', '.join(shown)}: the network has {count} classes, and "
        f"no class {folders[-1]}",
    )


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
    if numbered:
        by_number = tuple(sorted(names, key=int))
        return ClassedFiles(chosen, labels[order], len(names), numbered=by_number)
    return ClassedFiles(chosen, labels[order], len(names), names)


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
