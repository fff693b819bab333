"""What the outputs of detectors mean. A family of detectors is a value, a BoxForm: where boxes and
scores lie, and in which form. Adding one takes an entry in FORMS, and one in the registry of tasks.

Which one fits is told by the shapes of the outputs, the size of the input, and the metadata that
exporters write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

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


@dataclass(frozen=True)
class BoxForm:
    """How a family of detectors writes boxes and scores.

    Attributes:
        columns: an output [N, places, columns] holds all, in at least so many; 0 where boxes and
            scores are always outputs of their own.
        axis: of the columns.
        scores: the column of the first class; where it is 5, column 4 is the objectness, by which
            scores are multiplied.
        apart: boxes and scores may be outputs of their own.
        chosen: each box has one score and the number of one class: columns 4 and 5.
        corners: boxes are x1, y1, x2, y2; else cx, cy, w, h.
        unit: they are shares of the input's size where none is above 2.
        in_cells: centres are offsets in the cells of a grid, and sizes logarithms.
        activation: what makes scores of their own shares.
        background: which of the scores of their own is "no object".
        distinct: see Candidates.
    """

    columns: int = 0
    axis: int = 2
    scores: int = 4
    apart: bool = False
    chosen: bool = False
    corners: bool = False
    unit: bool = False
    in_cells: bool = False
    activation: Literal["", "sigmoid", "softmax"] = ""
    background: Literal["", "first", "last"] = ""
    distinct: bool = False


FORMS: Mapping[str, BoxForm] = {
    "yolov8": BoxForm(5, axis=1),
    "yolov5": BoxForm(6, scores=5),
    "yolox": BoxForm(6, scores=5, in_cells=True),
    "end-to-end": BoxForm(6, chosen=True, corners=True, distinct=True),
    "detections": BoxForm(apart=True, chosen=True, corners=True, distinct=True),
    "ssd": BoxForm(apart=True, corners=True, unit=True, background="first"),
    "detr": BoxForm(apart=True, unit=True, activation="softmax", background="last", distinct=True),
    "rt-detr": BoxForm(5, apart=True, unit=True, activation="sigmoid", distinct=True),
}
"""Those of the registry's DECODERS of boxes; the ones with masks have prototypes besides."""


def candidates_in(outputs: Outputs, decoder: str, facts: ModelFacts) -> Candidates:
    """What a detector's outputs, arrays [samples, …] by name, say.

    With masks, the columns end with the coefficients of prototypes, which are an output [N,
    coefficients, height, width], as in YOLACT (Bolya et al. 2019).

    Raises:
        MetricError: they are not what the decoder reads.
    """
    form, masks = FORMS[decoder.removesuffix(WITH_MASKS)], None
    if form.apart and (len(outputs) > 1 or not form.columns):
        boxes, scores = _apart(form, outputs, decoder)
    else:
        boxes, scores, masks = _together(form, outputs, decoder, facts)
    if form.chosen:
        scores = _spread(scores[..., 0], scores[..., 1], facts.classes)
    if form.in_cells:
        boxes = _from_cells(boxes, facts)
    if not form.corners:
        centres, half = boxes[..., :2], boxes[..., 2:4] / 2
        boxes = np.concatenate([centres - half, centres + half], axis=-1)
    if form.unit and facts.size and float(np.nanmax(np.abs(boxes), initial=0.0)) <= 2:
        boxes = boxes * np.tile(facts.size[::-1], 2).astype(np.float64)
    return Candidates(boxes, scores, form.distinct, masks)


def _together(
    form: BoxForm, outputs: Outputs, decoder: str, facts: ModelFacts
) -> tuple[Floats, Floats, InstanceMasks | None]:
    """Boxes, scores and masks of the columns of one output.

    Raises:
        MetricError: there are not so many.
    """
    rows = next((a for a in outputs.values() if a.ndim == 3), np.zeros((0, 0, 0)))
    planes = next((a for a in outputs.values() if a.ndim == 4), np.zeros((0, 0, 0, 0)))
    rows, masks = _floats(np.moveaxis(rows, form.axis, 2)), None
    columns = rows.shape[2]
    end = columns - planes.shape[1]
    if decoder.endswith(WITH_MASKS):
        columns = end if planes.shape[1] else 0
        size = facts.size or (_PROTOTYPE * planes.shape[2], _PROTOTYPE * planes.shape[3])
        masks = InstanceMasks(_floats(planes), rows[..., end:], size, in_boxes=True)
    if columns < form.columns:
        _refuse(decoder, outputs)
    if form.chosen:
        return rows[..., :4], rows[..., 4:6], masks
    scores = rows[..., form.scores : form.scores + facts.classes if facts.classes else end]
    return rows[..., :4], rows[..., 4:5] * scores if form.scores == 5 else scores, masks


