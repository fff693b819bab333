"""A list of pictures or recordings, and labels: a CSV file with a heading, or JSON lines. The
column of the files is called file, path, image, audio or filename; every other one is labels. Texts
in a column called label or class may be names of classes, or what is to be read: they become
numbers, and the array `text` where no column has that name. A column `text` stays as it is
written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import read_text
from qdebug.network.samples.damage import reading
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.readers.coco import find_files
from qdebug.network.samples.recordings import Recordings, is_recording
from qdebug.network.samples.samples import Source
from qdebug.types import Array, TensorSpec
from qdebug.wording import counted

FILE_COLUMNS = "file", "path", "image", "audio", "filename", "file_name", "audio_filepath"
LABEL_COLUMNS = "label", "class"
_TEXT = "text"


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The pictures or the recordings of the list, in its order.

    Raises:
        SampleError: it is damaged, has no column of files, or names some that are not there.
    """
    rows = rows_of(path)
    column = next((name for name in FILE_COLUMNS if rows and name in rows[0]), None)
    if column is None:
        listed = ", ".join(rows[0]) if rows else "nothing"
        raise SampleError(
            f"{path}: no column names the files; it has {listed}.",
            f"Call it {' or '.join(FILE_COLUMNS[:2])}, in the first line of a CSV file.",
            code="QD-SAMPLES-DAMAGED",
        )
    files = find_files(path, [str(value) for value in values_of(path, rows, column)])
    labels, classes = labels_of_rows(path, rows, {column})
    told = f"{' with ' * bool(labels)}{', '.join(labels)} ({path.name})"
    if all(map(is_recording, files)):
        return Recordings(tuple(files), f"{counted(len(files), 'recording')}{told}", labels)
    return PictureSet(
        tuple(files),
        f"{counted(len(files), 'picture')}{told}",
        labels,
        classes=classes,
    )


def labels_of_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], samples: Collection[str | None]
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The columns besides those of the `samples` as arrays, and the names of the classes, if they
    have any.

    Raises:
        SampleError: a row lacks one.
    """
    labels: dict[str, Array] = {}
    classes: tuple[str, ...] = ()
    for name in rows[0]:
        if name not in samples:
            values = values_of(path, rows, name)
            array, names = _column(name, values)
            labels["labels" if name in LABEL_COLUMNS else name] = array
            if names and _TEXT not in rows[0]:
                labels[_TEXT] = np.array([str(value) for value in values])
            classes = classes or names
    return labels, classes


def rows_of(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a CSV file with a heading, or of JSON lines.

    Raises:
        SampleError: it is neither.
    """
    repair = 'Each line of a .jsonl file is an object such as {"file": "a.jpg", "label": 3}; a CSV '
    with reading(path, f"{repair}file has a heading."):
        text = read_text(path)
        rows: list[Mapping[str, Any]]
        if path.suffix.lower() == ".csv":
            rows = [*csv.DictReader(io.StringIO(text))]
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict):
                raise ValueError("a line is no object")
            if None in row:
                raise ValueError(f"row {number} has more values than the heading has names")
    return rows


def values_of(path: Path, rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """A column.

    Raises:
        SampleError: a row lacks it.
    """
    values = [row.get(name) for row in rows]
    missing = next((k for k, value in enumerate(values, start=1) if value in (None, "")), None)
    if missing is not None:
        raise SampleError(
            f"{path}: row {missing} has no '{name}'.",
            "Fill it in, or remove the row.",
            code="QD-SAMPLES-LABELS",
        )
    return values


def _column(name: str, values: Sequence[Any]) -> tuple[Array, tuple[str, ...]]:
    """Labels as numbers, or as texts; the texts of a column of classes are their names, in the
    order of the alphabet, and become their numbers."""
    if name == _TEXT:  # "007" is no 7
        return np.array([str(value) for value in values]), ()
    try:
        numbers = np.array([float(value) for value in values])
    except (TypeError, ValueError, OverflowError):
        texts = [str(value) for value in values]
        if name not in LABEL_COLUMNS:
            return np.array(texts), ()
        names = sorted(set(texts))
        return np.array([names.index(text) for text in texts], np.int64), tuple(names)
    whole = bool((np.abs(numbers) < _EXACT).all() and (numbers == np.rint(numbers)).all())
    return (numbers.astype(np.int64) if whole else numbers), ()


_EXACT = 2.0**53
"""Up to here float64 has every whole number."""
