"""A set of pictures with what belongs to each, as a reader finds them, and what becomes of it for a
network: arrays that are decoded when they are read, ahead of time, in threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import compress, starmap
from pathlib import Path
from typing import Any, Self

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.preprocessing import Preprocessing, size_input
from qdebug.network.samples.arrays import ArrayInMemory, ComputedRows
from qdebug.network.samples.file_set import (
    FileSet,
    UnreadableError,
    bad_files,
    refuse_bad,
    shown_files,
    threads,
)
from qdebug.network.samples.found_preprocessing import fitted_preprocessing, input_for_pictures
from qdebug.network.samples.pictures import (
    boxes_as_input,
    decoded,
    mask_as_input,
    picture_as_input,
    placed,
    plane_as_input,
    points_as_input,
    size_of,
)
from qdebug.network.samples.samples import Origin, PreparedSamples, SampleArray
from qdebug.network.samplespec import SampleSpec
from qdebug.types import Array, TensorSpec
from qdebug.wording import counted, option

_BEYOND = 1.0
"""Pixels by which a box may reach outside of its picture unsaid: annotations are rounded."""
_AHEAD = 64
"""Pictures that are decoded before they are asked for, at most."""
Outline = tuple[Array, ...] | Mapping[str, Any]
"""Of an object on a picture, as COCO has it: polygons, float64 [points, 2] each, of x and y in the
units of Boxes; or the run lengths of its mask, `size` (height and width) and `counts`."""


@dataclass(frozen=True)
class Boxes:
    """What is to be seen on a picture.

    Attributes:
        corners: float64 [n, 4]: x1, y1, x2, y2 in the picture's pixels; with `relative` in shares
            of its width and height.
        classes: int64 [n].
        outlines: [n], None of an object without one; () where there are none.
    """

    corners: Array
    classes: Array
    relative: bool = False
    outlines: tuple[Outline | None, ...] = ()


@dataclass(frozen=True)
class PictureSet(FileSet):
    """Pictures in a stable order, and what is known of each.

    Attributes:
        boxes: of each picture, for detection; None where there are none.
        masks: of each picture, for segmentation; None where there are none.
    """

    boxes: tuple[Boxes, ...] | None = None
    masks: tuple[Path, ...] | None = None

    @property
    def objects_without_outline(self) -> int | None:
        """How many of all, where some have one; else None. Masks are made where all have one."""
        boxes = self.boxes or ()
        outlines = sum(outline is not None for one in boxes for outline in one.outlines)
        return sum(len(one.classes) for one in boxes) - outlines if outlines else None

    def renumbered(self, number_of: Mapping[int, int]) -> Self:
        """See FileSet."""
        boxes = self.boxes and tuple(
            replace(one, classes=np.array([number_of[n] for n in one.classes.tolist()], np.int64))
            for one in self.boxes
        )
        return replace(super().renumbered(number_of), boxes=boxes)

    def kept(self, numbers: Sequence[int]) -> Self:
        """See FileSet."""
        return replace(
            super().kept(numbers),
            boxes=self.boxes and tuple(self.boxes[k] for k in numbers),
            masks=self.masks and tuple(self.masks[k] for k in numbers),
        )

    def prepared(self, spec: SampleSpec, inputs: Sequence[TensorSpec]) -> PreparedSamples:
        """The arrays for a network of these inputs.

        Raises:
            SampleError: it takes no pictures, one cannot be read, or nothing says how to resize
                them.
        """
        taken = input_for_pictures(inputs, spec.data)
        if not self.files:
            raise SampleError(
                f"{spec.data}: holds no pictures.", "Add some.", code="QD-SAMPLES-EMPTY"
            )
        used, left_out = self, ""
        if spec.skip_bad:
            used, left_out = _without_bad(self, spec.data)
        if spec.limit is not None:
            used = used.kept(range(min(spec.limit, len(used.files))))
        sizes = _sizes(used.files, spec.data)
        how = fitted_preprocessing(spec, taken, sizes)
        _check_sizes(how, used.files, sizes, spec.data)
        used, others = used.grouped(spec).numbered_as(spec.model)
        arrays: dict[str, SampleArray] = {
            taken.name: DecodedPictures(used.files, how, taken.dtype, spec.data),
            **{name: ArrayInMemory(array) for name, array in used.labels.items()},
        }
        sizes_given, filled_in = _filled_in(inputs, how, len(used.files))
        arrays |= sizes_given
        others += filled_in
        if used.boxes is not None:
            used, cut = _within_pictures(used, sizes, spec.data)
            others += cut
            arrays |= _box_arrays(used, how, sizes, spec.data)
            if used.objects_without_outline:
                without = counted(used.objects_without_outline, "object")
                others += f"; {without} without an outline: there are no masks to judge by"
        if used.masks is not None:
            arrays["masks"] = _decoded_masks(used.masks, how, spec.data)
        source = (
            f"a guess {how.source}: `qdebug check` tests it" if how.guess else f"from {how.source}"
        )
        told = f"{used.holds}{left_out}; {how.told()} ({source}){others}"
        files = _files(used.files, spec.data)
        origin = Origin(told, files=files, numbered_folders=len(used.folders))
        return PreparedSamples(arrays, replace(spec, preprocessing=how), origin)


def _files(pictures: Sequence[Path], data: str) -> tuple[str, ...]:
    """Their paths, below the folder `data` where they are in it."""
    return tuple(
        str(path.relative_to(data))
        if path != Path(data) and path.is_relative_to(data)
        else str(path)
        for path in pictures
    )


def _filled_in(
    inputs: Sequence[TensorSpec], how: Preprocessing, pictures: int
) -> tuple[dict[str, SampleArray], str]:
    """The size for each picture where an input takes it, and what to say of it: that of the
    network's input, so that boxes come out where the labels are."""
    sized = size_input(inputs)
    if sized is None:
        return {}, ""
    height, width = how.size or (0, 0)
    rows = np.tile(np.array([width, height], sized.dtype), (pictures, 1))
    told = f"; {sized.name} is that size, width before height"
    return {sized.name: ArrayInMemory(rows)}, told


