"""What the outputs of detectors mean. Adding a decoder takes a function and an entry here, and one
in the registry of tasks.

A decoder gets the outputs, arrays [samples, …] by name, and what is known of the model; it gives
boxes and scores of every place, or raises MetricError where the outputs are not what it reads.
Which one fits is told by the shapes of the outputs, the size of the input, and the metadata that
exporters write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Floats, Outputs
from qdebug.metrics.tasks.boxes.detections import Candidates
from qdebug.metrics.tasks.boxes.instance_masks import InstanceMasks
from qdebug.metrics.tasks.facts import ModelFacts, Shape
from qdebug.metrics.tasks.registry import DECODERS, WITH_MASKS, decoder_list
from qdebug.network.samples.matching import shape_text
from qdebug.types import Array
from qdebug.wording import option

_STRIDES = (8, 16, 32)
"""Of the levels of YOLO's pyramids."""
_PROTOTYPE = 4
"""Pixels of the input for one of a prototype: the stride of YOLO-seg's Proto."""
_RF_DETR = {"dets", "labels"}
"""What RF-DETR's exporter calls boxes and logits. Of logits beside `pred_boxes`, as Transformers
exports them, nothing tells DETR's softmax from RT-DETR's sigmoid."""
_BOXES = ("box", "dets")
"""In the names of outputs that are boxes."""
_MOST_CHOSEN = 1000
"""Boxes after suppression: exporters write 100 to 300."""


Decode = Callable[[Outputs, ModelFacts], Candidates]