def _apart(form: BoxForm, outputs: Outputs, decoder: str) -> tuple[Floats, Floats]:
    """Boxes and scores of outputs of their own: the output [samples, places, 4], of several the one
    that is named after boxes, and the other one of three axes; or scores and classes of two.

    Raises:
        MetricError: there are no such outputs.
    """
    arrays = {name: array for name, array in outputs.items() if array.ndim == 3}
    fours = [name for name, array in arrays.items() if array.shape[2] == 4]
    if form.chosen:  # as torchvision and TensorFlow's object detection write them
        boxes = arrays[fours[0]] if fours else np.zeros(0)
        flat = {name: array for name, array in outputs.items() if array.shape == boxes.shape[:2]}
        if len(flat) < 2:
            _refuse(decoder, outputs)
        named = [n for n in flat if any(word in n.lower() for word in ("class", "label"))]
        classes = flat.pop(named[0] if named else list(flat)[-1])
        return _floats(boxes), _floats(np.stack([next(iter(flat.values())), classes], axis=-1))
    named = [name for name in fours if any(word in name.lower() for word in _BOXES)] or fours
    others = [n for n in arrays if n != named[0]] if named else []
    if not others:
        _refuse(decoder, outputs)
    scores = _floats(arrays[others[0]])
    if form.activation:
        from scipy.special import expit, softmax

        scores = softmax(scores, axis=2) if form.activation == "softmax" else expit(scores)
    kept = {"": slice(None), "first": slice(1, None), "last": slice(-1)}[form.background]
    return _floats(arrays[named[0]]), scores[..., kept]


def _spread(scores: Floats, classes: Array, count: int | None) -> Floats:
    """The scores [samples, places, classes] of boxes that are of one class each."""
    whole = np.where(np.isfinite(classes), classes, -1).astype(np.int64)
    most = max(count or 0, int(whole.max(initial=-1)) + 1)
    return np.where(whole[..., np.newaxis] == np.arange(most), scores[..., np.newaxis], 0.0)


def _from_cells(boxes: Floats, facts: ModelFacts) -> Floats:
    """Boxes cx, cy, w, h from offsets in the cells of a grid and logarithms of sizes.

    Raises:
        MetricError: the size of the input is not known, or does not give so many cells.
    """
    places = boxes.shape[1]
    if facts.size is None or _places(facts) != places:
        raise MetricError(
            f"{option('decode', 'yolox')}: the {places} places of the output are not those of the "
            f"input's size {facts.size or 'which is not fixed'} with strides 8, 16 and 32",
            "Fix the size of the input, or read the output with a function of yours.",
            code="QD-METRIC-DECODE",
        )
    height, width = facts.size
    cells = []
    for stride in _STRIDES:
        y, x = np.mgrid[: height // stride, : width // stride]
        cells.append(np.stack([x.ravel(), y.ravel(), np.full(x.size, stride)], axis=1))
    grid = np.concatenate(cells).astype(np.float64)
    with np.errstate(over="ignore"):  # an infinite box overlaps none
        parts = (boxes[..., :2] + grid[:, :2]), np.exp(boxes[..., 2:4])
    return np.concatenate(parts, axis=2) * grid[:, 2:]


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
        is_read = masked in (decoder.name for decoder in DECODERS)
        return masked if is_read and facts.segments else name
    if facts.outputs.keys() >= _RF_DETR and list(map(len, shapes)) == [3, 3]:
        return "rt-detr"
    if any(len(s) == 3 and s[2] == 4 for s in shapes):
        return "detections" if [len(s) for s in shapes].count(2) == 2 else None
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


def _places(facts: ModelFacts) -> int | None:
    """The cells of all levels of the pyramid."""
    if facts.size is None:
        return None
    height, width = facts.size
    return sum((height // s) * (width // s) for s in _STRIDES)


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


def _floats(array: Array) -> Floats:
    """At least float32: outputs of a detector take much memory."""
    wide = np.result_type(array.dtype, np.float32) if array.dtype.kind == "f" else np.float64
    return np.asarray(array, wide)
