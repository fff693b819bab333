"""A Hugging Face dataset on the disk, as `Dataset.save_to_disk` writes it: Arrow files with
pictures, texts or arrays, and labels or boxes. The files are mapped into memory, so that pictures
are read as they are needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from qdebug.errors import SampleError, required
from qdebug.inputfiles import read_bytes, read_text
from qdebug.network.samples.arrays import ArrayInMemory
from qdebug.network.samples.picture_set import Boxes, PictureSet
from qdebug.network.samples.readers.file_list import LABEL_COLUMNS
from qdebug.network.samples.readers.texts import PAIR_COLUMNS, TEXT_COLUMNS
from qdebug.network.samples.samples import Source
from qdebug.network.samples.texts import Texts
from qdebug.types import Array, TensorSpec
from qdebug.wording import counted

_CATEGORIES = "category", "category_id", "label", "labels", "class"
"""What the class of an object is called beside its `bbox`."""
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


@dataclass(frozen=True)
class EncodedCell:
    """A picture in a row of a column: its bytes, or the path of its file."""

    column: Any
    row: int
    name: str

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            OSError: it cannot be read, or the row is empty.
        """
        cell = self.column[self.row].as_py() or {}
        if cell.get("bytes") is not None:
            return bytes(cell["bytes"])
        if not cell.get("path"):
            raise OSError(f"{self.name} is empty")
        return read_bytes(Path(cell["path"]))


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source | None:
    """The rows of a dataset, in their order.

    Raises:
        SampleError: it is damaged, consists of several splits, or holds nothing for the model.
    """
    if (path / _SPLITS).is_file():
        splits = _json(path / _SPLITS).get("splits") or ["train"]
        raise SampleError(
            f"{path}: holds the splits {', '.join(map(str, splits))} of a Hugging Face dataset.",
            f"Give one of them, such as {path / str(splits[-1])}.",
            code="QD-SAMPLES-FORMAT",
        )
    if not ((path / _STATE).is_file() and (path / _INFO).is_file()):
        return None
    features = _json(path / _INFO).get("features")
    if not isinstance(features, Mapping):
        _refuse(path / _INFO, "no features")
    table = _table(path)
    pictures = next((n for n, kind in features.items() if _type(kind) == "Image"), None)
    if pictures is not None:
        return _pictures(path, table, features, pictures)
    names = [spec.name for spec in inputs]
    text = next((n for n in TEXT_COLUMNS if n in features and n not in names), None)
    if text is not None and not any(n in features for n in names):
        pair = next((n for n in PAIR_COLUMNS if n in features), None)
        labels, _ = _labels(table, features, {text, pair})
        return Texts(
            tuple(map(str, table.column(text).to_pylist())),
            _told(table, "pair of texts" if pair else "text", labels, path),
            None if pair is None else tuple(map(str, table.column(pair).to_pylist())),
            {name: array for name, array in labels.items() if array.dtype.kind != "U"},
        )
    arrays, _ = _labels(table, features, ())
    arrays |= {name: array for name in names if (array := _array(path, table, name)) is not None}
    if not any(name in arrays for name in names):
        raise SampleError(
            f"{path}: its columns are {', '.join(features)}, and none of them is a picture, a text "
            f"or an input of the model ({', '.join(names)}).",
            "Rename a column, or give a function, script.py:function.",
            code="QD-SAMPLES-NAMES",
        )
    return {name: ArrayInMemory(array) for name, array in arrays.items()}


def _pictures(path: Path, table: Any, features: Mapping[str, Any], column: str) -> PictureSet:
    labels, classes = _labels(table, features, {column})
    cells = table.column(column)
    found = _objects(path, table, features)
    told = _told(table, "picture", labels, path)
    if found is not None:
        classes = found.classes or classes
        told += f"; {found.count} boxes, x, y, width and height of '{found.column}'"
    return PictureSet(
        tuple(EncodedCell(cells, row, f"{path}: row {row}") for row in range(len(cells))),
        told,
        labels,
        boxes=None if found is None else found.boxes,
        classes=classes,
    )


@dataclass(frozen=True)
class _Objects:
    """The boxes of each row; `column` holds them, `classes` are the names of theirs, if it says."""

    column: str
    boxes: tuple[Boxes, ...]
    classes: tuple[str, ...]

    @property
    def count(self) -> int:
        return sum(len(one.classes) for one in self.boxes)


def _objects(path: Path, table: Any, features: Mapping[str, Any]) -> _Objects | None:
    """The first column of objects with a `bbox` as COCO has it and a class each, which is a list of
    objects or lists of what they have; None without one.

    Raises:
        SampleError: a box is not four finite numbers, or has no class.
    """
    for column, kind in features.items():
        parts = _parts(kind)
        category = next((name for name in _CATEGORIES if name in parts), None)
        if "bbox" not in parts or category is None:
            continue
        try:
            rows = [_boxes(cell, category) for cell in table.column(column).to_pylist()]
        except (ValueError, TypeError, KeyError) as error:
            _refuse(path, f"'{column}' holds no boxes and classes: {error}", error)
        return _Objects(column, tuple(rows), _names(parts[category]))
    return None