def _check_sizes(
    how: Preprocessing,
    pictures: Sequence[Path],
    sizes: Sequence[tuple[int, int]],
    where: str,
) -> None:
    """Refuse pictures that are taken as they are and do not have the size that is needed.

    Raises:
        SampleError: there is one.
    """
    if how.resize != "none":
        return
    other = next((k for k, size in enumerate(sizes) if size != how.size), None)
    if other is None or how.size is None:
        return
    shown, needed = ("x".join(map(str, size)) for size in (sizes[other], how.size))
    raise SampleError(
        f"{where}: {pictures[other]} has {shown} pixels (height x width), where {needed} are "
        "needed, and nothing says how to resize them.",
        f"Say it with {option('preprocess')}: a preset, or a YAML file with a line such as "
        "'resize: letterbox'.",
        code="QD-SAMPLES-PICTURE-SIZE",
    )


def _without_bad(whole: PictureSet, where: str) -> tuple[PictureSet, str]:
    """The pictures that can be decoded, with their masks, and what to say of the others.

    Raises:
        SampleError: none can be.
    """
    bad = bad_files(whole.files, partial(decoded, colour="rgb"))
    if whole.masks is not None:
        bad = bad_files(whole.masks, partial(mask_as_input, how=Preprocessing("none"))) | bad
    if len(bad) == len(whole.files):
        refuse_bad(whole.files, bad, where)
    if not bad:
        return whole, ""
    kept = whole.kept([k for k in range(len(whole.files)) if k not in bad])
    named = shown_files([whole.files[k] for k in sorted(bad)])
    return kept, f" ({counted(len(bad), 'unreadable one')} left out: {named})"


def _sizes(pictures: Sequence[Path], where: str) -> list[tuple[int, int]]:
    """Height and width of each.

    Raises:
        SampleError: one is no picture.
    """
    try:
        with ThreadPoolExecutor(threads()) as pool:
            return list(pool.map(size_of, pictures))
    except UnreadableError:
        refuse_bad(pictures, bad_files(pictures, size_of), where)


