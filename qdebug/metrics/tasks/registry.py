"""The end-to-end metrics by name. Adding one takes a function in this package and an entry here.

Help texts, messages and the reference pages read this list. Nothing here imports numpy: the command
line's `--help` reads it too.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, Literal

from qdebug.wording import as_known

Takes = Literal["scores", "embeddings", "values", "boxes", "text", "mask"]
Truth = Literal["labels", "reference"]


UNIT = (0.0, 1.0)
FROM_ZERO = (0.0, math.inf)
"""Of errors."""


@dataclass(frozen=True)
class BuiltInMetric:
    """An entry of the registry.

    Its functions are named "module.function" of this package, and get three arguments: what was
    `found` in the outputs, the `truth`, which is either the same of the reference or from the
    labels, and what was found in the `reference`. What that is depends on what the metric `takes`:

    - "scores": scores of classes, float64 [samples, classes]; the truth is a class for each sample,
      int64 [samples];
    - "embeddings": the first output, [samples, …], and the same truth;
    - "values": the first output, and a truth of the same shape;
    - "boxes": Candidates, see tasks/boxes/detections.py; the truth is Detections;
    - "text": Lines, see tasks/text.py;
    - "mask": Masks, see tasks/masks.py.

    Attributes:
        name: as users write it.
        meaning: in one line.
        truth: where it comes from.
        takes: see above.
        score: gives one number; "" where it is the mean of `per_sample`.
        per_sample: gives the score of each sample, float64 [samples].
        loss: gives what each sample loses, float64 [samples]; "" for none; see TaskMetric.loss.
        higher_is_better: of the score.
        is_share: it is a share of the samples, each of which counts as one.
        bounds: see TaskMetric; a share has 0 to 1 anyway.
        parameter: the number that it takes after an @, where none is given; None for none. The
            functions get it as the keyword `at`.
        package: the module of an optional package that it is computed with; "" for none.
    """

    name: str
    meaning: str
    truth: Truth
    takes: Takes
    score: str = ""
    per_sample: str = ""
    loss: str = ""
    higher_is_better: bool = True
    is_share: bool = False
    bounds: tuple[float, float] | None = None
    parameter: int | None = None
    package: str = ""

    @property
    def needs_labels(self) -> bool:
        """Whether the data must hold labels."""
        return self.truth == "labels"

    @property
    def usage(self) -> str:
        """How users write it."""
        return f"{self.name}@{self.parameter}" if self.parameter else self.name

    def function(self, name: str) -> Any:
        """One of its functions, with its parameter; None for ""."""
        if not name:
            return None
        function = resolve_name(f"{__package__}.{name}")
        return partial(function, at=self.parameter) if self.parameter else function


BUILT_IN = (
    BuiltInMetric(
        "top1",
        "the share of samples whose highest score is that of their label",
        "labels",
        "scores",
        per_sample="classes.top1",
        loss="classes.margin_loss",
        is_share=True,
    ),
    BuiltInMetric(
        "agreement",
        "the share of samples whose highest score is where the reference has it",
        "reference",
        "scores",
        per_sample="classes.top1",
        loss="classes.margin_loss",
        is_share=True,
    ),
    BuiltInMetric(
        "top5",
        "the share of samples whose label is among the five highest scores",
        "labels",
        "scores",
        per_sample="classes.top5",
        loss="classes.top5_loss",
        is_share=True,
    ),
    BuiltInMetric(
        "f1",
        "F1 of each class of a classifier, averaged",
        "labels",
        "scores",
        score="classes.f1",
        loss="classes.margin_loss",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "auroc",
        "area under the receiver operating characteristic, each class against the rest, averaged",
        "labels",
        "scores",
        score="classes.auroc",
        loss="classes.margin_loss",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "map",
        "mean average precision of boxes, or masks, IoU 0.50 to 0.95, as COCO's AP",
        "labels",
        "boxes",
        score="boxes.scores.average_precision",
        loss="boxes.scores.loss",
        package="faster_coco_eval",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "map50",
        "mean average precision of boxes, or masks, at IoU 0.50, as COCO's AP50",
        "labels",
        "boxes",
        score="boxes.scores.average_precision_50",
        loss="boxes.scores.loss",
        package="faster_coco_eval",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "map-to-reference",
        "the same as map with what FP32 finds as truth: needs no labels",
        "reference",
        "boxes",
        score="boxes.scores.average_precision",
        loss="boxes.scores.loss",
        package="faster_coco_eval",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "map50-to-reference",
        "the same as map50 with what FP32 finds as truth",
        "reference",
        "boxes",
        score="boxes.scores.average_precision_50",
        loss="boxes.scores.loss",
        package="faster_coco_eval",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "box-f1",
        "F1 of boxes, or masks, which are right from IoU 0.50 on",
        "labels",
        "boxes",
        score="boxes.scores.f1",
        loss="boxes.scores.loss",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "box-f1-to-reference",
        "the same with what FP32 finds as truth: kept, lost and new boxes",
        "reference",
        "boxes",
        score="boxes.scores.f1",
        loss="boxes.scores.loss",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "miou",
        "mean intersection over union of a mask's classes",
        "labels",
        "mask",
        score="masks.miou",
        loss="masks.miou_loss",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "miou-to-reference",
        "the same with FP32's mask as truth",
        "reference",
        "mask",
        score="masks.miou",
        loss="masks.miou_loss",
        bounds=UNIT,
    ),
    BuiltInMetric(
        "cer",
        "character error rate of read lines",
        "labels",
        "text",
        score="text.cer",
        loss="text.ctc_loss",
        higher_is_better=False,
        bounds=FROM_ZERO,
        package="jiwer",
    ),
    BuiltInMetric(
        "cer-to-reference",
        "the same with what FP32 reads as truth",
        "reference",
        "text",
        score="text.cer",
        loss="text.ctc_loss",
        higher_is_better=False,
        bounds=FROM_ZERO,
        package="jiwer",
    ),
    BuiltInMetric(
        "wer",
        "word error rate of read lines",
        "labels",
        "text",
        score="text.wer",
        loss="text.ctc_loss",
        higher_is_better=False,
        bounds=FROM_ZERO,
        package="jiwer",
    ),
    BuiltInMetric(
        "wer-to-reference",
        "the same with what FP32 reads as truth",
        "reference",
        "text",
        score="text.wer",
        loss="text.ctc_loss",
        higher_is_better=False,
        bounds=FROM_ZERO,
        package="jiwer",
    ),
    BuiltInMetric(
        "cosine",
        "mean cosine similarity of embeddings with the reference's",
        "reference",
        "values",
        per_sample="values.cosine",
        loss="values.cosine_loss",
        bounds=(-1.0, 1.0),
    ),
    BuiltInMetric(
        "recall",
        "the share of samples that have one of their class among the K nearest embeddings",
        "labels",
        "embeddings",
        per_sample="classes.recall",
        loss="classes.recall_loss",
        is_share=True,
        parameter=1,
    ),
    BuiltInMetric(
        "spearman",
        "rank correlation of the first output with the labels",
        "labels",
        "values",
        score="values.spearman",
        loss="values.square_error",
        bounds=(-1.0, 1.0),
    ),
    BuiltInMetric(
        "mae",
        "mean absolute error of the first output",
        "labels",
        "values",
        per_sample="values.mae",
        loss="values.mae",
        higher_is_better=False,
        bounds=FROM_ZERO,
    ),
    BuiltInMetric(
        "rmse",
        "root mean square error of the first output",
        "labels",
        "values",
        score="values.rmse",
        loss="values.square_error",
        higher_is_better=False,
        bounds=FROM_ZERO,
    ),
    BuiltInMetric(
        "psnr",
        "mean peak signal-to-noise ratio of pictures in dB",
        "labels",
        "values",
        per_sample="values.psnr",
        loss="values.square_error",
    ),
    BuiltInMetric(
        "ssim",
        "mean structural similarity of pictures (Wang et al. 2004)",
        "labels",
        "values",
        per_sample="values.ssim",
        loss="values.ssim_loss",
    ),
)
"""End-to-end metrics by name; any other is a function of the user's."""