def _parts(kind: Any) -> Mapping[str, Any]:
    """What the objects of a column have, by name: of a list of records, or a record of lists."""
    inner = kind.get("feature", kind) if isinstance(kind, Mapping) else {}
    return inner if isinstance(inner, Mapping) else {}


def _names(kind: Any) -> tuple[str, ...]:
    """Of the classes, however deep in lists; () where only numbers are known."""
    while _type(kind) != "ClassLabel":
        if not isinstance(kind, Mapping) or "feature" not in kind:
            return ()
        kind = kind["feature"]
    return tuple(map(str, kind.get("names") or ()))


def _boxes(cell: Any, category: str) -> Boxes:
    """Those of a row, as corners.

    Raises:
        ValueError: they are no boxes with classes; so say TypeError and KeyError.
    """
    if isinstance(cell, Mapping):
        corners, classes = cell["bbox"], cell[category]
    else:
        corners, classes = ([one[name] for one in cell or ()] for name in ("bbox", category))
    found = np.array(corners or [], np.float64).reshape(-1, 4)
    numbers = np.array(classes or [], np.int64)
    if not np.isfinite(found).all() or numbers.shape != found.shape[:1]:
        raise ValueError(f"{len(found)} boxes and {len(numbers)} classes, or some not finite")
    found[:, 2:] += found[:, :2]
    return Boxes(found, numbers)


def _told(table: Any, what: str, labels: Mapping[str, Array], path: Path) -> str:
    with_labels = f" with {', '.join(labels)}" if labels else ""
    return f"{counted(table.num_rows, what)}{with_labels} (Hugging Face dataset {path.name})"


def _labels(
    table: Any, features: Mapping[str, Any], samples: set[str | None] | tuple[()]
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The columns of single values besides those of the `samples`, and the names of the classes, if
    one of them has any."""
    labels: dict[str, Array] = {}
    classes: tuple[str, ...] = ()
    for name, kind in features.items():
        if name in samples or _type(kind) not in ("Value", "ClassLabel"):
            continue
        values = np.array(table.column(name).to_pylist())
        if values.dtype.kind in "biufU":  # with None it would be of objects
            labels["labels" if name in LABEL_COLUMNS else name] = values
        if _type(kind) == "ClassLabel" and not classes and name in LABEL_COLUMNS:
            classes = tuple(map(str, kind.get("names") or ()))
    return labels, classes


def _array(path: Path, table: Any, name: str) -> Array | None:
    """A column of numbers, or of lists of them that all have one shape; None where there is none.

    Raises:
        SampleError: the shapes differ.
    """
    if name not in table.column_names:
        return None
    try:
        column = table.column(name)
        kind = column.type
        while hasattr(kind, "value_type"):
            kind = kind.value_type
        return np.array(column.to_pylist(), np.dtype(kind.to_pandas_dtype()))
    except (ValueError, TypeError) as error:
        raise SampleError(
            f"{path}: the rows of '{name}' are not numbers of one shape.",
            "Pad them to one shape, or give a function, script.py:function.",
            code="QD-SAMPLES-SHAPE",
        ) from error


def _table(path: Path) -> Any:
    """The rows of all files, mapped.

    Raises:
        SampleError: one is damaged, or pyarrow is not installed.
    """
    arrow = required(
        "pyarrow", "a Hugging Face dataset", code="QD-SAMPLES-EXTRA", error=SampleError
    )
    state = _json(path / _STATE)
    if state.get("_indices_data_files"):
        raise SampleError(
            f"{path}: holds a selection of its rows, as an old version of datasets saved it.",
            "Save it again with flatten_indices().save_to_disk(…).",
            code="QD-SAMPLES-FORMAT",
        )
    files = [path / Path(str(one.get("filename", ""))).name for one in state.get("_data_files", ())]
    try:
        tables = [arrow.ipc.open_stream(arrow.memory_map(str(file))).read_all() for file in files]
        if not tables:
            _refuse(path / _STATE, "no files")
        return arrow.concat_tables(tables)
    except (OSError, arrow.ArrowException) as error:
        _refuse(path, str(error).splitlines()[0], error)


def _json(path: Path) -> Mapping[str, Any]:
    """An object in JSON.

    Raises:
        SampleError: it is none.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        _refuse(path, str(error), error)
    if not isinstance(content, Mapping):
        _refuse(path, "no object")
    return content


def _type(kind: Any) -> str:
    return str(kind.get("_type", "")) if isinstance(kind, Mapping) else ""


def _refuse(path: Path, why: str, cause: Exception | None = None) -> NoReturn:
    """Refuse what is damaged.

    Raises:
        SampleError: always.
    """
    raise SampleError(
        f"{path}: not a Hugging Face dataset that was saved whole ({why}).",
        "Save it again with Dataset.save_to_disk.",
        code="QD-SAMPLES-DAMAGED",
    ) from cause
