"""Detection sets in YOLO's format: pictures in `images`, and in `labels` a text file for each, in
lines of class, centre x, centre y, width and height in shares of the picture, or of class and
polygon; and a data.yaml."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from qdebug.errors import SampleError
from qdebug.inputfiles import read_text
from qdebug.network.samples.damage import reading
from qdebug.network.samples.file_set import files_of
from qdebug.network.samples.picture_set import Boxes, Outline, PictureSet
from qdebug.network.samples.pictures import is_picture
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted

_IMAGES, _LABELS = "images", "labels"
_DATA = "data.yaml"
_SPLITS = "val", "test", "train"
"""Of a data.yaml: the first that it has is taken."""
_BOX = 4
_LINE = (
    "A line holds a class from 0, then centre x, centre y, width and height in shares of the "
    "picture, or the corners of a polygon."
)


def recognizes(path: Path) -> bool:
    """Whether a YAML file is one of YOLO's."""
    try:
        data = yaml.safe_load(read_text(path))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(data, dict) and "names" in data and any(split in data for split in _SPLITS)


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The pictures of the validation split of a data.yaml, else of another.

    Raises:
        SampleError: it is damaged, or names a folder that is not there.
    """
    with reading(path, "A data.yaml of YOLO's format is expected."):
        data = yaml.safe_load(read_text(path))
    data = data if isinstance(data, dict) else {}
    split = next((name for name in _SPLITS if data.get(name)), None)
    if split is None or not isinstance(data.get("names"), list | dict):
        raise SampleError(
            f"{path}: not a data.yaml of YOLO's format: it has 'names', and 'val' or 'train'.",
            "Give the folder of the pictures, where 'labels' lies beside 'images'.",
            code="QD-SAMPLES-FORMAT",
        )
    root = path.parent / str(data.get("path") or "")
    folders = [root / str(data[split]), path.parent / str(data[split])]
    # Roboflow writes ../valid/images for a folder beside the file.
    folders.append(path.parent / str(data[split]).removeprefix("../"))
    folder = next((f for f in folders if f.is_dir()), None)
    if folder is None:
        raise SampleError(
            f"{path}: '{split}' names {folders[0]}, which is not there.",
            "Correct 'path', or give the folder of the pictures.",
            code="QD-SAMPLES-ANNOTATIONS",
        )
    names = data["names"]
    names = list(names.values()) if isinstance(names, dict) else names
    return _picture_set(folder, _labels_of(folder), tuple(map(str, names)))


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source | None:
    """The set of a data.yaml in a folder, or of its `images` and `labels`."""
    if (path / _DATA).is_file() and recognizes(path / _DATA):
        return read_file(path / _DATA, inputs)
    if (path / _IMAGES).is_dir() and (path / _LABELS).is_dir():
        return _picture_set(path / _IMAGES, path / _LABELS, ())
    if path.name == _IMAGES and (path.parent / _LABELS).is_dir():
        return _picture_set(path, path.parent / _LABELS, ())
    return None


def _labels_of(images: Path) -> Path:
    """The folder of the labels: the last `images` of the path becomes `labels`, as Ultralytics has
    it."""
    parts = list(images.parts)
    places = [k for k, part in enumerate(parts) if part == _IMAGES]
    if places:
        parts[places[-1]] = _LABELS
    return Path(*parts)


def _picture_set(images: Path, labels: Path, names: tuple[str, ...]) -> PictureSet:
    files = files_of(images, is_picture, deep=True)
    boxes = tuple(
        _boxes((labels / f.relative_to(images)).with_suffix(".txt"), len(names)) for f in files
    )
    count = sum(len(each.classes) for each in boxes)
    return PictureSet(
        files,
        f"{counted(len(files), 'picture')} with {count} boxes (YOLO)",
        boxes=boxes,
        classes=names,
    )


def _boxes(path: Path, known: int) -> Boxes:
    """The boxes of a picture; none where it has no file.

    Raises:
        SampleError: a line that is no box, or of a class that has no name.
    """
    corners, classes = [], []
    outlines: list[Outline | None] = []
    lines = read_text(path).splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        with reading(f"{path}:{number}", _LINE, "QD-SAMPLES-ANNOTATIONS"):
            own, *values = map(float, line.split())
            if not own.is_integer() or not 0 <= own < (known or math.inf):
                raise ValueError(f"{own:g} is not one of {known or 'the'} classes")
            if len(values) < _BOX or len(values) % 2 or not all(map(math.isfinite, values)):
                raise ValueError(f"{line[:80]!r} is not a box")
        polygon = np.array(values, np.float64).reshape(-1, 2)
        if len(values) == _BOX:
            middle, half = polygon[0], polygon[1] / 2
            corners.append((*(middle - half), *(middle + half)))
            outlines.append(None)
        else:
            corners.append((*polygon.min(axis=0), *polygon.max(axis=0)))
            outlines.append((polygon,))
        classes.append(int(own))
    table = np.array(corners, np.float64).reshape(-1, 4)
    return Boxes(table, np.array(classes, np.int64), relative=True, outlines=tuple(outlines))
