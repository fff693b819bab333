"""Texts: a .txt file with one on each line, or a .csv or .jsonl file with a column `text` (or
`sentence`), perhaps a second one, and labels."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from qdebug.inputfiles import read_text
from qdebug.network.samples.damage import reading
from qdebug.network.samples.readers.file_list import (
    FILE_COLUMNS,
    labels_of_rows,
    rows_of,
    values_of,
)
from qdebug.network.samples.samples import Source
from qdebug.network.samples.texts import Texts
from qdebug.types import TensorSpec
from qdebug.wording import counted

TEXT_COLUMNS = "text", "sentence", "sentence1", "premise", "question"
PAIR_COLUMNS = "text_pair", "sentence2", "hypothesis", "context"
"""Columns of GLUE and of its like."""
_MOST = 1 << 20
"""Bytes of a first line."""


def recognizes(path: Path) -> bool:
    """Whether it is a list of texts, and not of files with texts as labels."""
    with path.open("rb") as file:
        first = file.readline(_MOST)
    if path.suffix.lower() == ".txt":
        return bool(first)
    try:
        line = first.decode("utf-8-sig")
        columns = next(csv.reader([line])) if path.suffix.lower() == ".csv" else json.loads(line)
    except (ValueError, csv.Error, RecursionError, StopIteration):
        return False
    if not isinstance(columns, list | dict):
        return False
    return any(name in columns for name in TEXT_COLUMNS) and not any(
        n in columns for n in FILE_COLUMNS
    )


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The texts of a file, in its order.

    Raises:
        SampleError: it is damaged, or a row lacks its text.
    """
    if path.suffix.lower() == ".txt":
        with reading(path, "Write one text on each line, in UTF-8."):
            lines = tuple(line for line in read_text(path).splitlines() if line.strip())
        return Texts(lines, f"{counted(len(lines), 'text')} ({path.name})")
    rows = rows_of(path)
    text = next(name for name in TEXT_COLUMNS if name in rows[0])
    pair = next((name for name in PAIR_COLUMNS if name in rows[0]), None)
    labels = labels_of_rows(path, rows, {text, pair})[0]
    told = f"{' with ' * bool(labels)}{', '.join(labels)} ({path.name})"
    return Texts(
        tuple(map(str, values_of(path, rows, text))),
        f"{counted(len(rows), 'pair of texts' if pair else 'text')}{told}",
        None if pair is None else tuple(map(str, values_of(path, rows, pair))),
        {name: array for name, array in labels.items() if array.dtype.kind != "U"},
    )
