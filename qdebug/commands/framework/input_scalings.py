"""Samples that the framework's run had with another scale or offset than the ONNX model has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.network.preprocessing import CHANNELS, PRESETS, layout_of
from qdebug.types import Array, TensorSpec

_USUAL = (
    ("255", 255.0, 0.0),
    ("1/255", 1 / 255, 0.0),
    ("2, less 1", 2.0, -1.0),
    ("1/2, plus 1/2", 0.5, 0.5),
    ("127.5, plus 127.5", 127.5, 127.5),
    ("1/127.5, less 1", 1 / 127.5, -1.0),
    ("32768", 32768.0, 0.0),
    ("1/32768", 1 / 32768, 0.0),
)
"""Between pixels as 0 to 255, 0 to 1 and -1 to 1, and between sound of 16 bits and -1 to 1: factor,
offset."""

PICTURE_AXES = 4
_MOST_VALUES = 1 << 18
"""That are fitted, evenly from all: at most eight unknowns are looked for."""


@dataclass(frozen=True)
class Scaling:
    """Samples otherwise: x * factor + offset.

    Attributes:
        name: for people, after "with the samples".
        factor, offset: of one value, or of one for each channel.
    """

    name: str
    factor: Array
    offset: Array

    def __call__(self, samples: Array) -> Array:
        """The samples of an input, in their type; others than floating ones as they are."""
        if samples.dtype.kind != "f":
            return samples
        return (samples * self.factor + self.offset).astype(samples.dtype)


def usual_scalings(spec: TensorSpec) -> Iterator[Scaling]:
    """What samples of an input are often multiplied by, or wrongly are not."""
    for name, factor, offset in _USUAL:
        yield Scaling(f"times {name}", np.array(factor), np.array(offset))
    imagenet, shape = PRESETS["imagenet"], _by_channel(spec)
    if len(imagenet.mean) != max(shape, default=1):
        return
    mean, std = (np.reshape(values, shape) for values in (imagenet.mean, imagenet.std))
    for pixels, of in ((1.0, ""), (255.0, " of pixels as 0 to 255")):
        yield Scaling(f"normalized by ImageNet's mean and std{of}", 1 / (pixels * std), -mean / std)
        undone = f"freed of ImageNet's mean and std{of and ', as 0 to 255'}"
        yield Scaling(undone, pixels * std, pixels * mean)


def fitted_scaling(
    spec: TensorSpec, samples: Array, own: Callable[[Array], Array], values: Sequence[Array]
) -> Scaling:
    """With which `own`, a tensor of the model as a function of its input, is nearest to one of the
    framework's `values` of its shape, where it is affine in its input, such as what the first
    convolution gives: then own(x · factor + offset) is own(0) plus a sum of what the channels of x
    give by themselves, each times its factor, and of what those of 1 give, times its offset (least
    squares).

    Raises:
        numpy.linalg.LinAlgError: the tensor is not finite there.
    """
    size, shape = values[0].size, _by_channel(spec)
    places = np.linspace(0, size - 1, min(size, _MOST_VALUES)).astype(np.int64)

    def some(array: Array) -> Array:
        return array.reshape(-1)[places].astype(np.float64)

    zero = some(own(np.zeros_like(samples)))
    channels = np.eye(max(shape, default=1), dtype=samples.dtype).reshape(-1, *shape)
    parts = [samples * channel for channel in channels]
    parts += [np.broadcast_to(channel, samples.shape).copy() for channel in channels]
    columns = np.stack([some(own(part)) - zero for part in parts], axis=1)
    wanted = np.stack([some(value) - zero for value in values], axis=1)
    fits = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    left, energy = (np.square(a).sum(axis=0) for a in (wanted - columns @ fits, wanted))
    shares = np.divide(left, energy, out=np.full_like(left, np.inf), where=energy > 0)
    factor, offset = (half.reshape(shape) for half in np.split(fits[:, shares.argmin()], 2))
    factors, offsets = (
        ", ".join(f"{v:.4g}" for v in half.reshape(-1)) for half in (factor, offset)
    )
    each = ", by channel" if shape else ""
    return Scaling(f"times {factors} plus {offsets}{each}", factor, offset)


def _by_channel(spec: TensorSpec) -> tuple[int, ...]:
    """The shape in which one value for each channel of a picture fits samples; () for others."""
    layout = layout_of(spec) if len(spec.shape) == PICTURE_AXES else None
    if layout is None:
        return ()
    channels = spec.shape[1 if layout == "nchw" else 3]
    if channels not in CHANNELS:
        return ()
    return (1, channels, 1, 1) if layout == "nchw" else (1, 1, 1, channels)
