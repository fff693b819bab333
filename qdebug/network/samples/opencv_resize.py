"""OpenCV's bilinear resizing of 8-bit pictures, bit for bit, so that a library of 60 MB is not
needed for what most detectors are fed with.

Source: OpenCV's modules/imgproc/src/resize.cpp: weights in 11 bits, the sums of rows shifted by 4
before they are weighted in 16 bits; halving both sides is the mean of four pixels.
"""

from __future__ import annotations

import numpy as np

from qdebug.types import Array

_BITS = 11
_ONE = 1 << _BITS


def bilinear(picture: Array, height: int, width: int) -> Array:
    """As `cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)`.

    Args:
        picture: uint8 [rows, columns, channels].

    Returns:
        uint8 [height, width, channels].
    """
    rows, columns = picture.shape[:2]
    if (rows, columns) == (2 * height, 2 * width):
        quarters = picture.reshape(height, 2, width, 2, -1).astype(np.uint16)
        halved: Array = ((quarters.sum(axis=(1, 3), dtype=np.uint16) + 2) >> 2).astype(np.uint8)
        return halved
    left, right, of_left, of_right = _weights(columns, width, clamped=True)
    above, below, of_above, of_below = _weights(rows, height, clamped=False)
    # Only rows that are read are widened: of a picture that is made much smaller few are.
    used, place = np.unique(np.concatenate([above, below]), return_inverse=True)
    kept = picture[used].astype(np.int32)
    wide = kept.take(left, axis=1) * of_left[:, None]
    wide += kept.take(right, axis=1) * of_right[:, None]
    wide >>= 4
    upper = (wide[place[:height]] * of_above[:, None, None]) >> 16
    upper += (wide[place[height:]] * of_below[:, None, None]) >> 16
    found: Array = np.clip((upper + 2) >> 2, 0, 255).astype(np.uint8)
    return found


def _weights(before: int, after: int, *, clamped: bool) -> tuple[Array, Array, Array, Array]:
    """Of each pixel of a side: its two neighbours in the side before, and their weights. At the
    ends both are the same pixel; `clamped` gives the first of them all of the weight."""
    scale = before / after
    place = ((np.arange(after) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int64)
    part = (place - first.astype(np.float32)).astype(np.float32)
    if clamped:
        part[(first < 0) | (first >= before - 1)] = 0
    second = np.clip(first + 1, 0, before - 1)
    first = np.clip(first, 0, before - 1)
    ours = np.rint((np.float32(1) - part) * np.float32(_ONE)).astype(np.int32)
    theirs = np.rint(part * np.float32(_ONE)).astype(np.int32)
    return first, second, ours, theirs