class DecodedPictures:
    """Pictures as a stacked array [pictures, …] of a network's input.

    They are decoded in threads when they are read; where they are read one after the other, those
    that follow ahead of time. Memory holds what was asked for and no more than `_AHEAD` others.
    """

    def __init__(
        self,
        pictures: Sequence[Path],
        how: Preprocessing,
        dtype: np.dtype[np.generic],
        where: str,
    ) -> None:
        self.shape: tuple[int, ...] = (len(pictures), *how.input_shape)
        self.dtype = dtype
        self._pictures, self._how, self._where = pictures, how, where
        self._pool = ThreadPoolExecutor(threads(), thread_name_prefix="qdebug-pictures")
        self._begun: dict[int, Future[Array]] = {}
        self._next = 0
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> Array:
        """Pictures start to stop.

        Raises:
            SampleError: one cannot be decoded; names how many cannot.
        """
        stop = min(stop, len(self._pictures))
        numbers = range(start, stop)
        with self._lock:
            # Threads that share the pictures may ask for the next but one first.
            in_turn = self._next <= start <= self._next + len(numbers)
            self._next = stop
            ahead = min(stop + max(threads(), len(numbers)), start + _AHEAD, len(self._pictures))
            wanted = range(start, max(stop, ahead) if in_turn else stop)
            before, submit = self._begun, self._pool.submit
            self._begun = {
                n: before.get(n) or submit(self._decoded, self._pictures[n]) for n in wanted
            }
            begun = [self._begun.pop(number) for number in numbers]
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        try:
            for row, future in enumerate(begun):
                found[row] = future.result()
        except UnreadableError:
            bad = bad_files(self._pictures, self._decoded)
            refuse_bad(self._pictures, bad, self._where)
        return found

    def _decoded(self, picture: Path) -> Array:
        return picture_as_input(picture, self._how, self.dtype)


def _decoded_masks(masks: Sequence[Path], how: Preprocessing, where: str) -> ComputedRows:
    """Masks as an array int64 [pictures, height, width], where their pictures are in the input;
    MASK_PADDING outside of these."""
    look = partial(mask_as_input, how=how)

    def row(number: int) -> Array:
        try:
            return look(masks[number])
        except UnreadableError:
            refuse_bad(masks, bad_files(masks, look), where)

    return ComputedRows((len(masks), *(how.size or (0, 0))), np.dtype(np.int64), row)


def _within_pictures(
    whole: PictureSet, sizes: Sequence[tuple[int, int]], where: str
) -> tuple[PictureSet, str]:
    """The pictures with their boxes cut where the picture ends, and what to say of those that
    reached outside by more than `_BEYOND`; those that lie wholly outside are left out.

    Raises:
        SampleError: all that there are lie wholly outside.
    """
    assert whole.boxes is not None
    boxes, cut, outside = [], [], []
    for picture, own, (height, width) in zip(whole.files, whole.boxes, sizes, strict=True):
        corners = own.corners.reshape(-1, 4)
        ends = np.tile((1.0, 1.0) if own.relative else (width, height), 2)
        inside = np.clip(corners, 0, ends)
        beyond = np.abs(corners - inside) * (np.tile((width, height), 2) / ends) > _BEYOND
        there = ((inside[:, 2:] > inside[:, :2]) | ~beyond.any(axis=1)[:, np.newaxis]).all(axis=1)
        cut += [str(picture)] * int((beyond.any(axis=1) & there).sum())
        outside += [str(picture)] * int((~there).sum())
        kept = tuple(compress(own.outlines, there))
        boxes.append(replace(own, corners=inside[there], classes=own.classes[there], outlines=kept))
    if outside and not any(len(own.classes) for own in boxes):
        raise SampleError(
            f"{where}: all {_box_count(outside)} lie outside of their pictures: "
            f"{shown_files(outside)}.",
            "See that they are those of these pictures, and in the units of their format.",
            code="QD-SAMPLES-ANNOTATIONS",
        )
    told = ""
    if cut:
        told += f"; {_box_count(cut)} cut where the picture ends: {shown_files(cut)}"
    if outside:
        told += f"; {_box_count(outside)} outside of the picture left out: "
        told += shown_files(outside)
    return replace(whole, boxes=tuple(boxes)), told


