"""Files that are samples, in a stable order, in a folder or in folders that are their classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, Self, TypeVar

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.feed_files import natural_key
from qdebug.network.samples.found_preprocessing import class_names, read_metadata
from qdebug.network.samples.groups import folders_of
from qdebug.network.samplespec import FOLDER, SampleSpec
from qdebug.types import Array
from qdebug.wording import counted, option

_SHOWN_FOLDERS = 5
_SHOWN_FILES = 3
"""That a message names."""


class UnreadableError(Exception):
    """A file cannot be decoded; says why."""


@dataclass(frozen=True)
class FileSet:
    """Files that are samples, and what is known of each.

    Attributes:
        files: in their order.
        holds: what they are and how they are labelled, for people.
        labels: arrays by name, a row for each.
        classes: the names of the classes that labels have, by number; () where only numbers are
            known.
        folders: the names of the folders whose numbers are the labels, in their order; () where
            none are.
    """

    files: tuple[Path, ...]
    holds: str
    labels: Mapping[str, Array] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def kept(self, numbers: Sequence[int]) -> Self:
        """Some of them."""
        rows = np.array(numbers, np.int64)
        labels = {name: array[rows] for name, array in self.labels.items()}
        return replace(self, files=tuple(self.files[k] for k in numbers), labels=labels)

    def grouped(self, spec: SampleSpec) -> Self:
        """With the folder that each is in as a label, where that is what groups are asked by."""
        if spec.group != FOLDER or FOLDER in self.labels:
            return self
        folders = np.array(folders_of([*map(str, self.files)]))
        return replace(self, labels={**self.labels, FOLDER: folders})

    def renumbered(self, number_of: Mapping[int, int]) -> Self:
        """With other numbers for the classes."""
        labels = dict(self.labels)
        if "labels" in labels:
            own = [number_of[number] for number in labels["labels"].tolist()]
            labels["labels"] = np.array(own, np.int64)
        return replace(self, labels=labels, classes=(), folders=())

    def numbered_as(self, model: str) -> tuple[Self, str]:
        """With the numbers a model has for its classes, and what to say of those that it lacks:
        as its metadata do where they have all the names. Else folders called by numbers have these
        where it has a class of each, and are counted where it has as many classes: the last axis of
        its first output."""
        numbers = [int(name) for name in self.folders]
        names = dict(zip(numbers, self.folders, strict=True)) or dict(enumerate(self.classes))
        if not model or not names or len(names) < len(numbers):  # two folders of one number
            return self, ""
        metadata = read_metadata(model)
        own = {name: k for k, name in class_names(metadata).items()}
        unknown = next((name for name in names.values() if name not in own), None)
        if unknown is None:
            number_of = {number: own[name] for number, name in names.items()}
            other = bool(numbers) and any(k != number for number, k in number_of.items())
            told = ", numbered as the model's metadata do" * other
            return replace(self.renumbered(number_of), holds=self.holds + told), ""
        if self.classes and own:
            return self, f"; the model has no class '{unknown}': the data's numbers are kept"
        count = metadata.last_axes[0] if metadata.last_axes else 0
        if not numbers or len(numbers) != count or max(numbers) < count:
            return self, ""
        shown = self.folders
        if count > _SHOWN_FOLDERS:
            shown = (*shown[: _SHOWN_FOLDERS - 1], "…", shown[-1])
        told = (
            f", numbered from 0 in the order {', '.join(shown)}: the network has {count} classes, "
            f"and no class {self.folders[-1]}"
        )
        counting = self.renumbered({number: k for k, number in enumerate(numbers)})
        return replace(counting, holds=self.holds + told), ""


SetT = TypeVar("SetT", bound=FileSet)


def set_in(
    kind: type[SetT], folder: Path, is_sample: Callable[[Path], bool], noun: str
) -> SetT | None:
    """The files of a folder by name, the numbers in which sort as numbers; or, where it holds none,
    those in its folders, each of which is a class: by its number where all are called by one, else
    by its place in the alphabet. None where there are neither."""
    flat = files_of(folder, is_sample)
    if flat:
        return kind(flat, counted(len(flat), noun))
    folders = sorted((f for f in folder.iterdir() if f.is_dir()), key=lambda f: f.name)
    by_class = {each.name: files_of(each, is_sample, deep=True) for each in folders}
    by_class = {name: files for name, files in by_class.items() if files}
    if not by_class:
        return None
    names = tuple(by_class)
    numbered = all(name.isdecimal() for name in names)
    numbers = [int(name) if numbered else k for k, name in enumerate(names)]
    counts = [len(files) for files in by_class.values()]
    files = [file for each in by_class.values() for file in each]
    order = interleaved(counts)
    return kind(
        tuple(files[k] for k in order),
        f"{counted(len(files), noun)} in {len(names)} classes by folder",
        {"labels": np.repeat(np.array(numbers, np.int64), counts)[order]},
        classes=() if numbered else names,
        folders=tuple(sorted(names, key=int)) if numbered else (),
    )


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


def threads() -> int:
    """Of a pool that decodes files."""
    return max(1, os.cpu_count() or 1)


def bad_files(files: Sequence[Path], look: Callable[[Path], object]) -> dict[int, str]:
    """The number of each file that `look` cannot read, and why."""

    def reason(file: Path) -> str:
        try:
            look(file)
        except UnreadableError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(threads()) as pool:
        reasons = list(pool.map(reason, files))
    return {k: why for k, why in enumerate(reasons) if why}


def refuse_bad(
    files: Sequence[Path],
    bad: Mapping[int, str],
    where: str,
    noun: str = "picture",
    code: str = "QD-SAMPLES-PICTURE",
) -> NoReturn:
    """Refuse files for those that are `bad`.

    Raises:
        SampleError: always.
    """
    bad = bad or {0: "it was changed meanwhile"}
    first = ", ".join(f"{files[k]} ({bad[k]})" for k in sorted(bad)[:_SHOWN_FILES])
    more = f" and {len(bad) - _SHOWN_FILES} more" if len(bad) > _SHOWN_FILES else ""
    raise SampleError(
        f"{where}: {len(bad)} of {counted(len(files), noun)} cannot be read: {first}{more}.",
        f"Repair or remove them, or leave them out with {option('skip_bad')}.",
        code=code,
    )


def shown_files(names: Sequence[object]) -> str:
    """The first few of some files, each once."""
    each = list(dict.fromkeys(map(str, names)))
    return ", ".join(each[:_SHOWN_FILES]) + ", …" * (len(each) > _SHOWN_FILES)
