"""FP32 on some samples, prepared in other ways, and what it is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from qdebug.analyse.gate import on_model
from qdebug.config.look import CheckSettings
from qdebug.execute.context import Context, runner_of
from qdebug.metrics.accumulate import REFERENCE, ExecutedBatch
from qdebug.metrics.tasks.base import LABEL_NAMES, TaskMetric, first_output
from qdebug.metrics.tasks.classes import are_probabilities
from qdebug.metrics.tasks.load import check_labels, load_metric
from qdebug.metrics.tasks.registry import WITH_MASKS
from qdebug.metrics.tasks.worst_group import metric_of
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.network.preprocessing import (
    PRESETS,
    ColourName,
    PadName,
    Preprocessing,
    ResizeName,
    layout_of,
)
from qdebug.network.samples import Batch, Samples
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.check import ValueRange
from qdebug.run.outputs import joined
from qdebug.run.variant import as_it_is
from qdebug.types import Array, Feeds, Tensors, TensorSpec

WHOLE = "preprocessing"
"""The kind of several changes at once."""
_PIXELS = 255.0
_NEARLY_ONE = 1.5
"""Values above are no shares of 255."""
_MEAN, _STD = PRESETS["imagenet"].mean, PRESETS["imagenet"].std


Change = Callable[[ExecutedBatch], Feeds]
"""Gives other inputs. See run.variant.Variant.feeds."""


@dataclass(frozen=True)
class Variant:
    """A way of preparing samples otherwise.

    Attributes:
        kind: of the finding where FP32 does better on it.
        name: for people: "FP32 … with NAME".
        change: gives other inputs; None where `preprocessing` says it.
        preprocessing: of pictures.
    """

    kind: str
    name: str
    change: Change | None = None
    preprocessing: Preprocessing | None = None


def of_arrays(spec: TensorSpec, values: ValueRange, shape: Sequence[int]) -> Iterator[Variant]:
    """Those of arrays that are pictures: scaling, order of colours, layout; by the `values` and the
    `shape` of some of them."""
    layout = layout_of(spec)
    if layout is None or spec.dtype.kind != "f":
        return
    channel = 1 if layout == "nchw" else 3
    colours = shape[channel]
    mean, std = (np.array(v, np.float32) for v in (_MEAN, _STD))
    if channel == 1:
        mean, std = (v.reshape(-1, 1, 1) for v in (mean, std))
    scale = _PIXELS if values.high > _NEARLY_ONE else 1.0
    normalized, in_rgb = values.low < 0, colours == len(_MEAN)
    changes: list[tuple[bool, str, str, Callable[[Array], Array]]] = [
        (
            normalized and in_rgb,
            _VALUES,
            "mean and std of ImageNet undone",
            lambda x: x * std + mean,
        ),
        (
            normalized and values.low >= -1 and values.high <= 1,
            _VALUES,
            "values in 0 to 1",
            lambda x: (x + 1) / 2,
        ),
        (not normalized and scale != 1, _VALUES, "values / 255", lambda x: x / _PIXELS),
        (not normalized and scale == 1, _VALUES, "values in 0 to 255", lambda x: x * _PIXELS),
        (not normalized, _VALUES, "values in -1 to 1", lambda x: x / scale * 2 - 1),
        (
            not normalized and in_rgb,
            _VALUES,
            "mean and std of ImageNet",
            lambda x: (x / scale - mean) / std,
        ),
        (in_rgb, _ORDER, "the channels reversed (BGR for RGB)", lambda x: np.flip(x, channel)),
        (
            colours > 1,
            "layout",
            "the axes transposed instead of reshaped",
            lambda x: _transposed(x, channel),
        ),
    ]
    for applies, kind, name, change in changes:
        if applies:
            yield Variant(kind, name, partial(_changed, spec, change))


_VALUES, _ORDER = "value-range", "channel-order"
_UNDONE = "mean and std of ImageNet undone"


def _changed(spec: TensorSpec, change: Callable[[Array], Array], executed: ExecutedBatch) -> Feeds:
    values = change(executed.feeds[spec.name])
    return {**executed.feeds, spec.name: np.ascontiguousarray(values, spec.dtype)}


def _transposed(x: Array, channel: int) -> Array:
    """What was meant where pictures of the other layout were given this one's shape by reshape."""
    if channel == 1:
        count, channels, height, width = x.shape
        return x.reshape(count, height, width, channels).transpose(0, 3, 1, 2)
    count, height, width, channels = x.shape
    return x.reshape(count, channels, height, width).transpose(0, 2, 3, 1)


