"""Pictures as inputs of a network: decoded with Pillow, resized, and brought to its range.

What is read of a picture: its first frame where it is animated, turned as EXIF says, without its
alpha channel, 16 bits as 8, CMYK as RGB.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from qdebug.errors import SampleError, is_about_memory, required
from qdebug.inputfiles import read_bytes
from qdebug.network.dataformats import FORMATS
from qdebug.network.preprocessing import Preprocessing
from qdebug.network.samples.file_set import UnreadableError
from qdebug.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset(next(f for f in FORMATS if f.name == "pictures").endings)
_SIXTEEN_BITS = "I"
"""How the names of Pillow's modes begin that hold one channel of 16 bits, or of 32 that hold 16."""
_OF_16_BITS = 257
"""65535 is 255."""


def is_picture(path: Path) -> bool:
    """Whether its name ends as that of a picture."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def pillow(what: str) -> ModuleType:
    """Pillow's module for pictures; `what` needs it.

    Raises:
        SampleError: it is not installed.
    """
    return required("PIL.Image", f"{what}: a picture", code="QD-SAMPLES-EXTRA", error=SampleError)


def size_of(picture: Path) -> tuple[int, int]:
    """Height and width of a picture, turned as EXIF says; only its header is decoded.

    Raises:
        UnreadableError: it is none.
    """
    opened = _opened(picture)
    width, height = opened.size
    with _errors_of_pillow():
        turned = opened.getexif().get(_ORIENTATION, 1) in _TURNED
    return (width, height) if turned else (height, width)


_ORIENTATION, _TURNED = 0x0112, range(5, 9)


def decoded(picture: Path, colour: str) -> Image:
    """A picture of 8 bits, in RGB or in gray.

    Raises:
        UnreadableError: it cannot be decoded.
    """
    opened = _opened(picture)
    with _errors_of_pillow():
        if opened.getexif().get(_ORIENTATION, 1) != 1:
            from PIL import ImageOps

            opened = ImageOps.exif_transpose(opened)
        if opened.mode.startswith(_SIXTEEN_BITS):
            opened = _of_8_bits(opened)
        return opened.convert("L" if colour == "gray" else "RGB")


def _opened(picture: Path) -> Image:
    images = pillow(str(picture))
    with _errors_of_pillow(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large pictures; twice as large ones are refused
        opened: Image = images.open(io.BytesIO(read_bytes(picture)))
    return opened


@contextmanager
def _errors_of_pillow() -> Iterator[None]:
    """The edge of Pillow, whose decoders raise whatever a damaged file leads them to, from OSError
    to struct.error and SyntaxError. That the memory is full is no fault of the picture.

    Raises:
        UnreadableError: in the place of what was raised.
    """
    try:
        yield
    except Exception as error:
        if is_about_memory(error):
            raise
        raise UnreadableError(_reason(error)) from error


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "not a picture"
    if type(error).__name__ == "DecompressionBombError":
        return "too many pixels for a picture: a decompression bomb?"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _of_8_bits(opened: Image) -> Image:
    from PIL.Image import fromarray

    values = np.asarray(opened).astype(np.float64)
    return fromarray(np.clip(np.rint(values / _OF_16_BITS), 0, 255).astype(np.uint8))


@dataclass(frozen=True)
class Placement:
    """Where a picture is in the input of a network.

    Attributes:
        size: height and width that it is resized to.
        top, left: of the resized picture, in the input; negative where it is cropped.
        scale: of rows and of columns.
    """

    size: tuple[int, int]
    top: int
    left: int
    scale: tuple[float, float]


def placed(how: Preprocessing, height: int, width: int) -> Placement:
    """Where a picture of `height` and `width` is put, in an input whose size is known.

    The sums are those of the usual implementations: torchvision's Resize and CenterCrop,
    Ultralytics' LetterBox, and YOLOX's preproc for padding at the end.
    """
    target = how.size or (height, width)
    if how.resize == "none":
        return Placement((height, width), 0, 0, (1.0, 1.0))
    if how.resize == "exact":
        return Placement(target, 0, 0, (target[0] / height, target[1] / width))
    if how.resize == "shortest-edge":
        short, long = sorted((height, width))
        longer = int(how.edge * long / short)
        size = (how.edge, longer) if height <= width else (longer, how.edge)
        top, left = (-round((s - t) / 2) for s, t in zip(size, target, strict=True))
        return Placement(size, top, left, (size[0] / height, size[1] / width))
    ratio = min(target[0] / height, target[1] / width)
    if how.pad == "end":
        size = max(1, int(height * ratio)), max(1, int(width * ratio))
        return Placement(size, 0, 0, (ratio, ratio))
    size = max(1, round(height * ratio)), max(1, round(width * ratio))
    top, left = (round((t - s) / 2 - 0.1) for s, t in zip(size, target, strict=True))
    return Placement(size, top, left, (ratio, ratio))


def resized(image: Image, size: tuple[int, int], resampling: str, *, what: str) -> Array:
    """A picture as uint8 [height, width, channels], resized by the filter of that name.

    Raises:
        SampleError: it is one of OpenCV's, which is not installed.
    """
    library, _, name = resampling.partition("-")
    height, width = size
    if library == "pillow":
        if image.size != (width, height):
            from PIL.Image import Resampling

            image = image.resize((width, height), Resampling[name.upper()])
        return _channels_last(image)
    pixels = _channels_last(image)
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = required("cv2", f"{what}: '{resampling}'", code="QD-SAMPLES-EXTRA", error=SampleError)
    found: Array = cv2.resize(pixels, (width, height), interpolation=getattr(cv2, _OPENCV[name]))
    return found.reshape(height, width, -1)


_OPENCV = {
    "nearest": "INTER_NEAREST",
    "bilinear": "INTER_LINEAR",
    "bicubic": "INTER_CUBIC",
    "area": "INTER_AREA",
    "lanczos": "INTER_LANCZOS4",
}


def _channels_last(image: Image) -> Array:
    pixels = np.asarray(image)
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


def picture_as_input(picture: Path, how: Preprocessing, dtype: np.dtype[np.generic]) -> Array:
    """A picture as one sample of the input: `how.input_shape`, of `dtype`.

    Raises:
        UnreadableError: it cannot be decoded, or its size does not fit.
        SampleError: a library is not installed.
    """
    image = decoded(picture, how.colour)
    place = placed(how, image.height, image.width)
    values = _scaled(resized(image, place.size, how.resampling, what=str(picture)), how)
    size = how.size or place.size
    if values.shape[:2] != size:
        values = _fitted(values, how, place, size)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.name)
        values = np.clip(np.rint(values), limits.min, limits.max)
    if how.layout != "nhwc":
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values, dtype)


def _scaled(pixels: Array, how: Preprocessing) -> Array:
    """(pixel * scale - mean) / std, each step rounded to float32, as PyTorch and OpenCV do it."""
    values = pixels[:, :, ::-1] if how.colour == "bgr" else pixels
    values = values.astype(np.float32)
    if how.divisor is not None:
        values /= np.float32(how.divisor)
    elif how.scale != 1:
        values *= np.float32(how.scale)
    if set(how.mean) != {0.0}:
        values -= np.array(how.mean, np.float32)
    if set(how.std) != {1.0}:
        values /= np.array(how.std, np.float32)
    return values


def _fitted(values: Array, how: Preprocessing, place: Placement, size: tuple[int, int]) -> Array:
    """Cropped and padded to `size`.

    Raises:
        UnreadableError: pictures are taken as they are, and this one has another size.
    """
    if how.resize == "none":
        height, width = values.shape[:2]
        raise UnreadableError(
            f"it has {height}x{width} pixels, where {size[0]}x{size[1]} are needed and nothing "
            "says how to resize"
        )
    fill = _scaled(np.full((1, 1, values.shape[2]), how.pad_value, np.float32), how)
    canvas = np.broadcast_to(fill, (*size, values.shape[2])).copy()
    rows, columns = (
        _overlap(at, s, t)
        for at, s, t in zip((place.top, place.left), values.shape, size, strict=False)
    )
    canvas[rows[1], columns[1]] = values[rows[0], columns[0]]
    return canvas


def _overlap(at: int, length: int, room: int) -> tuple[slice, slice]:
    """Of one axis: which part of a picture is in the input, and where there."""
    first, last = max(0, -at), min(length, room - at)
    return slice(first, last), slice(first + at, last + at)


def mask_as_input(picture: Path, how: Preprocessing) -> Array:
    """A mask of class numbers, put where its picture is: int64 [height, width], MASK_PADDING
    elsewhere. A palette's indices are the classes.

    Raises:
        UnreadableError: it cannot be decoded, or has several channels.
    """
    opened = _opened(picture)
    with _errors_of_pillow():
        values = np.asarray(opened)
    if values.ndim != 2:
        raise UnreadableError("a mask has one channel, whose values are classes")
    return plane_as_input(values.astype(np.int64), how, MASK_PADDING)


def plane_as_input(values: Array, how: Preprocessing, padding: int) -> Array:
    """A value for each pixel of a picture [height, width], put where the picture is in the input,
    by nearest pixel; `padding` elsewhere."""
    place = placed(how, *values.shape)
    rows, columns = (
        np.minimum((np.arange(n) + 0.5) * before / n, before - 1).astype(int)
        for n, before in zip(place.size, values.shape, strict=True)
    )
    small = values[rows][:, columns]
    size = how.size or place.size
    canvas = np.full(size, padding, values.dtype)
    in_rows, in_columns = (
        _overlap(at, s, t)
        for at, s, t in zip((place.top, place.left), small.shape, size, strict=True)
    )
    canvas[in_rows[1], in_columns[1]] = small[in_rows[0], in_columns[0]]
    return canvas


MASK_PADDING = 255
"""The class of what is no part of the picture, which most datasets leave out of the score."""


def boxes_as_input(boxes: Array, how: Preprocessing, size: tuple[int, int]) -> Array:
    """Boxes [n, 4] of a picture of `size` (x1, y1, x2, y2 in its pixels), in pixels of the input.

    What a crop cuts off is cut off.
    """
    height, width = how.size or placed(how, *size).size
    moved = points_as_input(boxes.reshape(-1, 2), how, size).reshape(-1, 4)
    return np.clip(moved, 0, (width, height, width, height))


def points_as_input(points: Array, how: Preprocessing, size: tuple[int, int]) -> Array:
    """Points [n, 2] of a picture of `size` (x, y in its pixels), in pixels of the input, in which
    they may not lie."""
    place = placed(how, *size)
    rows, columns = place.scale
    return points.astype(np.float64) * (columns, rows) + (place.left, place.top)
