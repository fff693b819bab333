"""A list of pictures and labels: a CSV file with a heading, or JSON lines. The column of the
pictures is called file, path, image or filename; every other one of numbers is labels."""

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


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The pictures of the list, in its order.

    Raises:
        SampleError: it is damaged, has no column of pictures, or names some that are not there.
    """
    rows = _rows(path)
    column = next((name for name in _FILE if rows and name in rows[0]), None)
    if column is None:
        found = ", ".join(rows[0]) if rows else "nothing"
        raise SampleError(
            f"{path}: no column names the pictures; found {found}.",
            f"Call it {' or '.join(_FILE[:2])}, in the first line of a CSV file.",
            code="QD-SAMPLES-DAMAGED",
        )
    files = find_pictures(path, [str(row[column]) for row in rows])
    labels: dict[str, Array] = {}
    classes: tuple[str, ...] = ()
    for name in rows[0]:
        if name != column:
            values = [row.get(name) for row in rows]
            array, names = _column(path, name, values)
            labels["labels" if name in _LABEL else name] = array
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
            return list(csv.DictReader(io.StringIO(text)))
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


def _column(path: Path, name: str, values: Sequence[Any]) -> tuple[Array, tuple[str, ...]]:
    """Labels as numbers, and the names of classes where they are names.

    Raises:
        SampleError: one is missing, or they are neither.
    """
    missing = [k for k, value in enumerate(values) if value in (None, "")]
    if missing:
        raise SampleError(
            f"{path}: row {missing[0] + 1} has no '{name}'.",
            "Fill it in, or remove the row.",
            code="QD-SAMPLES-LABELS",
        )
    try:
        numbers = np.array([float(value) for value in values])
    except (TypeError, ValueError):
        texts = [str(value) for value in values]
        if name not in _LABEL:
            return np.array(texts), ()
        names = sorted(set(texts))
        return np.array([names.index(text) for text in texts], np.int64), tuple(names)
    whole = numbers.astype(np.int64)
    return (whole, ()) if (whole == numbers).all() else (numbers, ())