def of_pictures(how: Preprocessing, decoder: str = "") -> Iterator[Variant]:
    """Those of pictures that are read as `how` says: one change each of how they are resized, and
    what follows; then all as the networks are trained whose outputs the `decoder` reads."""
    ways: tuple[ResizeName, ...] = ("letterbox", "exact", "shortest-edge")
    pad: PadName = "end" if how.pad == "both" else "both"
    colour: ColourName = "bgr" if how.colour == "rgb" else "rgb"
    changed = [
        ("resize", f"resize: {resize}", replace(how, resize=resize, shortest_edge=None))
        for resize in ways
        if resize != how.resize and how.resize != "none"
    ]
    if how.resize == "letterbox":
        changed.append(("resize", f"pad: {pad}", replace(how, pad=pad)))
    if how.colour != "gray":
        changed.append((_ORDER, f"colour: {colour}", replace(how, colour=colour)))
    for name, (scale, mean, std) in _RANGES.items():
        if len(mean) in (1, how.channels):
            changed.append((_VALUES, name, replace(how, scale=scale, mean=mean, std=std)))
    for name in _FAMILIES.get(decoder, ()):
        preset = replace(PRESETS[name], size=how.size, layout=how.layout)
        changed.append((WHOLE, f"preset: {name}", preset))
    for kind, name, other in changed:
        if other != how:
            yield Variant(kind, name, preprocessing=other)


_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "yolox": ("yolox",),
    "yolov5": ("yolo", "yolox"),  # YOLOX, too, where it is exported with its decoding
    "yolov8": ("yolo",),
    "end-to-end": ("yolo",),
}
"""Presets of the networks that a decoder is for."""

_RANGES: Mapping[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "scale: 1/255": (1 / _PIXELS, (0.0,), (1.0,)),
    "scale: 1": (1.0, (0.0,), (1.0,)),
    "scale: 1/255, mean: 0.5, std: 0.5": (1 / _PIXELS, (0.5,), (0.5,)),
    "preset: imagenet (mean and std)": (1 / _PIXELS, _MEAN, _STD),
}


@dataclass(frozen=True)
class Executed:
    """FP32 on some samples.

    Attributes:
        outputs: arrays [samples, …] by name; `labels`: of the same samples.
        ranges: of the inputs.
    """

    outputs: Mapping[str, Array]
    labels: Mapping[str, Array]
    ranges: tuple[ValueRange, ...]

    @property
    def size(self) -> float:
        """The root of the mean square of the largest input."""
        return max((float(np.hypot(x.mean, x.std)) for x in self.ranges), default=0.0)


def execute(
    context: Context,
    graph: Graph,
    subset: SampleSubset,
    change: Change | None = None,
) -> Executed:
    """FP32 on `subset`, whose inputs are changed where that is asked for.

    Raises:
        QdebugError: it does not run, or samples cannot be read.
    """
    model = replace(as_it_is(graph.proto, context.backend), feeds=change)
    ran = runner_of(context, subset).batches({REFERENCE: model})
    outputs = dict[Batch, Tensors]()

    def fed() -> Iterator[Feeds]:
        with closing(ran) as batches:
            for one in batches:
                found = one.reference
                outputs[one.batch] = {t: found[t].copy() for t in graph.outputs if t in found}
                yield change(one) if change else one.feeds

    ranges = ranges_of(fed())
    rows, extras = np.array(subset.indices), subset.samples.extras
    labels = {name: array[rows] for name, array in extras.items()}
    return Executed(joined(outputs), labels, ranges)


def ranges_of(feeds: Iterable[Feeds], setting: str = "inputs") -> tuple[ValueRange, ...]:
    """The values of each input, over some executions."""
    sums: dict[str, Array] = {}
    for one in feeds:
        for name, array in one.items():
            if array.size:
                x = array.astype(np.float64).ravel()
                low, high, *known = sums.get(name, (math.inf, -math.inf, 0, 0, 0))
                added = np.add(known, [float(x.size), float(x.sum()), float(x @ x)])
                sums[name] = np.array([min(low, x.min()), max(high, x.max()), *added])
    found = []
    for name, (low, high, count, total, squares) in sums.items():
        mean = total / count
        std = math.sqrt(max(0.0, squares / count - mean**2)) if low < high else 0.0
        found.append(ValueRange(setting, name, float(low), float(high), float(mean), std))
    return tuple(found)