def _box_count(names: Sequence[str]) -> str:
    return f"{len(names)} box{'es' if len(names) != 1 else ''}"


def _box_arrays(
    pictures: PictureSet, how: Preprocessing, sizes: Sequence[tuple[int, int]], where: str
) -> dict[str, SampleArray]:
    """`boxes` float32 [pictures, most, 4], x1, y1, x2, y2 in pixels of the network's input, and
    `classes` int64 [pictures, most], -1 where there are fewer; where there are outlines,
    `instance_masks` [pictures, most], see _mask_in_input. Boxes that a crop removed are none.

    Raises:
        SampleError: an outline is damaged.
    """
    assert pictures.boxes is not None
    moved = list(starmap(partial(_moved, how), zip(pictures.boxes, sizes, strict=True)))
    most = max(1, max(len(one.classes) for one in moved))
    corners = np.zeros((len(moved), most, 4), np.float32)
    classes = np.full((len(moved), most), -1, np.int64)
    for row, one in enumerate(moved):
        corners[row, : len(one.classes)] = one.corners
        classes[row, : len(one.classes)] = one.classes
    arrays: dict[str, Array] = {"boxes": corners, "classes": classes}
    if pictures.objects_without_outline == 0 and find_spec("faster_coco_eval"):
        masks = np.full((len(moved), most), b"", object)
        for row, (one, size) in enumerate(zip(moved, sizes, strict=True)):
            try:
                counts = [_mask_in_input(outline, how, size) for outline in one.outlines if outline]
            except ValueError as error:
                raise SampleError(
                    f"{where}: an outline on {pictures.files[row]}: {error}.",
                    "Export the annotations again.",
                    code="QD-SAMPLES-ANNOTATIONS",
                ) from error
            masks[row, : len(counts)] = counts
        arrays["instance_masks"] = masks.astype(np.bytes_)
    return {name: ArrayInMemory(array) for name, array in arrays.items()}


def _moved(how: Preprocessing, boxes: Boxes, size: tuple[int, int]) -> Boxes:
    """In pixels of the network's input; outlines in pixels of the picture."""
    height, width = size if boxes.relative else (1, 1)
    corners = boxes_as_input(boxes.corners.reshape(-1, 4) * ((width, height) * 2), how, size)
    seen = (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])
    outlines = tuple(
        tuple(polygon * (width, height) for polygon in one) if isinstance(one, tuple) else one
        for one in compress(boxes.outlines, seen)
    )
    return Boxes(corners[seen], boxes.classes[seen], outlines=outlines)


def _mask_in_input(outline: Outline, how: Preprocessing, size: tuple[int, int]) -> bytes:
    """The mask of an object on a picture of `size`, in the input of a network: COCO's compressed
    run lengths after its height and width, as b"640x640:…". Polygons are filled as COCO's tools do
    it; what run lengths encode is resized by nearest pixel.

    Raises:
        ValueError: the run lengths are damaged, or those of a picture of another size.
    """
    library = import_module("faster_coco_eval.core.mask")
    height, width = how.size or placed(how, *size).size
    if isinstance(outline, tuple):
        corners = [points_as_input(one, how, size).ravel().tolist() for one in outline]
        mask = library.merge(library.frPyObjects(corners, height, width))
    else:
        if outline["size"] != [*size]:
            raise ValueError(f"run lengths of {outline['size']} for a picture of {[*size]}")
        is_compressed = isinstance(outline["counts"], bytes)
        runs = outline if is_compressed else library.frPyObjects(outline, *size)
        plane = plane_as_input(library.decode(runs), how, 0)
        mask = library.encode(np.asfortranarray(plane, np.uint8))
    return b"%dx%d:%s" % (height, width, mask["counts"])
