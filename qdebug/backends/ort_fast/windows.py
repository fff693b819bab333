"""The windows of a convolution as rows of a matrix: which pixels each one reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_BYTES = 64 << 20
"""Rows of one sample that take more memory than this are not made."""


@dataclass(frozen=True)
class Windows:
    """Where the windows of a 2-D convolution lie.

    Attributes:
        pads: rows and columns added: top, left, bottom, right.
        padded: height and width with them.
        out: height and width of the output.
        pixels: for every output pixel and kernel position the input pixel, row by row of the
            padded input: int32 [out_h · out_w · kernel_h · kernel_w]; None where output pixel i
            reads input pixel i alone.
    """

    pads: tuple[int, int, int, int]
    padded: tuple[int, int]
    out: tuple[int, int]
    pixels: npt.NDArray[np.int32] | None


def windows_of(
    shape: Sequence[int | str | None], kernel: tuple[int, int], attributes: Mapping[str, Any]
) -> Windows | None:
    """The windows over an input of `shape` [N, C, H, W]; None where they are not known beforehand,
    or are too large.

    The output's size is that of ONNX's Conv: ⌊(size + pads − dilation · (kernel − 1) − 1) / stride⌋
    + 1.
    """
    if len(shape) != 4 or not all(isinstance(size, int) for size in shape[1:]):
        return None
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    channels, *sizes = (int(size or 0) for size in shape[1:])
    pads = tuple(attributes.get("pads") or (0, 0, 0, 0))
    strides = attributes.get("strides") or (1, 1)
    dilations = attributes.get("dilations") or (1, 1)
    padded = tuple(sizes[i] + pads[i] + pads[i + 2] for i in (0, 1))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    out = tuple((padded[i] - reach[i]) // strides[i] + 1 for i in (0, 1))
    if min(out) < 1 or out[0] * out[1] * kernel[0] * kernel[1] * channels > _MOST_BYTES:
        return None
    if padded == out and kernel == (1, 1):
        return Windows(pads, padded, out, None)
    rows, columns = (
        np.arange(out[i])[:, None] * strides[i] + np.arange(kernel[i]) * dilations[i]
        for i in (0, 1)
    )
    pixels = rows[:, None, :, None] * padded[1] + columns[None, :, None, :]
    return Windows(pads, padded, out, pixels.reshape(-1).astype(np.int32))