NAMES = tuple(metric.usage for metric in BUILT_IN)
"""As users write them."""


@dataclass(frozen=True)
class Decoder:
    """A way to read outputs that `--decode` names. What it means is in tasks/boxes/decoders.py for
    boxes, and in tasks/text.py for text.

    Attributes:
        name: as users write it.
        takes: what the metrics take that it reads.
        reads: the outputs it is for, for people.
    """

    name: str
    takes: Literal["boxes", "text"]
    reads: str


DECODERS = (
    Decoder("yolov8", "boxes", "[N, 4 + classes, places]: YOLOv8 to v12 and YOLO26, raw"),
    Decoder("yolov5", "boxes", "[N, places, 5 + classes]: YOLOv5, YOLOv7"),
    Decoder("yolox", "boxes", "[N, places, 5 + classes] in cells of a grid: YOLOX"),
    Decoder("end-to-end", "boxes", "[N, boxes, 6]: x1, y1, x2, y2, score, class"),
    Decoder(
        "yolov8-seg", "boxes", "[N, 4 + classes + M, places] and [N, M, h, w]: YOLOv8-seg, raw"
    ),
    Decoder("yolov5-seg", "boxes", "[N, places, 5 + classes + M] and [N, M, h, w]: YOLOv5-seg"),
    Decoder("end-to-end-seg", "boxes", "[N, boxes, 6 + M] and [N, M, h, w]: YOLO26-seg"),
    Decoder("detections", "boxes", "boxes, scores and classes in outputs of their own"),
    Decoder("ssd", "boxes", "boxes [N, places, 4] and scores with a background: SSD"),
    Decoder("detr", "boxes", "boxes [N, queries, 4] and logits with a last 'no object': DETR"),
    Decoder("rt-detr", "boxes", "boxes [N, queries, 4] and logits: RT-DETR, RF-DETR"),
    Decoder("ctc", "text", "text, [N, frames, classes]: the first class is the blank"),
    Decoder("ctc-last", "text", "text, [N, frames, classes]: the last class is the blank"),
)
"""By name; `--decode file.py:function` takes others."""

WITH_MASKS = "-seg"
"""How the names of decoders end that read masks besides boxes."""


def decoder_list(takes: Takes, indent: str = "    ") -> str:
    """The decoders of one kind as a message lists them, one on a line."""
    return "\n".join(f"{indent}{d.name}: {d.reads}" for d in DECODERS if d.takes == takes)


def built_in(spec: str) -> BuiltInMetric | None:
    """The entry for what a user wrote, with the parameter that it gives; None where there is
    none."""
    word, at, number = spec.partition("@")
    name = as_known(word, (entry.name for entry in BUILT_IN))
    entry = next((entry for entry in BUILT_IN if entry.name == name), None)
    if entry is None or not at:
        return entry
    if entry.parameter is None or not re.fullmatch(r"[1-9][0-9]*", number.strip()):
        return None
    return replace(entry, parameter=int(number))


def metric_usage() -> str:
    """The end-to-end metrics as a help text lists them."""
    return ", ".join([*NAMES, "file.py:function", "package.module:function"])
