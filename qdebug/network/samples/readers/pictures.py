"""Pictures: one file, a folder of them, or a folder with one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qdebug.network.samples.feed_files import natural_key
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.pictures import EncodedFile, is_picture
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """One picture."""
    return PictureSet((EncodedFile(path),), "1 picture")


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The pictures of a folder by name, the numbers in which sort as numbers; or, where it holds
    none, those in its folders, each of which is a class: by its number where all are called by
    one, else by its place in the alphabet."""
    flat = pictures_in(path)
    if flat:
        return PictureSet(flat, counted(len(flat), "picture"))
    folders = sorted((f for f in path.iterdir() if f.is_dir()), key=lambda f: f.name)
    by_class = {folder.name: pictures_in(folder, deep=True) for folder in folders}
    by_class = {name: files for name, files in by_class.items() if files}
    if not by_class:
        return None
    names = tuple(by_class)
    numbered = all(name.isdecimal() for name in names)
    numbers = [int(name) if numbered else k for k, name in enumerate(names)]
    labels = np.repeat(np.array(numbers, np.int64), [len(files) for files in by_class.values()])
    files = tuple(file for each in by_class.values() for file in each)
    shuffled = interleaved([len(each) for each in by_class.values()])
    found = PictureSet(
        files,
        f"{counted(len(files), 'picture')} in {len(names)} classes by folder",
        {"labels": labels},
        classes=() if numbered else names,
    )
    return found.kept(shuffled)


def pictures_in(folder: Path, *, deep: bool = False) -> tuple[EncodedFile, ...]:
    """The pictures of a folder in order; `deep` takes those in its folders, too."""
    files = folder.rglob("*") if deep else folder.iterdir()
    return tuple(
        map(
            EncodedFile,
            sorted((f for f in files if is_picture(f) and f.is_file()), key=natural_key),
        )
    )


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
