"""A list of pictures and labels: a CSV file with a heading, or JSON lines. The column of the
pictures is called file, path, image or filename; every other one is labels. Texts in a column
called label or class may be names of classes, or what is to be read: they become numbers, and the
array `text` where no column has that name. A column `text` stays as it is written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import read_text
from qdebug.network.samples.picture_set import PictureSet
from qdebug.network.samples.pictures import EncodedFile
from qdebug.network.samples.readers.coco import find_pictures
from qdebug.network.samples.samples import Source
from qdebug.types import Array, TensorSpec
from qdebug.wording import counted

_FILE = "file", "path", "image", "filename", "file_name"
_LABEL = "label", "class"
_TEXT = "text"


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The pictures of the list, in its order.

    Raises:
        SampleError: it is damaged, has no column of pictures, or names some that are not there.
    """
    rows = _rows(path)
    column = next((name for name in _FILE if rows and name in rows[0]), None)
    if column is None:
        listed = ", ".join(rows[0]) if rows else "nothing"
        raise SampleError(
            f"{path}: no column names the pictures; it has {listed}.",
            f"Call it {' or '.join(_FILE[:2])}, in the first line of a CSV file.",
            code="QD-SAMPLES-DAMAGED",
        )
    files = find_pictures(path, [str(value) for value in _values(path, rows, column)])
    labels: dict[str, Array] = {}
    classes: tuple[str, ...] = ()
    for name in rows[0]:
        if name != column:
            values = _values(path, rows, name)
            array, names = _column(name, values)
            labels["labels" if name in _LABEL else name] = array
            if names and _TEXT not in rows[0]:
                labels[_TEXT] = np.array([str(value) for value in values])
            classes = classes or names
    told = f" with {', '.join(labels)}" if labels else ""
    return PictureSet(
        tuple(map(EncodedFile, files)),
        f"{counted(len(files), 'picture')}{told} ({path.name})",
        labels,
        classes=classes,
    )


def _rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = read_text(path)
        if path.suffix.lower() == ".csv":
            table = list(csv.DictReader(io.StringIO(text)))
            longer = next((k for k, row in enumerate(table, start=1) if None in row), None)
            if longer is not None:
                raise ValueError(f"row {longer} has more values than the heading has names")
            return [*table]
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line is no object")
    except (ValueError, csv.Error, RecursionError) as error:
        raise SampleError(
            f"{path}: not a list of pictures ({next(iter(str(error).splitlines()), '')}).",
            "Each line of a .jsonl file is an object such as "
            '{"file": "a.jpg", "label": 3}; a CSV file has a heading.',
            code="QD-SAMPLES-DAMAGED",
        ) from error
    return rows


def _values(path: Path, rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
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
        if name not in _LABEL:
            return np.array(texts), ()
        names = sorted(set(texts))
        return np.array([names.index(text) for text in texts], np.int64), tuple(names)
    whole = bool((np.abs(numbers) < _EXACT).all() and (numbers == np.rint(numbers)).all())
    return (numbers.astype(np.int64) if whole else numbers), ()


_EXACT = 2.0**53
"""Up to here float64 has every whole number."""
