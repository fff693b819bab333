"""Outlines of objects, as annotations give them, as masks in the input of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from qdebug.network.preprocessing import Preprocessing
from qdebug.network.samples.pictures import placed, plane_as_input, points_as_input
from qdebug.types import Array


@dataclass(frozen=True)
class Outline:
    """The outline of an object on a picture.

    Attributes:
        polygons: float64 [points, 2] each: x, y in the units of Boxes; what lies in any of them is
            the object.
        runs: in place of polygons, COCO's run-length encoding of the picture: `size` (height and
            width) and `counts`, whole numbers or compressed text.
    """

    polygons: tuple[Array, ...] = ()
    runs: Mapping[str, Any] | None = None


def outline_of(segmentation: Any) -> Outline | None:
    """What COCO's `segmentation` holds; None where it is empty.

    Raises:
        ValueError: it is neither polygons nor run lengths; so say TypeError and KeyError.
    """
    if isinstance(segmentation, Mapping):
        height, width = map(int, segmentation["size"])
        counts = segmentation["counts"]
        if isinstance(counts, str):
            counts = counts.encode("ascii")
        return Outline(runs={"size": [height, width], "counts": counts})
    polygons = tuple(np.array(one, np.float64).reshape(-1, 2) for one in segmentation or ())
    if any(len(one) < 3 or not np.isfinite(one).all() for one in polygons):
        raise ValueError(f"'segmentation' is {str(segmentation)[:80]}")
    return Outline(polygons) if polygons else None


def counts_in_input(outline: Outline, how: Preprocessing, size: tuple[int, int]) -> bytes:
    """The mask of an object in the input of a network, in COCO's compressed run lengths, after its
    height and width: b"640x640:…".

    Polygons are filled as COCO's tools do it; what run lengths encode is resized by nearest pixel.

    Args:
        size: height and width of the picture.

    Raises:
        ValueError: the run lengths are damaged, or those of a picture of another size.
        ImportError: faster-coco-eval is not installed.
    """
    library = import_module("faster_coco_eval.core.mask")
    height, width = how.size or placed(how, *size).size
    if outline.runs is None:
        corners = [points_as_input(one, how, size).ravel().tolist() for one in outline.polygons]
        mask = library.merge(library.frPyObjects(corners, height, width))
    else:
        runs = outline.runs
        if runs["size"] != [*size]:
            raise ValueError(f"run lengths of {runs['size']} for a picture of {[*size]}")
        if not isinstance(runs["counts"], bytes):
            runs = library.frPyObjects(runs, *size)
        plane = plane_as_input(library.decode(runs), how, 0)
        mask = library.encode(np.asfortranarray(plane, np.uint8))
    return b"%dx%d:%s" % (height, width, mask["counts"])
