"""Detection sets in COCO's format: a JSON file that names pictures, and the boxes and the outlines
of the objects on them.

Pictures are looked for beside the file, in `images` beside it or beside its folder, and in a
folder called as it is. Classes are numbered from 0 in the order of their ids, as detectors do.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import read_bytes
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feed_files import files_in
from qdebug.network.samples.picture_set import Boxes, Outline, PictureSet
from qdebug.network.samples.samples import Source
from qdebug.types import TensorSpec
from qdebug.wording import counted

_KEYS = b'"images"', b'"annotations"'
_BLOCK_BYTES = 1 << 20
_NAMED = 3


def recognizes(path: Path) -> bool:
    """Whether a JSON file is one of COCO's. It may be large, and another one: it is not parsed."""
    lacking, tail = set(_KEYS), b""
    with path.open("rb") as file:
        while lacking and (block := file.read(_BLOCK_BYTES)):
            lacking = {key for key in lacking if key not in tail + block}
            tail = block[-len(max(_KEYS, key=len)) :]
    return not lacking


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The pictures that the file names, in its order, with their boxes; crowds are left out.

    Raises:
        SampleError: it is damaged, or names pictures or categories that are not there.
    """
    with reading(path, "COCO's format has 'images', 'annotations' and 'categories'."):
        return _picture_set(path, json.loads(read_bytes(path)))


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source | None:
    """The pictures of the only file of COCO's format in a folder, or in its `annotations`.

    Raises:
        SampleError: as of `read_file`; or there are several.
    """
    files = [f for f in files_in(path, ".json") if recognizes(f)]
    inner = path / "annotations"
    if not files and inner.is_dir():
        files = [f for f in files_in(inner, ".json") if recognizes(f)]
    if not files:
        return None
    if len(files) > 1:
        names = ", ".join(f.name for f in files)
        raise SampleError(
            f"{path}: holds several files of annotations: {names}.",
            f"Give one of them, such as {files[0]}.",
            code="QD-SAMPLES-FORMAT",
        )
    return read_file(files[0], inputs)


def _picture_set(path: Path, data: Any) -> PictureSet:
    categories = sorted(data["categories"], key=lambda c: c["id"])
    number = {category["id"]: k for k, category in enumerate(categories)}
    on_picture: dict[Any, list[Any]] = defaultdict(list)
    for annotation in data["annotations"]:
        if not annotation.get("iscrowd"):
            on_picture[annotation["image_id"]].append(annotation)
    known = {image["id"] for image in data["images"]}
    _refuse_unknown(path, "pictures", set(on_picture) - known, "image_id")
    used = {a["category_id"] for each in on_picture.values() for a in each}
    _refuse_unknown(path, "categories", used - set(number), "category_id")
    files = find_files(path, [image["file_name"] for image in data["images"]])
    boxes = tuple(_boxes(on_picture[image["id"]], number) for image in data["images"])
    count = sum(len(each.classes) for each in boxes)
    return PictureSet(
        tuple(files),
        f"{counted(len(files), 'picture')} with {count} boxes of {len(number)} classes (COCO)",
        boxes=boxes,
        classes=tuple(str(category.get("name", "")) for category in categories),
    )


def _boxes(annotations: Iterable[Any], number: dict[Any, int]) -> Boxes:
    """x, y, width and height as corners, and outlines where there are any.

    Raises:
        ValueError: they are not four finite numbers, or an outline is none.
    """
    corners, classes, outlines = [], [], []
    for annotation in annotations:
        x, y, width, height = map(float, annotation["bbox"])
        if not all(map(math.isfinite, (x, y, width, height))):
            raise ValueError(f"'bbox' is {annotation['bbox']}")
        corners.append((x, y, x + width, y + height))
        classes.append(number[annotation["category_id"]])
        outlines.append(_outline(annotation.get("segmentation")))
    table = np.array(corners, np.float64).reshape(-1, 4)
    return Boxes(table, np.array(classes, np.int64), outlines=tuple(outlines))


def _outline(segmentation: Any) -> Outline | None:
    """What COCO's `segmentation` holds; None where it is empty.

    Raises:
        ValueError: it is neither polygons nor run lengths; so say TypeError and KeyError.
    """
    if isinstance(segmentation, Mapping):
        counts = segmentation["counts"]
        counts = counts.encode("ascii") if isinstance(counts, str) else counts
        return {"size": [*map(int, segmentation["size"])], "counts": counts}
    polygons = tuple(np.array(one, np.float64).reshape(-1, 2) for one in segmentation or ())
    if any(len(one) < 3 or not np.isfinite(one).all() for one in polygons):
        raise ValueError(f"'segmentation' is {str(segmentation)[:80]}")
    return polygons or None


def _refuse_unknown(path: Path, what: str, unknown: set[Any], key: str) -> None:
    if unknown:
        raise SampleError(
            f"{path}: annotations name {what} that the file does not hold: {key} "
            f"{', '.join(map(str, sorted(unknown, key=str)[:_NAMED]))}"
            f"{', …' if len(unknown) > _NAMED else ''}.",
            "Export the annotations again, with all their pictures and categories.",
            code="QD-SAMPLES-ANNOTATIONS",
        )


def find_files(path: Path, names: Sequence[str]) -> list[Path]:
    """The files that a list or annotations name, from the first folder that has the first.

    Raises:
        SampleError: some are not there.
    """
    parent = path.parent
    folders = (
        *(parent, parent / "images", parent.parent / "images"),
        *(parent / path.stem, parent.parent / path.stem, parent.parent),
    )
    first = names[0] if names else ""
    folder = next((f for f in folders if (f / first).is_file()), parent)
    files = [folder / name for name in names]
    missing = [file for file in files if not file.is_file()]
    if missing:
        shown = ", ".join(str(file) for file in missing[:_NAMED])
        raise SampleError(
            f"{path}: {len(missing)} of {counted(len(files), 'file')} that it names are not "
            f"there: {shown}{', …' if len(missing) > _NAMED else ''}.",
            f"Put them beside {path.name}, or in a folder 'images' there.",
            code="QD-SAMPLES-ANNOTATIONS",
        )
    return files
