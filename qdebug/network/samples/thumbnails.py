"""Pictures as a network gets them, made small for people to look at, as data URLs."""

from __future__ import annotations

import base64
import io

import numpy as np

from qdebug.network.preprocessing import LayoutName, Preprocessing
from qdebug.network.samples.pictures import pillow
from qdebug.types import Array

_SIDE = 320
"""Pixels of the longer side: as wide as a column of the page."""
_BYTES = 24_000
"""Of a picture: JPEGs of 320 pixels at quality 80 take 10 to 20 kB."""
_QUALITIES = (80, 50)
_FEWEST = 16
"""Pixels of a side, below which nothing can be made out."""
_COLOURS = (2, 3, 4)
"""Channels of a picture in colour; of others the first is shown."""


def pixels_of(values: Array, how: Preprocessing | None, layout: LayoutName) -> Array:
    """The picture of one sample, uint8 [height, width, 1 or 3], RGB.

    Args:
        values: of the input of four axes, without the axis of samples.
        how: what was done to the picture; None where that is not known: then values within 0 to 1
            and 0 to 255 are taken as such, and others are stretched.
        layout: of the input.
    """
    last = values.transpose(1, 2, 0) if layout == "nchw" else values
    pixels = np.nan_to_num(
        last[..., : 3 if last.shape[2] in _COLOURS[1:] else 1].astype(np.float32)
    )
    if how is not None:
        pixels = (pixels * np.array(how.std) + np.array(how.mean)) / how.scale
        pixels = pixels[..., ::-1] if how.colour == "bgr" else pixels
    else:
        low, high = float(pixels.min(initial=0)), float(pixels.max(initial=0))
        if low < 0 or high > 255:
            pixels = (pixels - low) * (255 / (high - low))
        elif high <= 1:
            pixels = pixels * 255
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def thumbnail(pixels: Array) -> str:
    """A picture, uint8 [height, width, 1 or 3], as a JPEG of at most `_BYTES`; "" where none is so
    small.

    Raises:
        SampleError: Pillow is not installed.
    """
    images = pillow("a thumbnail")
    whole = images.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    side = _SIDE
    while side >= _FEWEST:
        small = whole.copy()
        small.thumbnail((side, side), images.Resampling.BOX)
        for quality in _QUALITIES:
            file = io.BytesIO()
            small.save(file, "JPEG", quality=quality, optimize=True)
            if file.tell() <= _BYTES:
                return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
        side //= 2
    return ""