def yolov8(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """Ultralytics' raw heads since YOLOv8: cx, cy, w, h and a score for each class."""
    rows = np.moveaxis(_rows("yolov8", outputs, 5, axis=1), 1, 2)
    classes = facts.classes or rows.shape[2] - 4 - _coefficients(outputs)
    return Candidates(_corners(rows[..., :4]), rows[..., 4 : 4 + classes])


def yolov5(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """YOLOv5 and v7, and YOLOX exported with its decoding: cx, cy, w, h, objectness, classes."""
    rows = _rows("yolov5", outputs, 6)
    classes = facts.classes or rows.shape[2] - 5 - _coefficients(outputs)
    return Candidates(_corners(rows[..., :4]), rows[..., 4:5] * rows[..., 5 : 5 + classes])


def yolox(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """YOLOX as its exporter writes it: offsets in cells of a grid and logarithms of sizes."""
    rows = _rows("yolox", outputs, 6)
    grid, strides = _grid(rows.shape[1], facts)
    centres = (rows[..., :2] + grid) * strides
    with np.errstate(over="ignore"):  # an infinite box overlaps none
        sizes = np.exp(rows[..., 2:4]) * strides
    boxes = _corners(np.concatenate([centres, sizes], axis=2))
    return Candidates(boxes, rows[..., 4:5] * rows[..., 5:])


def end_to_end(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """Boxes after suppression, or of a network that needs none (YOLOv10, YOLO26): x1, y1, x2, y2,
    score, class."""
    rows = _rows("end-to-end", outputs, 6)
    return _chosen(rows[..., :4], rows[..., 4], rows[..., 5], facts.classes)


def detections(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """Boxes, scores and classes in outputs of their own, as torchvision and TensorFlow's object
    detection write them."""
    boxes = next((a for a in outputs.values() if a.ndim == 3 and a.shape[2] == 4), np.zeros(0))
    flat = {name: array for name, array in outputs.items() if array.shape == boxes.shape[:2]}
    if len(flat) < 2:
        _refuse("detections", outputs)
    named = [n for n in flat if any(word in n.lower() for word in ("class", "label"))]
    classes = named[0] if named else list(flat)[-1]
    scores = next(name for name in flat if name != classes)
    return _chosen(_floats(boxes), _floats(flat[scores]), flat[classes], facts.classes)


def ssd(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """x1, y1, x2, y2 and scores of which the first is the background's, in two outputs."""
    boxes, scores = _boxes_and_scores("ssd", outputs)
    return Candidates(_in_pixels(boxes, facts), scores[..., 1:])


def detr(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """DETR: cx, cy, w, h of the unit square and logits of which the last is "no object"."""
    boxes, logits = _boxes_and_scores("detr", outputs)
    shifted = np.exp(logits - logits.max(axis=2, keepdims=True))
    scores = shifted / shifted.sum(axis=2, keepdims=True)
    return Candidates(_in_pixels(_corners(boxes), facts), scores[..., :-1], distinct=True)


def rt_detr(outputs: Outputs, facts: ModelFacts) -> Candidates:
    """RT-DETR and RF-DETR: cx, cy, w, h of the unit square and a logit for each class, in two
    outputs; or, as Ultralytics writes it, boxes and scores in one."""
    if len(outputs) == 1:
        rows = _rows("rt-detr", outputs, 5)
        boxes, scores = rows[..., :4], rows[..., 4:]
    else:
        boxes, logits = _boxes_and_scores("rt-detr", outputs)
        from scipy.special import expit

        scores = expit(logits)
    return Candidates(_in_pixels(_corners(boxes), facts), scores, distinct=True)


def _with_masks(of: str, decode: Decode, axis: int) -> Decode:
    """The decoder called `of`: one of boxes whose columns, which are on `axis`, end with the
    coefficients of masks; the prototypes are an output [N, coefficients, height, width], as in
    YOLACT (Bolya et al. 2019)."""

    def masked(outputs: Outputs, facts: ModelFacts) -> Candidates:
        name = next((n for n, array in outputs.items() if array.ndim == 3), None)
        planes = next((_floats(a) for a in outputs.values() if a.ndim == 4), None)
        if name is None or planes is None or outputs[name].shape[axis] <= planes.shape[1]:
            _refuse(of, outputs)
        columns = np.moveaxis(outputs[name], axis, -1)
        boxes, coefficients = np.split(columns, [columns.shape[2] - planes.shape[1]], axis=2)
        found = decode({name: np.moveaxis(boxes, -1, axis)}, facts)
        height, width = planes.shape[2:]
        size = facts.size or (height * _PROTOTYPE, width * _PROTOTYPE)
        return replace(
            found, masks=InstanceMasks(planes, _floats(coefficients), size, in_boxes=True)
        )

    return masked


DECODE: Mapping[str, Decode] = {
    "yolov8": yolov8,
    "yolov5": yolov5,
    "yolox": yolox,
    "end-to-end": end_to_end,
    "yolov8-seg": _with_masks("yolov8-seg", yolov8, axis=1),
    "yolov5-seg": _with_masks("yolov5-seg", yolov5, axis=2),
    "end-to-end-seg": _with_masks("end-to-end-seg", end_to_end, axis=2),
    "detections": detections,
    "ssd": ssd,
    "detr": detr,
    "rt-detr": rt_detr,
}
"""What each of the registry's DECODERS of boxes does."""


def fitting_decoder(facts: ModelFacts) -> str | None:
    """The name of the decoder that the model's outputs are for; None where none fits, or several
    do."""
    shapes = list(facts.outputs.values())
    if len(shapes) == 1 and len(shapes[0]) == 3:
        return _of_one_output(shapes[0], facts)
    if sorted(map(len, shapes)) == [3, 4]:
        rows, planes = sorted(shapes, key=len)
        name = _of_one_output(rows, facts, planes[1] or 0)
        masked = f"{name}{WITH_MASKS}"
        return masked if masked in DECODE and facts.segments else name
    if facts.outputs.keys() >= _RF_DETR and list(map(len, shapes)) == [3, 3]:
        return "rt-detr"
    if any(len(s) == 3 and s[2] == 4 for s in shapes):
        flat = [s for s in shapes if len(s) == 2]
        return "detections" if len(flat) == 2 else None
    return None


def _of_one_output(shape: Shape, facts: ModelFacts, coefficients: int = 0) -> str | None:
    """Of [N, rows, columns]: which of the two are places is told by the input's size, or by how
    many names of classes the file has; of masks there are so many `coefficients`."""
    rows, columns = shape[1:]
    classes, places = facts.classes, _places(facts)
    if rows is not None and places and rows in (places, 3 * places):
        return "yolox" if rows == places else "yolov5"
    if columns is not None and columns == places:
        return "yolov8"
    if columns == 6 + coefficients and (
        (rows or 0) in range(1, _MOST_CHOSEN + 1) or facts.is_end_to_end
    ):
        return "end-to-end"
    if classes and rows is not None and rows >= 4 + classes and (columns is None or columns > rows):
        return "yolov8"
    if classes and columns == 4 + classes and rows != columns and not coefficients:
        return "rt-detr"  # as Ultralytics exports it
    return "yolov5" if classes and columns == 5 + classes + coefficients else None


def undecided(facts: ModelFacts, metric: str) -> MetricError:
    """The error where no decoder fits by itself."""
    shapes = ", ".join(f"{name} {shape_text(shape)}" for name, shape in facts.outputs.items())
    return MetricError(
        f"{option('metric', metric)}: it is not clear how the outputs are to be read as boxes: "
        f"{shapes}",
        f"Say it with {option('decode', 'NAME')}:\n{decoder_list('boxes')}\n"
        f"  or {option('decode', 'file.py:function')}, a function of the outputs that returns "
        "boxes [samples, places, 4], xyxy, scores [samples, places, classes] and, where there are "
        "any, masks [samples, places, height, width].",
        code="QD-METRIC-DECODE",
    )


def _refuse(decoder: str, outputs: Outputs) -> NoReturn:
    """Refuse outputs that a decoder does not read.

    Raises:
        MetricError: always.
    """
    reads = next(entry.reads for entry in DECODERS if entry.name == decoder)
    shapes = ", ".join(f"{name} {shape_text(array.shape)}" for name, array in outputs.items())
    raise MetricError(
        f"{option('decode', decoder)} reads {reads}; the outputs are {shapes}",
        "Name another decoder, or read the outputs with a function of yours, file.py:function.",
        code="QD-METRIC-DECODE",
    )


def _rows(decoder: str, outputs: Outputs, columns: int, axis: int = 2) -> Floats:
    """The first output of three axes, with at least so many columns, which are on `axis`.

    Raises:
        MetricError: there is none.
    """
    array = next((array for array in outputs.values() if array.ndim == 3), np.zeros(0))
    if array.ndim != 3 or array.shape[axis] < columns:
        _refuse(decoder, outputs)
    return _floats(array)


def _coefficients(outputs: Outputs) -> int:
    """How many columns of the boxes are coefficients of masks: the prototypes that there are."""
    return next((array.shape[1] for array in outputs.values() if array.ndim == 4), 0)


def _places(facts: ModelFacts) -> int | None:
    """The cells of all levels of the pyramid."""
    if facts.size is None:
        return None
    height, width = facts.size
    return sum((height // s) * (width // s) for s in _STRIDES)


def _grid(places: int, facts: ModelFacts) -> tuple[Floats, Floats]:
    """The cell [places, 2], x before y, and the stride [places, 1] of each place.

    Raises:
        MetricError: the size of the input is not known, or does not give so many.
    """
    if facts.size is None or _places(facts) != places:
        raise MetricError(
            f"{option('decode', 'yolox')}: the {places} places of the output are not those of the "
            f"input's size {facts.size or 'which is not fixed'} with strides 8, 16 and 32",
            "Fix the size of the input, or read the output with a function of yours.",
            code="QD-METRIC-DECODE",
        )
    height, width = facts.size
    cells, strides = [], []
    for stride in _STRIDES:
        y, x = np.mgrid[: height // stride, : width // stride]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        strides.append(np.full((x.size, 1), stride))
    return np.concatenate(cells).astype(np.float64), np.concatenate(strides).astype(np.float64)


def _boxes_and_scores(decoder: str, outputs: Outputs) -> tuple[Floats, Floats]:
    """The output [samples, places, 4] and the other one of three axes; where both have four columns
    the one that is named after boxes.

    Raises:
        MetricError: there are no two such outputs.
    """
    arrays = {name: array for name, array in outputs.items() if array.ndim == 3}
    fours = [name for name, array in arrays.items() if array.shape[2] == 4]
    named = [name for name in fours if any(word in name.lower() for word in _BOXES)] or fours
    others = [n for n in arrays if n != named[0]] if named else []
    if not named or not others:
        _refuse(decoder, outputs)
    return _floats(arrays[named[0]]), _floats(arrays[others[0]])


def _chosen(boxes: Floats, scores: Floats, classes: Array, count: int | None) -> Candidates:
    """Candidates that are of one class each."""
    whole = np.where(np.isfinite(classes.astype(np.float64)), classes, -1).astype(np.int64)
    most = max(count or 0, int(whole.max(initial=-1)) + 1)
    spread = np.where(whole[..., np.newaxis] == np.arange(most), scores[..., np.newaxis], 0.0)
    return Candidates(boxes, spread, distinct=True)


def _in_pixels(boxes: Floats, facts: ModelFacts) -> Floats:
    """Boxes of the unit square in pixels of the input, where its size is known; others as they
    are."""
    if facts.size is None or float(np.nanmax(np.abs(boxes), initial=0.0)) > 2:
        return boxes
    height, width = facts.size
    return boxes * np.array([width, height, width, height], np.float64)


def _corners(boxes: Floats) -> Floats:
    """cx, cy, w, h as x1, y1, x2, y2."""
    centres, half = boxes[..., :2], boxes[..., 2:4] / 2
    return np.concatenate([centres - half, centres + half], axis=-1)


def _floats(array: Array) -> Floats:
    """At least float32: outputs of a detector take much memory."""
    wide = np.result_type(array.dtype, np.float32) if array.dtype.kind == "f" else np.float64
    return np.asarray(array, wide)
