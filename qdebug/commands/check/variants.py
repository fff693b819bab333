"""Other ways of preparing the same samples, which mistakes are recognized by: where FP32 does
clearly better on one of them, the samples were prepared otherwise than in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from qdebug.metrics.accumulate import ExecutedBatch
from qdebug.network.preprocessing import (
    PRESETS,
    ColourName,
    PadName,
    Preprocessing,
    ResizeName,
    layout_of,
)
from qdebug.results.check import ValueRange
from qdebug.types import Array, Feeds, TensorSpec

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
