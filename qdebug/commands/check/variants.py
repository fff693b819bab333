"""Other ways of preparing the same samples, which mistakes are recognized by: where FP32 does
clearly better on one of them, the samples were prepared otherwise than in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdebug.metrics.tasks.losses import are_probabilities
from qdebug.network.preprocessing import (
    PRESETS,
    ColourName,
    PadName,
    Preprocessing,
    ResizeName,
    layout_of,
)
from qdebug.types import Array, TensorSpec

WHOLE = "preprocessing"
"""The kind of several changes at once."""
_PIXELS = 255.0
_NEARLY_ONE = 1.5
"""Values above are no shares of 255."""
_MEAN, _STD = PRESETS["imagenet"].mean, PRESETS["imagenet"].std


@dataclass(frozen=True)
class Variant:
    """A way of preparing samples otherwise.

    Attributes:
        kind: of the finding where FP32 does better on it.
        name: for people: "FP32 … with NAME".
        change: of an input array, samples first; None where `preprocessing` says it.
        preprocessing: of pictures.
    """

    kind: str
    name: str
    change: Callable[[Array], Array] | None = None
    preprocessing: Preprocessing | None = None


def of_arrays(spec: TensorSpec, first: Array) -> Iterator[Variant]:
    """Those of arrays that are pictures: scaling, order of colours, layout. `first` are some."""
    layout = layout_of(spec)
    if first.ndim != 4 or layout is None or spec.dtype.kind != "f":
        return
    channel = 1 if layout == "nchw" else 3
    shape = [1] * 4
    shape[channel] = -1
    colours = first.shape[channel] == len(_MEAN)
    mean, std = ((np.array(v, np.float32).reshape(shape)) for v in (_MEAN, _STD))
    low, high = float(first.min()), float(first.max())
    if low < 0:  # normalized somehow
        if colours:
            undone = "mean and std of ImageNet undone"
            yield Variant("value-range", undone, lambda x: x * std + mean)
        if low >= -1 and high <= 1:
            yield Variant("value-range", "values in 0 to 1", lambda x: (x + 1) / 2)
    else:
        scale = _PIXELS if high > _NEARLY_ONE else 1.0
        if scale != 1:
            yield Variant("value-range", "values / 255", lambda x: x / _PIXELS)
        else:
            yield Variant("value-range", "values in 0 to 255", lambda x: x * _PIXELS)
        yield Variant("value-range", "values in -1 to 1", lambda x: x / scale * 2 - 1)
        if colours:
            yield Variant(
                "value-range", "mean and std of ImageNet", lambda x: (x / scale - mean) / std
            )
    if colours:
        yield Variant("channel-order", "the channels reversed (BGR for RGB)", _reversed(channel))
    if first.shape[channel] > 1:
        yield Variant("layout", "the axes transposed instead of reshaped", _transposed(channel))


def _reversed(channel: int) -> Callable[[Array], Array]:
    return lambda x: np.ascontiguousarray(np.flip(x, channel))


def _transposed(channel: int) -> Callable[[Array], Array]:
    """What was meant where pictures of the other layout were given this one's shape by reshape."""

    def change(x: Array) -> Array:
        if channel == 1:
            count, channels, height, width = x.shape
            return np.ascontiguousarray(
                x.reshape(count, height, width, channels).transpose(0, 3, 1, 2)
            )
        count, height, width, channels = x.shape
        return np.ascontiguousarray(x.reshape(count, channels, height, width).transpose(0, 2, 3, 1))

    return change


def of_pictures(how: Preprocessing, decoder: str = "") -> Iterator[Variant]:
    """Those of pictures that are read as `how` says: one change each of how they are resized, and
    what follows; then all as the networks are trained whose outputs the `decoder` reads."""
    ways: tuple[ResizeName, ...] = ("letterbox", "exact", "shortest-edge")
    for resize in ways:
        if resize != how.resize and how.resize != "none":
            other = replace(how, resize=resize, shortest_edge=None)
            yield Variant("resize", f"resize: {resize}", preprocessing=other)
    if how.resize == "letterbox":
        pad: PadName = "end" if how.pad == "both" else "both"
        yield Variant("resize", f"pad: {pad}", preprocessing=replace(how, pad=pad))
    if how.colour != "gray":
        colour: ColourName = "bgr" if how.colour == "rgb" else "rgb"
        other = replace(how, colour=colour)
        yield Variant("channel-order", f"colour: {colour}", preprocessing=other)
    for name, (scale, mean, std) in _RANGES.items():
        if len(mean) in (1, how.channels):
            other = replace(how, scale=scale, mean=mean, std=std)
            if other != how:
                yield Variant("value-range", name, preprocessing=other)
    for name in _FAMILIES.get(decoder, ()):
        other = replace(PRESETS[name], size=how.size, layout=how.layout)
        if other != how:
            yield Variant(WHOLE, f"preset: {name}", preprocessing=other)


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


def chance_of_gain(given: Sequence[bool], other: Sequence[bool]) -> float:
    """How often, if neither way of preparing was better, the other one would be right so much more
    often on these samples: the exact one-sided test of McNemar (a sign test of the samples on which
    they differ)."""
    gained = sum(o and not g for g, o in zip(given, other, strict=True))
    lost = sum(g and not o for g, o in zip(given, other, strict=True))
    n = gained + lost
    return sum(math.comb(n, k) for k in range(gained, n + 1)) / 2**n if n else 1.0