@dataclass(frozen=True)
class Judged:
    """How FP32 does: by a metric, or by how sure it is.

    Attributes:
        name: of the score.
        metric: None for the confidence.
        classes: that the model names.
        to_reference: the metric that is asked for where it takes what FP32 finds as the truth:
            then FP32 is always right.
        subject: what is judged, in a sentence: of a quantized file it is not FP32.
    """

    name: str
    metric: TaskMetric | None
    classes: int
    to_reference: TaskMetric | None = None
    subject: str = "FP32"

    @property
    def asked(self) -> TaskMetric | None:
        """The metric that is asked for."""
        return self.metric or self.to_reference

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.metric is None or self.metric.higher_is_better else -1

    @property
    def is_of_classes(self) -> bool:
        """Whether the metric takes the outputs for scores of classes."""
        return self.asked is not None and self.asked.takes == "scores"

    @property
    def decoder(self) -> str:
        """How boxes are read; "" where there are none."""
        reading = self.asked and self.asked.reading
        return reading.decoder.removesuffix(WITH_MASKS) if reading else ""

    def value(self, run: Executed) -> float | None:
        """The score; None where there is none."""
        if self.metric is None:
            return confidence(run.outputs, self.classes)
        return self.metric(run.outputs, run.labels, run.outputs)

    def chance(self, given: Executed, other: Executed) -> float | None:
        """How often chance alone would favour `other` so much; None where no sample has a score of
        its own."""
        if self.metric is None or self.metric.per_sample is None:
            return None
        before, after = (
            self.metric.per_sample(run.outputs, run.labels, run.outputs) for run in (given, other)
        )
        return chance_of_gain(self.sign * (after - before))

    def guessing(self, given: Executed) -> float | None:
        """The score of guessing: of shares one of as many classes as there are."""
        if self.metric is None or not self.metric.is_share:
            return None
        return 1 / max(2, int(first_output(given.outputs)[0].size))


def judge_of(settings: CheckSettings, samples: Samples, model: Model, classes: int) -> Judged:
    """By what FP32 is judged: the metric that is asked for, else one that fits the labels, else its
    confidence; so, too, where the metric takes what FP32 finds as the truth, since that is right
    however the samples are prepared. See also judged_by.

    Raises:
        MetricError: there is no such metric, or it does not fit the model.
    """
    name = settings.metric
    if name is None and any(label in samples.extras for label in LABEL_NAMES):
        name = "top1"
    elif name is None and "boxes" in samples.extras:
        name = "map50"
    metric = None if name is None else on_model(load_metric(name, settings.decode), model)
    if metric and metric.needs_labels and metric.takes == "boxes":
        check_labels(metric, samples.extras, "")
    if metric is None or metric.takes_reference_as_truth:
        return Judged("confidence", None, classes, metric)
    return judged_by(metric)


def judged_by(metric: TaskMetric) -> Judged:
    """FP32 judged by a metric that knows the model. Where masks of objects go with boxes the boxes
    alone are judged: what ruins the ones ruins the others, and with the masks of eight ways to
    prepare 32 pictures a check of YOLOv8n-seg took 27 CPU seconds instead of 10."""
    reads = metric.reading.decoder if metric.reading else ""
    if not reads.endswith(WITH_MASKS):
        return Judged(metric.name, metric, 0)
    name = metric_of(metric.name)
    boxes = load_metric(name, reads.removesuffix(WITH_MASKS), metric.facts)
    return Judged(f"{name} of boxes", boxes, 0)


def confidence(outputs: Mapping[str, Array], classes: int) -> float | None:
    """How sure a network is, from 0 to 1: of a classifier the mean probability of the class it
    chooses, of a detector with named classes the mean of each sample's highest score. None where
    the outputs are neither."""
    for array in outputs.values():
        values = np.asarray(array, np.float64)
        if values.ndim == 3 and classes and 4 + classes in values.shape[1:]:
            scores = values[:, 4:] if values.shape[1] == 4 + classes else values[..., 4:]
            return float(scores.reshape(len(values), -1).max(1).mean())
    if len(outputs) != 1:
        return None
    (scores,) = (np.asarray(array, np.float64) for array in outputs.values())
    if scores.ndim != 2 or scores.shape[1] < 2:
        return None
    if not are_probabilities(scores):
        scores = np.exp(scores - scores.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
    return float(scores.max(1).mean())


def chance_of_gain(gains: Array) -> float:
    """How often, if neither way of preparing was better, the other one would gain so much more
    often on these samples: the exact one-sided test of McNemar (a sign test of the samples on which
    they differ)."""
    from scipy.special import bdtrc  # here, as scipy takes its time at every start

    differ = int(np.count_nonzero(gains))
    return float(bdtrc(np.count_nonzero(gains > 0) - 1, differ, 0.5)) if differ else 1.0
