"""Pictures as a network gets them, made small for people to look at, as data URLs."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Literal

import numpy as np

from qdebug.network.preprocessing import LayoutName, Preprocessing
from qdebug.network.samples.pictures import MASK_PADDING, pillow
from qdebug.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

_SIDE = 320
"""Pixels of the longer side: three of them stand beside each other on a page."""
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
    return _encoded(whole, "JPEG", images.Resampling.BOX)


def mask_thumbnail(classes: Array) -> str:
    """A mask of class numbers [height, width] as a PNG: a colour for each class, 0 and what is no
    part of the picture transparent; "" where none is small enough.

    Raises:
        SampleError: Pillow is not installed.
    """
    images = pillow("a mask")
    table = np.array(_PALETTE, np.uint8)
    shown = table[np.asarray(classes) % len(table)]
    shown[(classes == 0) | (classes == MASK_PADDING) | (classes < 0)] = 0
    return _encoded(images.fromarray(shown), "PNG", images.Resampling.NEAREST)


def _encoded(whole: Image, kind: Literal["JPEG", "PNG"], resampling: Resampling) -> str:
    side = _SIDE
    while side >= _FEWEST:
        small = whole.copy()
        small.thumbnail((side, side), resampling)
        for quality in _QUALITIES:
            file = io.BytesIO()
            small.save(file, kind, quality=quality, optimize=True)
            if file.tell() <= _BYTES:
                text = base64.b64encode(file.getvalue()).decode()
                return f"data:image/{kind.lower()};base64,{text}"
        side //= 2
    return ""


_PALETTE = (
    (230, 25, 75, 255),
    (60, 180, 75, 255),
    (255, 225, 25, 255),
    (0, 130, 200, 255),
    (245, 130, 48, 255),
    (145, 30, 180, 255),
    (70, 240, 240, 255),
    (240, 50, 230, 255),
    (210, 245, 60, 255),
    (250, 190, 212, 255),
    (0, 128, 128, 255),
    (220, 190, 255, 255),
    (170, 110, 40, 255),
    (128, 0, 0, 255),
    (170, 255, 195, 255),
    (128, 128, 0, 255),
    (255, 215, 180, 255),
    (0, 0, 128, 255),
    (128, 128, 128, 255),
)
"""Sasha Trubetskoy's list of distinct colours."""
